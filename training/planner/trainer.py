"""The planner's recipe, a step of it, and a run: learning from drawn households and missions.

A prompt is the memory of a household, or of a table with a mission; many questions follow it, each
of which sees the prompt and itself, and the loss is on their answers. In addition the last token
of each segment, and of each name in a question, learns where its thread leads, through what has
been read before; and words of a mission learn which things they mean. The prompts grow from stage
to stage. A step is a function of the recipe and the step's number; a run continues the last one in
its folder.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from embodied_kv.model.dtype import cpu_multiplies_bfloat16
from embodied_kv.model.planner import PLANNER_MISSIONS, Planner, PlannerConfig
from embodied_kv.model.planner_checkpoint import load_planner, save_planner
from embodied_kv.model.weights import Weights
from training.common import loop
from training.common.initial import retell
from training.common.learner import TRAINED, Learner
from training.common.recipe import Recipe, option, stage_of
from training.planner import lessons, mission_lessons
from training.planner.corpus import planner_tokenizer, whole_corpus
from training.planner.household import SEGMENTS
from training.planner.lessons import LessonSampler
from training.planner.mission_draws import RECORDS
from training.planner.mission_lessons import MissionSampler
from training.planner.pages import Lesson
from training.planner.reading import PlannerObjective

STATE = 'state.safetensors'  # of a run, in its folder
UNSEEN = 1_000_003  # seed of households that are not learnt from
VALIDATED = 6  # lessons of each world, of sizes from the smallest of a stage to the largest
PROMPTS = 4  # prompts of such a lesson
BRANCH_ENDS = ('.o.weight', '.down.weight')  # last matrices of a layer's branches


@dataclass(frozen=True)
class PlannerRecipe(Recipe):
    """Numbers of a training. The metadata `help` of a field is its command-line help.

    Stage i takes `steps[i]` steps.
    """

    most: tuple[int, ...] = option((16, 40, 80), 'segments of a household, by stage')
    records: tuple[int, ...] = option((8, 20, 40), 'records of a history, by stage')
    steps: tuple[int, ...] = option((800, 1000, 3600), 'of each stage')
    missions: float = option(0.7, 'share of steps that are about missions')
    tokens: int = option(4000, 'of a step, about')
    cool: float = option(0.25, 'share of steps, at the end, to zero')
    threads: float = option(0.5, 'weight of the loss on threads')
    meant: float = option(1.0, 'weight of the loss on what is meant')
    middle: int = option(4, 'layers after which threads are known')
    late: int = option(6, 'layers after which it is known what is meant')

    def __post_init__(self) -> None:
        if not len(self.most) == len(self.steps) == len(self.records):
            raise ValueError('most, records and steps must say as many stages')

    @property
    def total(self) -> int:
        """Number of steps of all stages."""
        return sum(self.steps)

    def segments(self, step: int) -> tuple[int, int]:
        """Return fewest and most segments of a prompt.

        After the last step they are those of the last stage.
        """
        return SEGMENTS[0], self.most[stage_of(self.steps, step)]

    def history(self, step: int) -> tuple[int, int]:
        """Return fewest and most records of a history, in the same way."""
        return RECORDS[0], self.records[stage_of(self.steps, step)]

    def learning_rate(self, step: int, warm: int = 100) -> float:
        """Return the rate: linear warm-up, a plateau, and a linear decay to zero."""
        left = (self.total - step) / max(1.0, self.cool * self.total)
        return self.rate * min(1.0, (step + 1) / warm, max(0.0, left))


class PlannerTrainer(Learner):
    """Trains a planner. step: next step of the recipe.

    Weights are float32; products run in bfloat16 where the CPU multiplies it natively.
    """

    def __init__(self, config: PlannerConfig, recipe: PlannerRecipe) -> None:
        self.config = config
        torch.manual_seed(recipe.seed)
        planner = Planner(config)
        _init(planner)
        self.objective = PlannerObjective(planner, recipe.middle, recipe.late)
        self.tokenizer = planner_tokenizer(config.backbone.vocab_size, whole_corpus())
        self._households = LessonSampler(self.tokenizer)
        self._missions = MissionSampler(self.tokenizer)
        self._past, self._bfloat16 = '', cpu_multiplies_bfloat16()
        super().__init__(self.objective, planner, recipe)

    @torch.no_grad()
    def adopt(self, path: Path) -> None:
        """Start from a planner that may know fewer words and have fewer layers.

        The layers that it lacks are inserted after layer `middle`, whose output the threads are
        read from, and change nothing at first. Raises ValueError.
        """
        found, planner = load_planner(path), self.objective.planner
        here, there = planner.config.backbone, found.config.backbone
        if replace(there, layers=here.layers, vocab_size=here.vocab_size) != here:
            raise ValueError(f'{path} has other dimensions than {self.config.name}')
        own, middle = [*found.model.backbone.layers], self.recipe.middle
        own[middle:middle] = [None] * (here.layers - there.layers)
        for layer, known in zip(planner.backbone.layers, own, strict=True):
            if known:
                layer.load_state_dict(known.state_dict())
            else:
                for name, p in layer.named_parameters():
                    p.mul_(not f'.{name}'.endswith(BRANCH_ENDS))
        planner.backbone.norm.load_state_dict(found.model.backbone.norm.state_dict())
        embed = planner.backbone.embed.weight
        embed[: there.vocab_size] = found.model.backbone.embed.weight
        retell(embed, found.tokenizer, self.tokenizer)
        for name, p in planner.named_parameters():
            self.average[name].copy_(p)
        self._past = f'{Weights(path).metadata.get(TRAINED, "other weights")}, then '

    def lesson(self, step: int) -> Lesson:
        """Return the lesson of a step: prompts of one size, as many as its tokens allow."""
        rng = np.random.default_rng((self.recipe.seed, step))
        if rng.random() < self.recipe.missions:
            records = int(rng.integers(*self.recipe.history(step), endpoint=True))
            prompts = max(2, self.recipe.tokens // mission_lessons.tokens_of(records))
            return self._missions.lesson(rng, prompts, records)
        segments = int(rng.integers(*self.recipe.segments(step), endpoint=True))
        prompts = max(2, self.recipe.tokens // lessons.tokens_of(segments))
        return self._households.lesson(rng, prompts, segments)

    def learn(self, lesson: Lesson) -> dict[str, float]:
        """Take one step of the recipe and return its losses and shares.

        Raises ValueError if the gradient is not finite.
        """
        values = self._values(lesson)
        beside = self.recipe.threads * values['threads'] + self.recipe.meant * values['meant']
        self.descend(values['answers'] + beside)
        return {name: value.float().mean().item() for name, value in values.items()}

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Return shares of exact answers on unseen draws of the current stage, by kind and hops.

        Weights are the averaged ones.
        """
        found = defaultdict(list)
        with self.averaged():
            for lesson in self._unseen():
                values = self._values(lesson)
                whole = 'exact_missions' if len(lesson.meant_at) else 'exact_households'
                found['understood'] += [values['understood'].item()] * bool(len(lesson.meant_at))
                for (kind, hops), right in zip(lesson.truths, values['exact'], strict=True):
                    for name in (f'{kind.replace(" ", "_")}_{hops}', whole, 'exact'):
                        found[name].append(right.item())
        return {name: float(np.mean(values)) for name, values in sorted(found.items())}

    def _unseen(self) -> Iterator[Lesson]:
        last = self.step - 1
        sizes = (
            (self.recipe.segments(last), self._households),
            (
                self.recipe.history(last),
                self._missions,
            ),
        )
        for (fewest, most), sampler in sizes:
            for i, size in enumerate(np.linspace(fewest, most, VALIDATED, dtype=int).tolist()):
                yield sampler.lesson(np.random.default_rng((UNSEEN, i)), PROMPTS, size)

    def _values(self, lesson: Lesson) -> dict[str, Tensor]:
        with torch.autocast('cpu', torch.bfloat16, enabled=self._bfloat16):
            return self.objective(lesson)

    def save(self, path: Path) -> None:
        """Save the averaged weights as a planner."""
        save_planner(
            path,
            {name: value.bfloat16() for name, value in self.average.items()},
            self.config,
            self.tokenizer,
            self.card(
                data='drawn households, and missions on drawn tables',
                use='the simulated tabletop of embodied_kv, and benchmarks of KV memory: it plans '
                'missions, and answers questions on drawn households; not for a real robot',
                past=self._past,
            ),
        )

    def keep(self, out: Path) -> None:
        self.store(out / STATE)
        self.save(out / 'planner')

    def check(self, path: Path, recipe: dict[str, object]) -> None:
        """Raise ValueError if the seed differs; later stages may differ."""
        if recipe['seed'] != self.recipe.seed:
            raise ValueError(f'{path} has seed {recipe["seed"]}: give another --out')


@torch.no_grad()
def _init(planner: Planner) -> None:
    """Fill matrices: the last ones of branches are smaller by sqrt(2 layers), logits a tenth."""
    layers = planner.config.backbone.layers
    for name, p in planner.named_parameters():
        if p.ndim > 1:
            last = name.endswith(BRANCH_ENDS)
            p.normal_(0, (p.shape[1] * (2 * layers if last else 1)) ** -0.5)
    planner.backbone.norm.weight.fill_(-0.9)


def train(
    out: Path,
    recipe: PlannerRecipe,
    minutes: float,
    config: PlannerConfig = PLANNER_MISSIONS,
    init: Path | None = None,
) -> None:
    """Run the recipe, or as much as the minutes allow; save the planner to `out`/planner.

    init: a planner to start from, None for random weights.
    """
    torch.set_num_threads(1)
    trainer = PlannerTrainer(config, recipe)
    if init:
        trainer.adopt(init)
    out.mkdir(parents=True, exist_ok=True)
    if (out / STATE).exists():
        trainer.restore(out / STATE)
    drawn = (trainer.lesson(step) for step in range(trainer.step, recipe.total))
    loop.run(trainer, drawn, recipe.total, out, minutes)
