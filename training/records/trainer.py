"""The deeper judge's recipe, a step of it, and a run that can be interrupted and continued.

At first only the auxiliary targets of attributes are trained (`lessons`), then also the answers;
prompts grow. Training uses plain causal prefill only, and never KV reuse. A step is a function of
the recipe and the step's number.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from embodied_kv.config import BackboneConfig
from embodied_kv.model.planner import Planner, PlannerConfig
from embodied_kv.model.weights import Weights
from training.common import loop
from training.common.learner import TRAINED, Learner
from training.common.recipe import GrowingRecipe, option
from training.judge.file import load_judge, save_judge
from training.judge.lessons import answers, read
from training.records.gate import gate, rates
from training.records.lessons import AuxiliaryHeads, RecordBatch, draw_batch
from training.records.records import SEGMENTS, TOKENS, VOCABULARY

UNSEEN = 1_000_003  # seed of problems that are not learnt from
VALIDATED, EXAMINED = 20, 200  # problems of a size: at each validation, at the end of a run
# As in the smaller judge, more than half of a head's rotary angles hardly turn over a prompt.
RECORDS = PlannerConfig(
    'records',
    BackboneConfig(
        width=64,
        layers=8,
        heads=2,
        kv_heads=2,
        head_dim=32,
        mlp=128,
        vocab_size=VOCABULARY,
        rope_theta=1_000_000.0,
    ),
    max_tokens=256,
)


@dataclass(frozen=True)
class RecordsRecipe(GrowingRecipe):
    """Numbers of a training, with `help` as command-line help. Shares are of all steps."""

    MOST: ClassVar[int] = SEGMENTS[1]
    steps: int = option(20_000, 'of the whole run')
    tokens: int = option(4096, 'of memory in a step, in all prompts')
    questions: int = option(12, 'of a prompt, at most')
    short: int = option(6, 'most records of a prompt at the start')
    ask: float = option(0.1, 'share after which answers are learnt')
    init: str = option('', 'file of a judge whose weights the run starts from')

    def learning_rate(self, step: int, warm: int = 100) -> float:
        """Return the rate, with a longer warm-up."""
        return super().learning_rate(step, warm)

    def batch(self, step: int) -> RecordBatch:
        """Return the prompts of a step."""
        rng = np.random.default_rng((self.seed, step))
        segments = int(rng.integers(SEGMENTS[0], self.longest(step) + 1))
        prompts = max(1, self.tokens // (TOKENS * segments))
        return draw_batch(rng, prompts, segments, self.questions)


class RecordsTrainer(Learner):
    """Trains the deeper judge. step: next step of the recipe."""

    def __init__(self, config: PlannerConfig, recipe: RecordsRecipe) -> None:
        torch.manual_seed(recipe.seed)
        self.model, self._heads = Planner(config), AuxiliaryHeads(config.backbone.width)
        init_small(self.model, recipe.seed)
        self._past = ''
        if recipe.init:
            self.model.load_state_dict(load_judge(Path(recipe.init)).state_dict())
            self._past = f'{Weights(recipe.init).metadata.get(TRAINED, "unknown")}, then '
        super().__init__(nn.ModuleList([self.model, self._heads]), self.model, recipe)

    def losses(self, batch: RecordBatch) -> dict[str, Tensor]:
        """Return losses by name: of the answers, and of each auxiliary target."""
        layers = read(self.model, batch.ids, batch.view)
        logits = answers(self.model, layers, batch.view)
        answer = F.cross_entropy(logits.flatten(0, 1), batch.answer.flatten())
        return {'answer': answer, **self._heads(self.model, layers, batch)}

    def learn(self, batch: RecordBatch) -> dict[str, float]:
        """Take one step of the recipe and return its losses.

        Raises ValueError if the gradient is not finite.
        """
        values = self.losses(batch)
        asks = self.recipe.asks(self.step)
        self.descend(sum(v for name, v in values.items() if name != 'answer' or asks))
        return {name: value.item() for name, value in values.items()}

    def validate(self) -> dict[str, float]:
        """Return the accuracies of full prefill and full reuse on unseen problems.

        Weights are the averaged ones.
        """
        with self.averaged():
            full, reuse = rates(self.model, VALIDATED, UNSEEN)
        return dict(full=full, reuse=reuse)

    def keep(self, out: Path) -> None:
        """Save what is shipped, and everything that the next step depends on."""
        card = self.card(
            data='drawn records',
            use='comparisons of ways to reuse KV; it knows records and nothing else',
            past=self._past,
        )
        save_judge(out / 'records.safetensors', self.average, self.model.config, card)
        self.store(out / 'state.safetensors')


@torch.no_grad()
def init_small(model: Planner, seed: int) -> None:
    """Fill matrices with small random numbers.

    Those that write to the residual stream are smaller, by depth.
    """
    generator, b = torch.Generator().manual_seed(seed), model.config.backbone
    for name, p in model.named_parameters():
        if p.ndim > 1:
            last = name.endswith(('.o.weight', '.down.weight'))
            p.normal_(0, (p.shape[1] * (2 * b.layers if last else 1)) ** -0.5, generator=generator)
        else:
            p.zero_()
    model.backbone.norm.weight.fill_(-0.9)  # scales logits to a tenth


def train(
    out: Path, recipe: RecordsRecipe, minutes: float, config: PlannerConfig = RECORDS
) -> None:
    """Run the recipe, or as much as the minutes allow, from the state in `out` if there is one."""
    torch.set_num_threads(1)
    trainer = RecordsTrainer(config, recipe)
    out.mkdir(parents=True, exist_ok=True)
    if (out / 'state.safetensors').exists():
        trainer.restore(out / 'state.safetensors')
    lessons = (recipe.batch(step) for step in range(trainer.step, recipe.steps))
    loop.run(trainer, lessons, recipe.steps, out, minutes)
    with trainer.averaged():
        found = gate(trainer.model, EXAMINED, UNSEEN)
    print(f'{out}: step {trainer.step} of {recipe.steps}; the gate: {found.said()}')
