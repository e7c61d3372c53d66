"""Make batches of frames: a task, the expert's plan for it, and true sentences about the frame.

This module knows the simulator's ground truth and the expert. The expert needs the current state
only, so any frame can have any task: some keep the recorded one, the others get another. The
content of a batch is a function of the dataset, the seed and the batch's number.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from embodied_kv.config import ModelConfig
from embodied_kv.demo.sim import language
from embodied_kv.demo.sim.covers import is_covered, uncovered
from embodied_kv.demo.sim.kinematics import joint_limits
from embodied_kv.demo.sim.tables import Orders, Tables
from embodied_kv.demo.sim.tabletop import Truth
from embodied_kv.demo.sim.tasks import COVERS, MEMORY_FAMILIES, Task, draw_task
from embodied_kv.model.processing.normalizer import Normalizer
from embodied_kv.model.processing.prompt import OWN_PROMPT, RECALL_TOKENS, recall_ids
from embodied_kv.model.tokenizer import Tokenizer
from training.common.batch import Batch
from training.common.segments import Segments
from training.policy.episodes import (
    IMAGES,
    Episode,
    count_frames,
    read_episode,
    true_state,
)
from training.policy.expert import ExpertMoment, plan
from training.policy.memory import EpisodeMemory
from training.policy.remembered import RememberedFrames

OWN, LOST = 0.6, 0.03  # shares of samples: recorded task, meaningless instruction
STATE_SPAN, ACTION_SPAN = (0.1, 99.9), (1.0, 99.0)  # percentiles that become -1 and 1
STRAYS, FLIPS, STRAY, GIVEN_RNG = 0.3, 0.15, 0.03, 1  # shares; rad, of a joint; stream
PAST, BEGUN, PAST_RNG = 0.5, 50, 2  # share of tasks about the past; most frames of a task; stream
RARE, OFTEN_PAST = 'sequence', 0.9  # the rarest of these families; share where it is possible
MOST_ASKED = 3  # things of a sample whose positions in earlier frames are asked for
QUESTIONS = 3  # scene questions of a sample, in addition to its subtask
# Relative frequency of the frames of a task, and of each kind of question; 1 by default: hard ones
# are more frequent.
FREQUENCY = dict(next=4.0, take=4.0, put=2.0, sequence=10.0, hidden=2.0) | {'return': 1.5}
OFTEN = dict(held=1, exists=3, count=2, colour=2, shape=4, side=3, inside=4, where=3)


@dataclass(frozen=True, eq=False)
class Frames:
    """Every frame of a dataset, F in all, in memory.

    images: uint8 [F, views, S, S, 3]. state: float32 [F, 7]. things: float32 [F, N, 4]. pixels:
    float32 [F, N, views, 2]. leftover: float32 [F, 10, 7]. held, episode, task: int64 [F].
    colours, shapes: int64 [episodes, N]. tasks: of every episode. covers: float32 [F, COVERS, 2].
    first: int64 [episodes], their first frames. memories: of every episode, or ().
    """

    images: np.ndarray
    state: np.ndarray
    things: np.ndarray
    pixels: np.ndarray
    leftover: np.ndarray
    held: np.ndarray
    episode: np.ndarray
    task: np.ndarray
    colours: np.ndarray
    shapes: np.ndarray
    tasks: tuple[tuple[Task, ...], ...]
    covers: np.ndarray
    first: np.ndarray
    memories: tuple[EpisodeMemory, ...] = ()

    @classmethod
    def read(cls, paths: Sequence[Path], memory: bool = False) -> Frames:
        """Read the frames of some episodes.

        In addition to the frames, the images of at most one episode are in memory. Raises
        ValueError that names an episode that is broken, or has another image size, or, without
        `memory`, covers.
        """
        memories: list[EpisodeMemory] = []
        lengths = [count_frames(path) for path in paths]
        episodes: list[Episode] = []
        for path, end in zip(paths, np.cumsum(lengths), strict=True):
            episode = read_episode(path)
            size = episode.size
            if episode.covers is not None and not memory:
                raise ValueError(
                    f'{path} has covers, which only a policy with a memory can learn from: train '
                    'with --memory-rows, or generate without --memory'
                )
            if not episodes:
                images = np.empty((sum(lengths), len(IMAGES), size, size, 3), np.uint8)
            elif size != images.shape[2]:
                raise ValueError(
                    f'{path} has images of {size} x {size} pixels, {paths[0]} of '
                    f'{images.shape[2]} x {images.shape[2]}: one dataset has one size'
                )
            if memory:
                memories.append(EpisodeMemory(episode))
            for view, name in enumerate(IMAGES):
                images[end - len(episode) : end, view] = episode.frames.pop(name)
            episodes.append(episode)

        def joined(name: str) -> np.ndarray:
            return np.concatenate([episode.frames[name] for episode in episodes])

        return cls(
            images=images,
            state=joined('observation.state'),
            things=joined('truth.things'),
            pixels=joined('truth.pixels'),
            leftover=joined('truth.leftover'),
            held=joined('truth.held'),
            episode=np.repeat(np.arange(len(episodes)), lengths),
            task=joined('task_index'),
            colours=np.stack([episode.colours for episode in episodes]),
            shapes=np.stack([episode.shapes for episode in episodes]),
            tasks=tuple(episode.tasks for episode in episodes),
            covers=np.concatenate([_covers(episode) for episode in episodes]),
            first=np.cumsum([0, *lengths[:-1]]),
            memories=tuple(memories),
        )

    def __len__(self) -> int:
        return len(self.state)

    @property
    def size(self) -> int:
        """Pixels of an image's side."""
        return self.images.shape[2]

    def truth(self, frame: int) -> Truth:
        """Return the simulator's ground truth; the gripper point is not stored (NaN)."""
        episode = self.episode[frame]
        kinds = self.colours[episode], self.shapes[episode]
        covers = self.covers[frame].astype(np.float64)
        there = covers[np.isfinite(covers[:, 0])]
        return true_state(*kinds, self.things[frame], self.held[frame], there)


