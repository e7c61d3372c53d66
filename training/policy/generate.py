"""`python -m training.policy.generate`: episodes of the scripted expert.

Each episode is a scene with a sequence of tasks. The arm follows the expert's plans with noise,
kicks and gripper flips, at several replanning strides and latencies, so that the frames cover the
states that a learner's own mistakes lead to; labels are always the clean plan (DAgger, Ross et al.
2011). Existing episodes are kept, so that an interrupted run can be continued. With --memory some
scenes have covers, which hide objects from some moment on. In the others, a thing is moved by hand
once, and most of the following tasks return a thing to where it was (`training.policy.memory`).
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from embodied_kv.demo.sim.covers import draw_covers, hidden_tasks
from embodied_kv.demo.sim.kinematics import forward, joint_limits
from embodied_kv.demo.sim.phases import Phase
from embodied_kv.demo.sim.rollout import Rollout
from embodied_kv.demo.sim.scene import CAMERAS, MOVABLE, SceneConfig
from embodied_kv.demo.sim.tables import Orders, Tables
from embodied_kv.demo.sim.tabletop import Tabletop, Truth
from embodied_kv.demo.sim.tasks import (
    AWAY,
    COVERS,
    FAMILIES,
    HOVER,
    SECONDS,
    Task,
    can_be_taken,
    distances,
    draw_task,
    hindrance,
    is_one_place,
    lies_on_the_table,
    rests_at,
    task_scene,
)
from embodied_kv.progress import Progress
from training.common import command
from training.policy.episodes import (
    AHEAD,
    COLOUR_NAMES,
    FEATURES,
    MOST_THINGS,
    SHAPE_NAMES,
    Episode,
    episode_path,
    read_episode,
    write_episode,
    write_meta,
)
from training.policy.expert import plan
from training.policy.memory import placements

DT = 0.1  # s, the control period
CLEAR = HOVER - 0.02  # m, least height of the gripper point when covers or things are put down
LOWEST = 0.014  # m, lowest gripper point of a disturbed command
TICK = 1e-6  # s; closer times are equal
SLIP = 3  # periods after which a kick does not grow further
RETURNS = 0.8  # with a memory, share of tasks that return a thing, if there is one to return


@dataclass(frozen=True)
class Disturbance:
    """How far an episode deviates from the plan.

    stride: control periods between two plans, at least. latency: s until a plan is followed.
    aware: whether a plan knows what the arm does until then. sway: rad, the stationary deviation
    of Ornstein-Uhlenbeck noise on the joints. kick: probability per period that random commands
    begin.
    """

    stride: int
    latency: float
    aware: bool
    sway: float
    kick: float

    @classmethod
    def draw(cls, rng: np.random.Generator) -> Disturbance:
        """Draw a disturbance.

        A third of the episodes are calm; in half of them a plan is followed within its period.
        """
        calm = rng.random() < 0.33
        late = rng.random() < 0.5
        return cls(
            stride=int(rng.choice((1, 1, 1, 2, 3))),
            latency=float(rng.uniform(0.08, 0.4) if late else rng.uniform(0, 0.08)),
            aware=bool(rng.random() < 0.5),
            sway=0.0 if calm else float(rng.uniform(0.005, 0.04)),
            kick=0.0 if calm else 0.03,
        )


class Disturber:
    """Turns clean plans into the commands that the arm follows."""

    def __init__(self, disturbance: Disturbance, rng: np.random.Generator) -> None:
        self._d, self._rng = disturbance, rng
        self._sway = np.zeros(6)
        self._kicks = 0
        self._drift = np.zeros(6)
        self._flip = False

    def disturb(self, actions: np.ndarray) -> np.ndarray:
        """Return actions [n, 7] of one plan with sway, and at times a kick or a gripper flip."""
        rng, d = self._rng, self._d
        self._sway += -0.3 * self._sway + d.sway * 0.7 * rng.standard_normal(6)
        if self._kicks:
            self._kicks -= 1
        elif rng.random() < d.kick:
            self._kicks = int(rng.integers(2, 6))
            self._drift = rng.normal(0, 0.05, 6)
            self._flip = rng.random() < 0.4
        out = actions.astype(np.float64)
        out[:, :6] += self._sway
        if self._kicks:
            out[:, :6] += self._drift * np.minimum(np.arange(len(out)) + 1, SLIP)[:, None]
            if self._flip:
                out[:, 6] = 0.04 - out[:, 6]
        out = np.clip(out, *joint_limits())
        low = forward(out)[:, 2] < LOWEST
        out[low, :6] = actions[low, :6]
        return out


class Planner:
    """Makes one plan at a time, like a robot that plans while it moves.

    A plan begins with a frame and is followed after the latency; only then the next plan begins.
    """

    def __init__(self, rollout: Rollout, rng: np.random.Generator) -> None:
        self._rollout, self._d = rollout, Disturbance.draw(rng)
        self._disturber = Disturber(self._d, rng)
        self._begun = -np.inf
        self._plan: np.ndarray | None = None  # not followed yet

    def think(self, truth: Truth, orders: Orders, leftover: np.ndarray) -> None:
        """Begin a plan with this frame if it is time."""
        now = self._rollout.time
        if self._plan is not None or now < self._begun + self._d.stride * DT - TICK:
            return
        known = int(np.isfinite(leftover).all(1).sum())
        delay = min(known, math.ceil(self._d.latency / DT)) if self._d.aware else 0
        state = self._rollout.table.state()[None]
        given = leftover[None], np.array([delay])
        actions, _ = plan(state, Tables.of([truth]), orders, AHEAD, *given)
        self._plan, self._begun = self._disturber.disturb(actions[0]), now

    def advance(self) -> None:
        """Advance one control period, during which the plan may take over."""
        end = self._rollout.time + DT
        if self._plan is not None and self._begun + self._d.latency < end - TICK:
            self._until(self._begun + self._d.latency)
            self._rollout.follow(self._plan, self._begun, DT)
            self._plan = None
        self._until(end)

    def _until(self, moment: float) -> None:
        if moment > self._rollout.time + TICK:
            self._rollout.advance(moment - self._rollout.time)


class Rests:
    """Where things rested in view when an instruction began: what a memory certainly contains."""

    def __init__(self, table: Tabletop) -> None:
        self._table = table
        self._places: dict[str, list[np.ndarray]] = defaultdict(list)  # x, y, z in m

    def see(self, truth: Truth) -> None:
        """Take the state at the beginning of an instruction."""
        for thing in truth.things:
            x, y, _ = at = thing.position
            free = thing.shape in MOVABLE and thing.name != truth.held
            if free and rests_at((x, y), thing, truth.things) and self._table.sees(at[None]).all():
                self._places[thing.name].append(at.copy())

    def tasks(self, truth: Truth) -> list[Task]:
        """Return a task for each thing that rested at exactly one other place before."""
        found = []
        for thing in truth.things:
            places = np.array(self._places[thing.name]).reshape(-1, 3)
            places = places[distances(places, thing.position) >= AWAY]
            if can_be_taken(thing) and is_one_place(places):
                found.append(Task('return', thing.name, spot=tuple(places[-1, :2].tolist())))
        return [task for task in found if not hindrance(task, truth, self._table.sees)]


def record(table: Tabletop, seed: int, length: int, returns: bool = False) -> Episode:
    """Record one episode of `length` frames in the scene of `seed`.

    returns: whether some tasks return things to where they were; not in scenes with covers.
    """
    table.reset(seed)
    rng, own_rng = np.random.default_rng((seed, 1)), np.random.default_rng((seed, 2))
    rests, returns = Rests(table), returns and not table.scene.covers
    hand = own_rng.integers(8, length // 2) if returns else length
    rollout = Rollout(table)
    planner = Planner(rollout, rng)
    names = [thing.name for thing in table.objects()]
    frames: dict[str, list] = {name: [] for name in FEATURES}
    covers = np.full((length, COVERS, 2), np.nan, np.float32)
    due = rng.integers(length // 4, length // 2, endpoint=True) if table.scene.covers else length
    tasks: list[Task] = []
    rest = held_still = 0
    for t in range(length):
        truth = before = table.truth()
        is_clear = not truth.held and truth.grip[2] > CLEAR
        if t >= hand and is_clear:
            truth, rest, hand = _move_by_hand(table, own_rng), 0, length
        if t >= due and not len(truth.covers) and is_clear:
            points = draw_covers(truth.things, rng)
            if points is not None:
                table.cover(points)
                truth, rest = table.truth(), 0
        covers[t, : len(truth.covers)] = truth.covers
        if rest <= 0 or held_still > 6 or rng.random() < 0.01:
            task = _draw_task(truth, rng)
            if task is None:
                break
            if returns:
                rests.see(before)
                possible = rests.tasks(truth)
                if possible and own_rng.random() < RETURNS:
                    task = possible[own_rng.integers(len(possible))]
            tasks.append(task)
            rest, held_still = int(SECONDS[task.family] / DT), 0
        orders = Orders.of(tasks[-1:], [names])
        clean, phase = plan(table.state()[None], Tables.of([truth]), orders, 1)
        leftover = rollout.player.planned(rollout.time + DT * np.arange(AHEAD))
        _keep(frames, table, truth, names, clean[0, 0], leftover, t, len(tasks) - 1)
        rest, held_still = rest - 1, held_still + (phase[0] == Phase.HOLD)
        planner.think(truth, orders, leftover)
        planner.advance()
    kinds = np.full((2, MOST_THINGS), -1)
    for i, thing in enumerate(table.scene.things):
        kinds[:, i] = COLOUR_NAMES.index(thing.colour), SHAPE_NAMES.index(thing.shape)
    stacked = {k: np.stack(v) for k, v in frames.items()}
    covered = covers[: len(stacked['timestamp'])] if table.scene.covers else None
    return Episode(stacked, tuple(tasks), *kinds, covered)


def _move_by_hand(table: Tabletop, rng: np.random.Generator) -> Truth:
    """Move a thing on the table to a random free place; return the truth."""
    truth = table.truth()
    lying = [t for t in truth.things if can_be_taken(t) and lies_on_the_table(t, truth.things)]
    if not lying:
        return truth
    thing = lying[rng.integers(len(lying))]
    if spots := placements(thing.name, truth):
        index, poses = truth.things.index(thing), table.poses()
        poses[index] = *spots[rng.integers(len(spots))], thing.size[2] / 2, 1, 0, 0, 0
        table.arrange(table.state(), poses)
    return table.truth()


def _draw_task(truth: Truth, rng: np.random.Generator) -> Task | None:
    if len(truth.covers):
        tasks = hidden_tasks(truth)
        return tasks[rng.integers(len(tasks))] if tasks else None
    family = FAMILIES[rng.integers(len(FAMILIES))]
    return draw_task(truth.things, rng, family) or draw_task(truth.things, rng)


def _keep(
    frames: dict, table: Tabletop, truth: Truth, names, action, leftover, t: int, task: int
) -> None:
    things = np.full((MOST_THINGS, 4), np.nan, np.float32)
    pixels = np.full((MOST_THINGS, len(CAMERAS), 2), np.nan, np.float32)
    points = np.array([thing.position for thing in truth.things])
    things[: len(points), :3] = points
    things[: len(points), 3] = [thing.yaw for thing in truth.things]
    for view, camera in enumerate(CAMERAS):
        pixels[: len(points), view] = table.project(points, camera)
    values = {f'observation.images.{name}': image for name, image in table.render().items()}
    values |= {
        'observation.state': table.state(),
        'action': action,
        'timestamp': np.float32(t * DT),
        'task_index': task,
        'truth.things': things,
        'truth.pixels': pixels,
        'truth.held': names.index(truth.held) if truth.held else -1,
        'truth.leftover': leftover.astype(np.float32),
    }
    for name, value in values.items():
        frames[name].append(value)


# Scenes of episodes, in turn: any; with a place; with a thing put away; with two places.
SCENES = task_scene(), task_scene('put'), task_scene('take'), task_scene(crowded=True)
COVERED = 5  # with --memory, one of so many scenes has covers
_tables: dict[SceneConfig, Tabletop] = {}  # of this process: an OpenGL context is expensive


def make_episode(
    index: int,
    root: Path,
    seed: int,
    length: int,
    size: int = SceneConfig.image_size,
    covered: int = 0,
) -> int:
    """Write episode `index` if it does not exist; return its number of frames.

    covered: one of so many scenes has covers, and in the others some things are returned; 0:
    neither. Raises ValueError if it exists with images of another size.
    """
    path = episode_path(root, index)
    if not path.exists():
        before = (index + 1) // covered if covered else 0  # scenes with covers, with this one
        has_covers = covered and (index + 1) % covered == 0
        scene = task_scene('hidden') if has_covers else SCENES[(index - before) % len(SCENES)]
        scene = replace(scene, image_size=size)
        if scene not in _tables:
            _tables[scene] = Tabletop(scene, seed)
        table = _tables[scene]
        write_episode(root, index, record(table, seed + index, length, covered > 0))
    episode = read_episode(path)
    if episode.size != size:
        raise ValueError(
            f'{path} has images of {episode.size} x {episode.size} pixels, asked are '
            f'{size} x {size}: give another --out'
        )
    return len(episode)


def main() -> None:
    """Generate a dataset, or its missing episodes."""
    parser = command.parser('policy.generate', __doc__)
    parser.add_argument('--out', type=Path, default=Path('out/train/data'), help='dataset folder')
    parser.add_argument('--episodes', type=int, default=2400, help='in all')
    parser.add_argument('--length', type=int, default=60, help='frames of an episode')
    parser.add_argument(
        '--size', type=int, default=SceneConfig.image_size, help='pixels of an image, each way'
    )
    parser.add_argument('--seed', type=int, default=0, help='of the first scene, below 1,000,000')
    parser.add_argument('--memory', action='store_true', help='also covers, and things returned')
    parser.add_argument('--covered', type=int, default=COVERED, help='one of so many has covers')
    parser.add_argument('--processes', type=int, default=os.cpu_count() or 1, help='at once')
    arguments = parser.parse_args()
    counts = arguments.episodes, arguments.length, arguments.processes, arguments.covered
    if min(counts) < 1:
        parser.error('--episodes, --length, --processes and --covered are at least 1')
    if arguments.seed + arguments.episodes > 1_000_000:
        parser.error('scene seeds from 1,000,000 on are kept for evaluation')
    options = {name: getattr(arguments, name) for name in ('seed', 'length', 'size')}
    options['covered'] = arguments.covered if arguments.memory else 0
    make = partial(make_episode, root=arguments.out, **options)
    try:
        with ProcessPoolExecutor(arguments.processes) as pool:
            results = pool.map(make, range(arguments.episodes), chunksize=8)
            with Progress('episodes', arguments.episodes) as progress:
                lengths = list(progress.track(results))
    except ValueError as error:
        parser.exit(2, f'{parser.prog}: {error}\n')
    write_meta(arguments.out, lengths, 1 / DT, arguments.seed, arguments.size)
    print(f'{len(lengths)} episodes, {sum(lengths)} frames in {arguments.out}')


if __name__ == '__main__':
    main()
