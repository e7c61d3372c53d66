"""The judge's recipe, a step of it, and a run: learning to follow chains over segments.

Methods of KV reuse are compared by how much of the judge's accuracy they keep. The judge learns
with plain causal prefill only, in minutes on one core. A step is a function of the recipe and the
step's number. At first only the auxiliary targets of segments are trained (`lessons`), then also
the answers. With answers from the start, the questions themselves would learn to follow the
chains, and the judge would distinguish fewer methods. Prompts grow.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from embodied_kv.model.planner import Planner, PlannerConfig
from embodied_kv.progress import Progress
from training.common.learner import Learner
from training.common.recipe import GrowingRecipe, option
from training.judge.chains import SEGMENTS
from training.judge.exam import exam, show, total
from training.judge.file import JUDGE, save_judge
from training.judge.lessons import (
    AuxiliaryHeads,
    ChainBatch,
    answers,
    draw_chain_batch,
    read,
)
from training.judge.start import init_judge

EXAM = 1_000_003  # seed of problems that are not learnt from


@dataclass(frozen=True)
class JudgeRecipe(GrowingRecipe):
    """Numbers of a training, with `help` as command-line help. Shares are of all steps."""

    MOST: ClassVar[int] = SEGMENTS[1]
    segments: int = option(896, 'segments of a step, in all prompts')
    questions: int = option(16, 'of a prompt, at most')
    decay: float = option(0.01, 'weight decay of matrices')

    def batch(self, step: int) -> ChainBatch:
        """Return the prompts of a step."""
        rng = np.random.default_rng((self.seed, step))
        segments = int(rng.integers(SEGMENTS[0], self.longest(step) + 1))
        return draw_chain_batch(rng, max(1, self.segments // segments), segments, self.questions)


class JudgeTrainer(Learner):
    """Trains a judge. step: next step of the recipe."""

    def __init__(self, config: PlannerConfig, recipe: JudgeRecipe) -> None:
        torch.manual_seed(recipe.seed)
        self.model, self._heads = Planner(config), AuxiliaryHeads(config.backbone.width)
        init_judge(self.model, recipe.seed)
        super().__init__(nn.ModuleList([self.model, self._heads]), self.model, recipe)

    def losses(self, batch: ChainBatch) -> dict[str, Tensor]:
        """Return losses by name: of the answers, and of each auxiliary target."""
        view = batch.view
        layers = read(self.model, batch.ids, view)
        logits = answers(self.model, layers, view)
        answer = F.cross_entropy(logits.flatten(0, 1), batch.answer.flatten())
        return {'answer': answer, **self._heads(self.model, layers, batch)}

    def learn(self) -> dict[str, float]:
        """Take one step of the recipe and return its losses.

        Raises ValueError if the gradient is not finite.
        """
        recipe = self.recipe
        values = self.losses(recipe.batch(self.step))
        learnt = [v for name, v in values.items() if name != 'answer' or recipe.asks(self.step)]
        self.descend(sum(learnt))
        return {name: value.item() for name, value in values.items()}

    def shipped(self) -> Planner:
        """Return a copy with the averaged weights."""
        model = Planner(self.model.config).requires_grad_(False).eval()
        model.load_state_dict(self.average)
        return model


def train(out: Path, recipe: JudgeRecipe, problems: int, config: PlannerConfig = JUDGE) -> None:
    """Run the whole recipe, save the weights to `out`, and print the results of an exam.

    problems: of each cell of the exam.
    """
    torch.set_num_threads(1)
    began, worked = time.monotonic(), time.process_time()
    trainer = JudgeTrainer(config, recipe)
    with Progress('steps', recipe.steps, trainer.step) as progress:
        for _ in progress.track(range(trainer.step, recipe.steps)):
            values = trainer.learn()
            if trainer.step % 100 == 0:
                losses = ', '.join(f'{name} {value:.3f}' for name, value in values.items())
                print(f'step {trainer.step}: {losses}', flush=True)
    minutes = [(time.monotonic() - began) / 60, (time.process_time() - worked) / 60]
    model = trainer.shipped()
    save_judge(
        out,
        model.state_dict(),
        config,
        trainer.card(
            data='drawn chains',
            use='comparisons of ways to reuse KV; it knows chains and nothing else',
            more=f', {minutes[0]:.1f} minutes, {minutes[1]:.1f} of one core',
        ),
    )
    print(f'{out}: {recipe.steps} steps, {minutes[0]:.1f} minutes, {minutes[1]:.1f} of one core')
    for title, isolated in (('full prefill', False), ('full reuse', True)):
        rows = exam(model, problems, EXAM, isolated=isolated)
        show(f'{title}: {100 * total(rows)["rate"]:.2f}% of all', rows)