def _covers(episode: Episode) -> np.ndarray:
    """Return the covers of each frame, float32 [T, COVERS, 2] m, NaN for those out of sight."""
    none = np.full((len(episode), COVERS, 2), np.nan, np.float32)
    return none if episode.covers is None else episode.covers


class Sampler:
    """Batches of a dataset by number, the same for the same seed.

    rtc: largest length of the action prefix of a chunk; small lengths are drawn more often.
    memory: largest number of memory rows of a sample; frames read with `memory` then get tasks
    about the past, too. prompt, packed: tokens that a sample may have; a longer prompt is cut,
    longer segments are left out. Raises ValueError for images of another size than the model's.
    """

    def __init__(
        self,
        frames: Frames,
        config: ModelConfig,
        tokenizer: Tokenizer,
        normalizer: Normalizer,
        *,
        batch: int,
        seed: int,
        rtc: int = 0,
        memory: int = 0,
        prompt: int = 32,
        packed: int = 0,
    ) -> None:
        size = config.vision.image_size
        if frames.size != size:
            raise ValueError(
                f'the dataset has images of {frames.size} x {frames.size} pixels, {config.name} '
                f'sees {size} x {size}: generate with --size {size}'
            )
        self._frames, self._config, self._seed = frames, config, seed
        self._tokenizer, self._normalizer = tokenizer, normalizer
        if not 0 <= rtc < config.chunk_size:
            raise ValueError(f'rtc {rtc} is not in 0..{config.chunk_size - 1}: some must be left')
        self._batch, self._prompt = batch, prompt
        self._packed = packed or (48 if memory else 40)
        self._rtc, self._memory = rtc, memory
        views = len(config.views) * config.vision.tokens
        self._remembered = RememberedFrames(frames.images, prompt, views)
        tasks = (frames.tasks[e][t] for e, t in zip(frames.episode, frames.task, strict=True))
        self._sums = np.cumsum([frequency(task) for task in tasks])

    def batch(self, number: int, ground: bool) -> Batch:
        """Return batch `number`.

        ground: ask for positions, rather than for actions and what the robot is doing.
        """
        rng = np.random.default_rng((self._seed, number))
        frames, size = self._frames, self._batch
        at = self.draw(rng)
        truths = [frames.truth(i) for i in at]
        tasks = [self._draw_task(i, truth, rng) for i, truth in zip(at, truths, strict=True)]
        pasts = self._pasts(at, tasks, number)
        tasks = [past.task for past in pasts]
        names = [[thing.name for thing in truth.things] for truth in truths]
        state = frames.state[at]
        tables, orders = Tables.of(truths), Orders.of(tasks, names)
        chunk = 1 if ground else self._config.chunk_size
        leftover, delay = self._given(at, chunk, number), self._delays(at, chunk, rng)
        actions, phases = plan(state, tables, orders, chunk, leftover, delay)

        prompts = np.full((size, self._prompt), self._tokenizer.pad)
        lengths = np.empty(size, int)
        segments = Segments(self._tokenizer, size, self._packed, frames.colours.shape[1])
        for b, (task, truth, phase) in enumerate(zip(tasks, truths, phases, strict=True)):
            words = task.phrase(int(rng.integers(16))) if task else gibberish(rng)
            pasts[b].words = words
            for thing, words_of_past in pasts[b].asked.items():
                segments.name(b, words_of_past, thing)
            ids = self._prompt_ids(words, state[b])
            prompts[b, : len(ids)], lengths[b] = ids, len(ids)
            for name in names[b] if ground else ():
                segments.name(b, name)
            for question, answer in sentences(task, truth, phase, rng, ground):
                segments.say(b, question, answer)
            segments.ask_where(b, names[b])
        kinds, seen = frames.episode[at], self._seen(truths)
        where = np.where(self._known(truths, tasks)[..., None], frames.things[at, :, :3], np.nan)
        for b, past in enumerate(pasts):
            for thing, point in past.points.items():
                where[b, thing, :2] = point
                where[b, thing, 2] = tables.size[b, thing, 2] / 2
        targets = self._normalizer.targets(actions, state)
        return Batch(
            images=torch.from_numpy(frames.images[at]),
            prompt=torch.from_numpy(prompts),
            prompt_length=torch.from_numpy(lengths),
            actions=torch.from_numpy(targets),
            delay=torch.from_numpy(delay),
            known=torch.full((size,), chunk),
            **segments.tensors(),
            pixels=torch.from_numpy(
                np.where(seen[..., None, None], frames.pixels[at], np.float32(np.nan))
            ),
            colour=torch.from_numpy(np.where(seen, frames.colours[kinds], -1)),
            shape=torch.from_numpy(np.where(seen, frames.shapes[kinds], -1)),
            goal=torch.from_numpy(goals(state, tables, orders)),
            where=torch.from_numpy(on_the_table(where.astype(np.float32))),
            **self._memory_columns(pasts, number),
        )

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Return the frames of a batch, int64 [B]."""
        return np.searchsorted(self._sums, rng.random(self._batch) * self._sums[-1], side='right')

    def _seen(self, truths: Sequence[Truth]) -> np.ndarray:
        """Return which things no cover hides, bool [B, N]."""
        seen = np.ones((len(truths), self._frames.colours.shape[1]), bool)
        for b, truth in enumerate(truths):
            hidden = [is_covered(thing, truth.covers) for thing in truth.things]
            seen[b, : len(hidden)] = ~np.array(hidden, bool)
        return seen

    def _known(self, truths: Sequence[Truth], tasks: Sequence[Task | None]) -> np.ndarray:
        """Return the things whose positions can be known: visible ones and the target."""
        known = self._seen(truths)
        for b, (truth, task) in enumerate(zip(truths, tasks, strict=True)):
            if task and task.family == 'hidden':
                known[b, [thing.name for thing in truth.things].index(task.target)] = True
        return known

    def _pasts(self, at: np.ndarray, tasks: Sequence[Task | None], number: int) -> list[_Past]:
        """Return the past of each frame; without a memory, that is its task alone.

        All samples of a batch have the same largest number of memory rows.
        """
        if not self._memory:
            return [_Past(task) for task in tasks]
        rng = np.random.default_rng((self._seed, number, PAST_RNG))
        most = int(rng.integers(0, self._memory, endpoint=True))
        return [self._past(i, task, most, rng) for i, task in zip(at, tasks, strict=True)]

    def _past(self, at: int, task: Task | None, most: int, rng: np.random.Generator) -> _Past:
        frames, episode = self._frames, self._frames.episode[at]
        first, memory = frames.first[episode], frames.memories[episode]
        frame = int(at - first)
        begun = int(rng.integers(0, min(frame, BEGUN), endpoint=True))
        since = frame - begun * int(rng.random() < 0.5)
        kept = memory.before(since, most) if most else np.zeros(0, np.int64)
        options = memory.tasks(frame, kept, since)
        recorded = frames.tasks[episode][frames.task[at]]
        is_recorded, is_past = task is recorded, recorded.family in MEMORY_FAMILIES
        is_rare = any(option.family == RARE for option in options)
        replaces = is_rare or not (is_recorded and is_past)
        if options and replaces and rng.random() < (OFTEN_PAST if is_rare else PAST):
            shares = np.array([frequency(option) for option in options])
            task = options[rng.choice(len(options), p=shares / shares.sum())]
        elif is_recorded:
            numbers = frames.task[first : at + 1]
            since = int(np.flatnonzero(numbers == numbers[-1])[0])
            kept = memory.before(since, most) if most else kept
            if not memory.determines(recorded, frame, kept):
                task = self._other_task(frames.truth(at), rng)
            options = memory.tasks(frame, kept, since)
        asked, points = self._questions_of_past(frames.truth(at), options)
        return _Past(
            task, since, tuple((first + kept[::-1]).tolist()), int(first), '', asked, points
        )

    @staticmethod
    def _questions_of_past(
        truth: Truth, options: Sequence[Task]
    ) -> tuple[dict[int, str], dict[int, tuple[float, float]]]:
        """Return words and positions of things whose positions only memory rows contain.

        These are covered things, and the earlier positions of things that were moved.
        """
        names = [thing.name for thing in truth.things]
        asked, points = {}, {}
        for task in options:
            index = names.index(task.target)
            if task.family in ('hidden', 'return') and task.spot and len(asked) < MOST_ASKED:
                earlier = '' if task.family == 'hidden' else ' before'
                asked[index], points[index] = f'{task.target}{earlier}', task.spot
        return asked, points

    def _memory_columns(self, pasts: Sequence[_Past], number: int) -> dict[str, torch.Tensor]:
        """Return the memory fields of a batch; {} if no sample has a memory row."""
        rng = np.random.default_rng((self._seed, number, PAST_RNG, 1))
        frames = self._frames

        def prompt(b: int, frame: int) -> list[int]:
            past = pasts[b]
            task = frames.tasks[frames.episode[frame]][frames.task[frame]]
            is_present = frame >= past.first + past.since
            words = past.words if is_present else task.phrase(int(rng.integers(16)))
            return self._prompt_ids(words, frames.state[frame])

        columns = self._remembered.columns([past.kept for past in pasts], prompt, rng)
        if not columns:
            return {}
        recall = np.full((len(pasts), RECALL_TOKENS), self._tokenizer.pad)
        lengths = np.zeros(len(pasts), np.int64)
        for b, past in enumerate(pasts):
            ids = recall_ids(self._tokenizer, past.words) if past.kept else []
            recall[b, : len(ids)], lengths[b] = ids, len(ids)
        own = dict(recall=torch.from_numpy(recall), recall_length=torch.from_numpy(lengths))
        return columns | own

    def _draw_task(self, frame: int, truth: Truth, rng: np.random.Generator) -> Task | None:
        chance = rng.random()
        if chance < LOST:
            return None
        if chance < LOST + OWN:
            return self._frames.tasks[self._frames.episode[frame]][self._frames.task[frame]]
        return self._other_task(truth, rng)

    @staticmethod
    def _other_task(truth: Truth, rng: np.random.Generator) -> Task | None:
        """Return a task that the present state determines."""
        if len(truth.covers):  # only the hand is clear of covers
            return draw_task(uncovered(truth).things, rng, 'reach')
        return draw_task(truth.things, rng)

    def _given(self, at: np.ndarray, chunk: int, number: int) -> np.ndarray:
        """Return the leftover actions of each arm, [B, chunk, 7].

        Some are perturbed, so that the model does not just copy them.
        """
        rng = np.random.default_rng((self._seed, number, GIVEN_RNG))
        given = self._frames.leftover[at, :chunk].astype(np.float64)
        strays, flips = rng.random((2, len(at))) < np.array([[STRAYS], [FLIPS]])
        given[strays, :, :6] += rng.normal(0, STRAY, (strays.sum(), 1, 6))
        given[flips, :, 6] = 0.04 - given[flips, :, 6]
        return np.clip(given, *joint_limits())

    def _delays(self, at: np.ndarray, chunk: int, rng: np.random.Generator) -> np.ndarray:
        """Return the length of the action prefix of each frame's chunk, int64 [B]."""
        drawn = ((self._rtc + 1) * rng.random(len(at)) ** 2).astype(np.int64)
        known = np.isfinite(self._frames.leftover[at]).all(-1).sum(1)
        return np.minimum(np.minimum(drawn, known), chunk - 1)

    def _prompt_ids(self, words: str, state: np.ndarray) -> list[int]:
        normalised = self._normalizer.state(state)
        return OWN_PROMPT.tokens(self._tokenizer, words, normalised, self._prompt)[0]


