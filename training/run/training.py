"""A training by contract: the losses that the data allows, the training, and the saved policy.

This module knows data sets, the trainer of policies and the folder of a checkpoint. It does not
know the command line.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from embodied_kv.config import ModelConfig
from embodied_kv.model.checkpoints.own import MAX_ACTION_PREFIX, SAYS, save
from embodied_kv.model.weights import Weights
from embodied_kv.robots.embodiment import Embodiment
from training.common.batch import Batch
from training.common.learner import TRAINED
from training.common.objective import Point
from training.data.lerobot_reader import LeRobotDataSet
from training.policy.trainer import Trainer
from training.run.frames import Frames, episodes_of
from training.run.recipe import RunRecipe
from training.run.sampler import Sampler, longest_prompt
from training.run.statistics import measure
from training.run.words import SUBTASK, goal_of, tokenizer_of

STATE = 'state.safetensors'  # of a run, in its folder
HELD_OUT = 50  # episodes kept for validation, at most a tenth
VALIDATION = 8  # batches of validation
NARROWEST = 0.02  # m, smallest scale of positions


def check_contract(robot: Embodiment) -> None:
    """Raise ValueError if the contract declares a checkpoint unlike those trained here."""
    declared = robot.declared
    own = {'state_in_prompt': True, 'conversion': 'none', 'lerobot_before_0_5': False}
    said = {name: getattr(declared, name) for name in (*own, 'resize')}
    said |= {
        f'normalization.{part}': mode for part, mode in (declared.normalization or {}).items()
    }
    for name, value in said.items():
        usual = own.get(name, 'quantiles' if name.startswith('normalization') else None)
        if value not in (None, usual):
            raise ValueError(
                f'{robot.contract.robot_type}: checkpoint.{name} is {value}, which is of other '
                "projects' checkpoints: train by a copy of the contract without it"
            )


def split(
    data: Sequence[LeRobotDataSet], config: ModelConfig, seed: int, objects: Sequence[str]
) -> tuple[Frames, Frames]:
    """Return the frames to learn from, and those of held-out episodes, drawn by the seed.

    Raises ValueError if there is only one episode, or one cannot be read.
    """
    episodes = list(episodes_of(data))
    if len(episodes) < 2:
        raise ValueError(
            'the data must have at least two episodes, one of which is held out for validation '
            f'(got {len(episodes)}); record more'
        )
    held_out = max(1, min(HELD_OUT, len(episodes) // 10))
    order = np.random.default_rng((seed, 3)).permutation(len(episodes))
    parts = np.sort(order[held_out:]), np.sort(order[:held_out])
    seen, unseen = (Frames.read([episodes[i] for i in part], config, objects) for part in parts)
    return seen, unseen


def losses_of(frames: Frames) -> tuple[str, ...]:
    """Return the losses that frames allow: actions, words if any, and known positions."""
    found = {
        'text': bool(frames.subtasks),
        'where': np.isfinite(frames.positions).any(),
        'goal': any(goal_of(task, frames.objects) is not None for task in frames.tasks),
        'detect': np.isfinite(frames.pixels).any(),
    }
    return ('flow', *(name for name, there in found.items() if there))


class Training:
    """A training. step: next step of the recipe. losses: names of those that are learnt."""

    def __init__(
        self,
        robot: Embodiment,
        config: ModelConfig,
        recipe: RunRecipe,
        seen: Frames,
        unseen: Frames,
        device: str = 'cpu',
        shards: int = 1,
        init: Path | None = None,
    ) -> None:
        """Create the trainer and its data.

        config: a preset's. init: a policy whose weights are the initial ones. Raises ValueError.
        """
        self.losses, self._robot, self._frames = losses_of(seen), robot, len(seen)
        grounded = {'where', 'detect'} & {*self.losses}
        self.recipe = recipe if grounded else replace(recipe, ground_steps=0)
        self._relative = np.array([d.relative for d in robot.actions.dimensions])
        self._tokenizer = tokenizer_of((seen, unseen), config.backbone.vocab_size)
        self.config = self._adapted(config, (seen, unseen))
        kinds, space = max(1, len(seen.objects)), space_of(seen)
        self._trainer = Trainer(
            self.config, self.recipe, kinds, 1, device, shards, self.losses, space
        )
        self._past = ''  # training of the weights before this run
        self._normalizer = measure(seen, self.config, self._relative)
        if init is not None:
            self._trainer.adopt(init, self._tokenizer)
            self._past = f'{Weights(init).metadata.get(TRAINED, "other weights")}, then '
        self._trainer.facts = {
            'start': self._past or 'none',
            'model': self.config.digest,
            'data': seen.digest + unseen.digest,
            'action space': repr(self._relative.tolist()),
        }
        self._seen = self._sampler(seen, recipe.seed)
        self._unseen = self._sampler(unseen, recipe.seed + 1)

    def _adapted(self, config: ModelConfig, parts: Sequence[Frames]) -> ModelConfig:
        config = replace(self._robot.adapted(config), dtype='float32')
        dims = config.state_dim
        longest = max(longest_prompt(frames, self._tokenizer, dims) for frames in parts)
        return replace(config, max_text=max(config.max_text, longest))

    def _sampler(self, frames: Frames, seed: int) -> Sampler:
        how = dict(batch=self.recipe.batch, seed=seed, rtc=self.recipe.rtc)
        return Sampler(frames, self.config, self._tokenizer, self._normalizer, **how)

    @property
    def step(self) -> int:
        return self._trainer.step

    @property
    def is_mute(self) -> bool:
        """Whether the data has no words in addition to the tasks."""
        return 'text' not in self.losses

    def restore(self, out: Path) -> None:
        """Continue from the state that a run left in its folder. Raises ValueError."""
        if (out / STATE).exists():
            self._trainer.restore(out / STATE)

    def batch(self, step: int) -> Batch:
        """Return the batch of a step."""
        return self._seen.batch(step, self.recipe.grounds(step))

    def learn(self, batch: Batch) -> dict[str, float]:
        """Take one step of the recipe and return its losses and metrics.

        Raises ValueError if the gradient is not finite.
        """
        return _named(self._trainer.learn(batch))

    def validate(self) -> dict[str, float]:
        """Return means over held-out episodes, of losses and metrics."""
        ground = self.recipe.grounds(self.step - 1)
        return _named(
            self._trainer.validate(self._unseen.batch(i, ground) for i in range(VALIDATION))
        )

    def keep(self, out: Path) -> None:
        """Save the state, and the averaged weights as a policy, in a folder that may be new."""
        out.mkdir(parents=True, exist_ok=True)
        self._trainer.store(out / STATE)
        robot = self._robot.contract.robot_type
        card = self._trainer.card(
            data=f'{self._frames} recorded frames of {robot}',
            use=f'{robot}, by its contract',
            past=self._past,
        )
        card |= {MAX_ACTION_PREFIX: str(self.recipe.rtc)}
        card |= {SAYS: json.dumps([] if self.is_mute else [SUBTASK])}
        weights = {name: value.bfloat16() for name, value in self._trainer.average.items()}
        save(out / 'policy', weights, self.config, self._normalizer, self._tokenizer, card)


def space_of(frames: Frames) -> tuple[Point, Point]:
    """Return centre and scale of all positions, m."""
    known = frames.positions[np.isfinite(frames.positions).all(-1)].astype(np.float64)
    if not len(known):
        return (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    return tuple(known.mean(0).tolist()), tuple(known.std(0).clip(NARROWEST).tolist())


def _named(values: dict[str, float]) -> dict[str, float]:
    """Rename the colour metric: the class of a patch is an object's name here."""
    return {name.replace('detect_colour', 'detect_name'): v for name, v in values.items()}
