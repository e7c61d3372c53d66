"""The reader's recipe, a step of it, and a run: learning to read codes off a page of patches.

A question names a colour; the answer is the three digits of that colour's code, each from another
patch of about a thousand. Only words are trained, with the model and the prefix of any policy, so
that answers show the effect of tokens that are dropped from a long visual cache. In addition the
vision tower learns the content of each patch; without that the model learns nothing for a long
time. The page grows: at first few of its patches are shown, each at its true position. A step is a
function of the recipe and the step's number.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from embodied_kv.config import NEEDLE, ModelConfig
from embodied_kv.model.checkpoints.own import save
from embodied_kv.model.pi05 import Pi05
from embodied_kv.model.processing.normalizer import Normalizer
from training.common import loop
from training.common.initial import init_for_training
from training.common.learner import Learner
from training.common.prefetch import prefetched
from training.common.recipe import Recipe, cooling, option, stage_of
from training.common.words import train_tokenizer
from training.needle.pages import Pages, draw_pages
from training.needle.reading import PageBatch, Reader, batch_of, prompt_ids

UNSEEN = 1_000_003  # seed of pages that are not learnt from
VALIDATED = 4  # batches of unseen pages


@dataclass(frozen=True)
class NeedleRecipe(Recipe):
    """Numbers of a training. The metadata `help` of a field is its command-line help.

    Stage i takes `steps[i]` steps of `pages[i]` pages, of which `shown[i]` patches are shown.
    """

    shown: tuple[int, ...] = option((48, 256, 1024), 'patches of a page, by stage')
    pages: tuple[int, ...] = option((32, 12, 6), 'of a step, by stage')
    steps: tuple[int, ...] = option((1200, 500, 400), 'of each stage')

    def __post_init__(self) -> None:
        if not len(self.shown) == len(self.pages) == len(self.steps):
            raise ValueError('shown, pages and steps must say as many stages')

    @property
    def total(self) -> int:
        """Number of steps of all stages."""
        return sum(self.steps)

    def stage(self, step: int) -> int:
        """Return the stage that a step belongs to; after the last step, the last stage."""
        return stage_of(self.steps, step)

    def learning_rate(self, step: int, warm: int = 100) -> float:
        """Return the rate: linear warm-up, then half a cosine down to 1/50."""
        return self.rate * min(1.0, (step + 1) / warm) * cooling(step / max(1, self.total))


class NeedleTrainer(Learner):
    """Trains a reader. step: next step of the recipe.

    Weights are float32; products run in bfloat16.
    """

    def __init__(self, config: ModelConfig, recipe: NeedleRecipe) -> None:
        self.config = config
        torch.manual_seed(recipe.seed)
        model = Pi05.empty(config, 'cpu')
        init_for_training(model, recipe.seed)
        self.reader = Reader(model)
        super().__init__(self.reader, model, recipe)
        self.tokenizer = train_tokenizer(config.backbone.vocab_size)
        self.normalizer = Normalizer.identity(config)
        self._prompt = prompt_ids(self.tokenizer, self.normalizer, config)

    def batch(self, step: int, seed: int | None = None) -> PageBatch:
        """Return the batch of a step. seed: of other pages than the recipe's, or None."""
        recipe, vision = self.recipe, self.config.vision
        stage = recipe.stage(step)
        rng = np.random.default_rng((recipe.seed if seed is None else seed, step))
        side = vision.image_size // vision.patch_size
        pages = draw_pages(rng, recipe.pages[stage], side, recipe.shown[stage])
        return self._asked(pages, rng)

    def _asked(self, pages: Pages, rng: np.random.Generator) -> PageBatch:
        """Return these pages with the questions that are learnt. rng: continues the step's."""
        return batch_of(pages, self.tokenizer, self._prompt, self.config)

    def _values(self, batch: PageBatch) -> dict[str, Tensor]:
        with torch.autocast('cpu', torch.bfloat16):
            return self.reader(batch)

    def learn(self, batch: PageBatch) -> dict[str, float]:
        """Take one step of the recipe and return its losses.

        Raises ValueError if the gradient is not finite.
        """
        values = self._values(batch)
        self.descend(values['text'] + values['kinds'])
        return {name: value.item() for name, value in values.items()}

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Return means over unseen pages of the current stage, with the averaged weights."""
        with self.averaged():
            unseen = (self.batch(self.step - 1, UNSEEN + i) for i in range(VALIDATED))
            found = [self._values(batch) for batch in unseen]
        return {
            name: sum(values[name].item() for values in found) / VALIDATED
            for name in ('text', 'text_exact')
        }

    def save(self, path: Path) -> None:
        """Save the averaged weights as a policy."""
        save(
            path,
            {name: value.bfloat16() for name, value in self.average.items()},
            self.config,
            self.normalizer,
            self.tokenizer,
            self.card(
                data='drawn pages',
                use='benchmarks of cache compression: it reads codes off pages; its actions mean '
                'nothing',
            ),
        )

    def keep(self, out: Path) -> None:
        self.save(out / 'policy')


def train(out: Path, recipe: NeedleRecipe, minutes: float, config: ModelConfig = NEEDLE) -> None:
    """Run the recipe, or as much as the minutes allow; save the policy to `out`/policy."""
    train_by(NeedleTrainer(config, recipe), out, minutes)


def train_by(trainer: NeedleTrainer, out: Path, minutes: float) -> None:
    """Run a trainer's recipe on one thread, or as much as the minutes allow; save to `out`."""
    torch.set_num_threads(1)
    total = trainer.recipe.total
    out.mkdir(parents=True, exist_ok=True)
    batches = prefetched(trainer.batch, trainer.step, total)
    loop.run(trainer, batches, total, out, minutes)