@dataclass
class _Past:
    """The task of a sample, and the frames that its robot remembers.

    since: frame of the episode from which on the task is in force. kept: frames of the dataset,
    the newest first. first: the episode's first. words: the instruction. asked, points: words
    and position x, y (m) of things, by number, that only memory rows contain.
    """

    task: Task | None
    since: int = 0
    kept: tuple[int, ...] = ()
    first: int = 0
    words: str = ''
    asked: dict[int, str] = field(default_factory=dict)
    points: dict[int, tuple[float, float]] = field(default_factory=dict)


def frequency(task: Task) -> float:
    """Return how often frames of a task are drawn, relative to those of an easy one."""
    return FREQUENCY.get(task.family, 1.0)


def sentences(
    task: Task | None, truth: Truth, phase: int, rng: np.random.Generator, ground: bool
) -> list[tuple[str, str]]:
    """Return questions and answers of one moment; while grounding, about the scene only."""
    kinds, shares = list(OFTEN), np.array(list(OFTEN.values()), float)
    chosen = rng.choice(kinds, QUESTIONS, replace=False, p=shares / shares.sum())
    asked = [language.SCENE_QUESTIONS[kind](uncovered(truth), rng) for kind in chosen]
    if not ground:
        asked.insert(0, (language.SUBTASK, language.say_subtask(phase, task, truth)))
        if rng.random() < 0.3:
            asked[1] = language.NARRATE, language.narrate(phase, task, truth)
        if rng.random() < 0.3:
            asked[-1] = language.ask_done(phase, task, truth)
    return [pair for pair in asked if pair]


