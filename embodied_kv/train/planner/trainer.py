"""The planner's recipe, a step of it, and a run: learning from drawn households.

A prompt is a household's memory; many questions stand behind it, each seeing the prompt and
itself, and the loss is on their answers. Beside it the last token of each segment, and of each
name in a question, learns where its thread leads, through what has been read before. The prompts
grow from stage to stage. Everything of a step is a function of the recipe and the step's number; a
run goes on where the last one in its folder ended.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from embodied_kv.model.planner import Planner
from embodied_kv.model.planner_checkpoint import save_planner
from embodied_kv.model.planner_config import PLANNER_TABLETOP, PlannerConfig
from embodied_kv.sim.household import SEGMENTS
from embodied_kv.train.common import loop
from embodied_kv.train.common.learner import Learner
from embodied_kv.train.common.recipe import Recipe, option, stage_of
from embodied_kv.train.planner.corpus import planner_tokenizer
from embodied_kv.train.planner.lessons import Lesson, LessonSampler, tokens_of
from embodied_kv.train.planner.reading import PlannerObjective

STATE = 'state.safetensors'  # of a run, in its folder
UNSEEN = 1_000_003  # seed of households that are not learnt from
VALIDATED = 6  # lessons of them, of sizes from the fewest segments of a stage to the most


@dataclass(frozen=True)
class PlannerRecipe(Recipe):
    """Metadata `help` is the command line's. Stage i takes `steps[i]` steps."""

    most: tuple[int, ...] = option((16, 40, 80), 'segments of a prompt, by stage')
    steps: tuple[int, ...] = option((800, 1000, 3600), 'of each stage')
    tokens: int = option(4000, 'of a step, about')
    cool: float = option(0.25, 'share of steps, at the end, to zero')
    threads: float = option(0.5, 'weight of the loss on threads')
    middle: int = option(4, 'layers after which they are known')

    def __post_init__(self) -> None:
        if len(self.most) != len(self.steps):
            raise ValueError('most and steps must say as many stages')

    @property
    def total(self) -> int:
        """Steps of all stages."""
        return sum(self.steps)

    def segments(self, step: int) -> tuple[int, int]:
        """Fewest and most of a prompt; beyond the last step, of the last stage."""
        return SEGMENTS[0], self.most[stage_of(self.steps, step)]

    def learning_rate(self, step: int, warm: int = 100) -> float:
        """A linear start, a plateau, and a line to zero."""
        left = (self.total - step) / max(1.0, self.cool * self.total)
        return self.rate * min(1.0, (step + 1) / warm, max(0.0, left))


class PlannerTrainer(Learner):
    """step: of the recipe, the next one to do. Weights are float32; products run in bfloat16."""

    def __init__(self, config: PlannerConfig, recipe: PlannerRecipe) -> None:
        self.config = config
        torch.manual_seed(recipe.seed)
        planner = Planner(config)
        _init(planner)
        self.objective = PlannerObjective(planner, recipe.middle)
        self.tokenizer = planner_tokenizer(config.backbone.vocab_size)
        self._sampler = LessonSampler(self.tokenizer)
        super().__init__(self.objective, planner, recipe)

    def lesson(self, step: int) -> Lesson:
        """Of a step: prompts of one size, as many as its tokens allow."""
        rng = np.random.default_rng((self.recipe.seed, step))
        fewest, most = self.recipe.segments(step)
        segments = int(rng.integers(fewest, most, endpoint=True))
        prompts = max(2, self.recipe.tokens // tokens_of(segments))
        return self._sampler.lesson(rng, prompts, segments)

    def learn(self, lesson: Lesson) -> dict[str, float]:
        """One step of the recipe. Raises ValueError if it went astray."""
        values = self._values(lesson)
        self.descend(values['answers'] + self.recipe.threads * values['threads'])
        return {name: value.float().mean().item() for name, value in values.items()}

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Shares of exact answers on unseen households of the stage at hand, by kind and hops.

        With the averaged weights.
        """
        fewest, most = self.recipe.segments(self.step - 1)
        found = defaultdict(list)
        with self.averaged():
            for i, segments in enumerate(np.linspace(fewest, most, VALIDATED, dtype=int).tolist()):
                lesson = self._sampler.lesson(np.random.default_rng((UNSEEN, i)), 6, segments)
                right = self._values(lesson)['exact'].tolist()
                for (kind, hops), exact in zip(lesson.truths, right, strict=True):
                    found[f'{kind}_{hops}'].append(exact)
                    found['exact'].append(exact)
        return {name: float(np.mean(values)) for name, values in sorted(found.items())}

    def _values(self, lesson: Lesson) -> dict[str, Tensor]:
        with torch.autocast('cpu', torch.bfloat16):
            return self.objective(lesson)

    def save(self, path: Path) -> None:
        """The averaged weights, as a planner."""
        save_planner(
            path,
            {name: value.bfloat16() for name, value in self.average.items()},
            self.config,
            self.tokenizer,
            self.card(
                data='drawn households',
                use='benchmarks of KV memory: it answers questions on drawn households, and plans '
                'their next steps; not for a real robot',
            ),
        )

    def keep(self, out: Path) -> None:
        self.store(out / STATE)
        self.save(out / 'planner')

    def check(self, path: Path, recipe: dict[str, object]) -> None:
        """Later stages may be other ones; the seed may not. Raises ValueError."""
        if recipe['seed'] != self.recipe.seed:
            raise ValueError(f'{path} has seed {recipe["seed"]}: give another --out')


@torch.no_grad()
def _init(planner: Planner) -> None:
    """Branches' last matrices smaller by sqrt(2 layers), and the logits at a tenth."""
    layers = planner.config.backbone.layers
    for name, p in planner.named_parameters():
        if p.ndim > 1:
            last = name.endswith(('.o.weight', '.down.weight'))
            p.normal_(0, (p.shape[1] * (2 * layers if last else 1)) ** -0.5)
    planner.backbone.norm.weight.fill_(-0.9)


def train(
    out: Path, recipe: PlannerRecipe, minutes: float, config: PlannerConfig = PLANNER_TABLETOP
) -> None:
    """The whole recipe, or as much as the minutes allow; what is learnt goes to `out`/planner."""
    torch.set_num_threads(1)
    trainer = PlannerTrainer(config, recipe)
    out.mkdir(parents=True, exist_ok=True)
    if (out / STATE).exists():
        trainer.restore(out / STATE)
    lessons = (trainer.lesson(step) for step in range(trainer.step, recipe.total))
    loop.run(trainer, lessons, recipe.total, out, minutes)