def gibberish(rng: np.random.Generator) -> str:
    """Return an instruction without meaning: one to three words of random letters."""
    letters = np.array(list(string.ascii_lowercase))
    lengths = rng.integers(2, 5, size=rng.integers(1, 4))
    return ' '.join(''.join(rng.choice(letters, length)) for length in lengths)


def goals(state: np.ndarray, tables: Tables, orders: Orders) -> np.ndarray:
    """Return where an order leads, float32 [B, 3], m.

    That is its target, or the destination of the target once it is held.
    """
    rows = np.arange(len(orders.family))
    moment = ExpertMoment(state.astype(np.float64), tables, orders)
    points = moment.thing[:, :3].astype(np.float32)
    carried = moment.wanted & moment.puts
    spots = np.column_stack([moment.spot, tables.size[rows, orders.target, 2] / 2])
    points[carried] = spots[carried]
    points[orders.family < 0] = np.nan
    return on_the_table(points)


def on_the_table(points: np.ndarray) -> np.ndarray:
    """Return points [..., 3] m, NaN for a thing that fell off.

    The position of such a thing would dominate the loss.
    """
    off = (points[..., 2] < -0.02) | (np.abs(points[..., 1]) > 0.5) | (points[..., 0] > 0.8)
    return np.where(off[..., None], np.float32(np.nan), points)


def measure(frames: Frames, config: ModelConfig, seed: int, samples: int = 16384) -> Normalizer:
    """Measure the normaliser of states and of the expert's plans.

    Joints are deltas, the gripper is absolute.
    """
    rng = np.random.default_rng((seed, 7))
    at = rng.integers(len(frames), size=min(samples, 4 * len(frames)))
    truths = [frames.truth(i) for i in at]
    tasks = [draw_task(truth.things, rng) for truth in truths]
    names = [[thing.name for thing in truth.things] for truth in truths]
    state = frames.state[at]
    actions, _ = plan(state, Tables.of(truths), Orders.of(tasks, names), config.chunk_size)
    actions[..., :-1] -= state[:, None, :-1]
    low, high = np.percentile(frames.state, STATE_SPAN, axis=0)
    first, last = np.percentile(actions, ACTION_SPAN, axis=0)
    first[:, -1], last[:, -1] = 0.0, 0.04  # the gripper opens and closes
    relative = np.arange(config.action_dim) < config.action_dim - 1
    return Normalizer.from_quantiles((low, high), (first, last), relative)
