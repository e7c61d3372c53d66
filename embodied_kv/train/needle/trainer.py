"""`python -m embodied_kv.train.needle`: trains a small model to read codes off a page of patches.

A question names a colour; the answer is the three digits of that colour's code, each from another
patch of about a thousand. No actions: words alone, through the model and the prefix of any policy,
so that what is dropped from a long visual cache can be heard in the answers. Beside the words the
tower learns what is in each patch, without which nothing is learnt for long. The page grows: at
first few of its patches are shown, each at its true place. Everything of a step is a function of
the recipe and the step's number.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from math import cos, pi
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from embodied_kv.config import NEEDLE, ModelConfig
from embodied_kv.model.checkpoint import save
from embodied_kv.model.policy import empty_model
from embodied_kv.model.preprocess import Normalizer
from embodied_kv.train.common.initial import init_for_training
from embodied_kv.train.common.journal import Journal
from embodied_kv.train.common.words import train_tokenizer
from embodied_kv.train.needle.pages import draw_pages
from embodied_kv.train.needle.reading import PageBatch, Reader, batch_of, prompt_ids

UNSEEN = 1_000_003  # seed of pages that are not learnt from
AHEAD = 3  # batches that are made while one is learnt from
JUDGED = 4  # batches of unseen pages


@dataclass(frozen=True)
class NeedleRecipe:
    """Metadata `help` is the command line's.

    Stage i takes `steps[i]` steps of `pages[i]` pages, of which `shown[i]` patches are shown.
    """

    shown: tuple[int, ...] = field(
        default=(48, 256, 1024), metadata=dict(help='patches of a page, by stage')
    )
    pages: tuple[int, ...] = field(default=(32, 12, 6), metadata=dict(help='of a step, by stage'))
    steps: tuple[int, ...] = field(default=(1200, 500, 400), metadata=dict(help='of each stage'))
    rate: float = field(default=2e-3, metadata=dict(help='peak learning rate'))
    decay: float = field(default=0.02, metadata=dict(help='weight decay of matrices'))
    clip: float = field(default=1.0, metadata=dict(help='largest norm of a gradient'))
    average: float = field(default=0.99, metadata=dict(help='EMA of the weights that ship'))
    seed: int = field(default=0, metadata=dict(help='of weights and pages'))

    def __post_init__(self) -> None:
        if not len(self.shown) == len(self.pages) == len(self.steps):
            raise ValueError('shown, pages and steps must say as many stages')

    @property
    def total(self) -> int:
        """Steps of all stages."""
        return sum(self.steps)

    def stage(self, step: int) -> int:
        """Which stage a step belongs to; beyond the last step, the last."""
        stage = int(np.searchsorted(np.cumsum(self.steps), step, side='right'))
        return min(stage, len(self.steps) - 1)

    def learning_rate(self, step: int, warm: int = 100) -> float:
        """A linear start, then half a cosine down to a fiftieth."""
        share = 0.02 + 0.98 * (1 + cos(pi * min(1.0, step / max(1, self.total)))) / 2
        return self.rate * min(1.0, (step + 1) / warm) * share


class NeedleTrainer:
    """step: of the recipe, the next one to do. Weights are float32; products run in bfloat16."""

    def __init__(self, config: ModelConfig, recipe: NeedleRecipe) -> None:
        self.config, self.recipe, self.step = config, recipe, 0
        torch.manual_seed(recipe.seed)
        model = empty_model(config, 'cpu')
        init_for_training(model, recipe.seed)
        self.reader = Reader(model)
        self._parameters = list(self.reader.parameters())
        groups = [
            {'params': [p for p in self._parameters if p.ndim > 1], 'weight_decay': recipe.decay},
            {'params': [p for p in self._parameters if p.ndim <= 1], 'weight_decay': 0.0},
        ]
        self._optimiser = torch.optim.AdamW(groups, recipe.rate, (0.9, 0.98), fused=True)
        self.tokenizer = train_tokenizer(config.backbone.vocab_size)
        self.normalizer = Normalizer.identity(config)
        self._prompt = prompt_ids(self.tokenizer, self.normalizer, config)
        self.average = {name: p.detach().clone() for name, p in model.named_parameters()}

    def batch(self, step: int, seed: int | None = None) -> PageBatch:
        """Of a step; seed: of pages that are not the recipe's."""
        recipe, vision = self.recipe, self.config.vision
        stage = recipe.stage(step)
        rng = np.random.default_rng((recipe.seed if seed is None else seed, step))
        side = vision.image_size // vision.patch_size
        pages = draw_pages(rng, recipe.pages[stage], side, recipe.shown[stage])
        return batch_of(pages, self.tokenizer, self._prompt, self.config)

    def _values(self, batch: PageBatch) -> dict[str, Tensor]:
        with torch.autocast('cpu', torch.bfloat16):
            return self.reader(batch)

    def learn(self, batch: PageBatch) -> dict[str, float]:
        """One step of the recipe. Raises ValueError if it went astray."""
        recipe = self.recipe
        for group in self._optimiser.param_groups:
            group['lr'] = recipe.learning_rate(self.step)
        values = self._values(batch)
        self._optimiser.zero_grad()
        (values['text'] + values['kinds']).backward()
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, recipe.clip)
        if not torch.isfinite(norm):
            raise ValueError(f'the gradient of step {self.step} is not finite; lower --rate')
        self._optimiser.step()
        keep = min(recipe.average, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for name, p in self.reader.model.named_parameters():
                self.average[name].lerp_(p, 1 - keep)
        self.step += 1
        return {name: value.item() for name, value in values.items()}

    @torch.no_grad()
    def judge(self) -> dict[str, float]:
        """Means over unseen pages of the stage at hand, with the averaged weights."""
        model, step = self.reader.model, self.step - 1
        live = {name: p.detach().clone() for name, p in model.named_parameters()}
        model.load_state_dict(self.average, strict=False)
        found = [self._values(self.batch(step, UNSEEN + i)) for i in range(JUDGED)]
        model.load_state_dict(live, strict=False)
        return {
            name: sum(values[name].item() for values in found) / JUDGED
            for name in ('text', 'text_exact')
        }

    def save(self, path: Path) -> None:
        """The averaged weights, as a policy."""
        save(
            path,
            {name: value.bfloat16() for name, value in self.average.items()},
            self.config,
            self.normalizer,
            self.tokenizer,
            card={
                'embodied_kv.recipe': repr(self.recipe),
                'embodied_kv.trained': f'{self.step} steps, EMA weights',
                'embodied_kv.data': 'drawn pages',
                'embodied_kv.use': 'benchmarks of cache compression: it reads codes off pages; '
                'its actions mean nothing',
                'license': 'Apache-2.0',
            },
        )


def ahead(trainer: NeedleTrainer) -> Iterator[PageBatch]:
    """The batches of the steps that are left; a thread of its own makes them."""
    with ThreadPoolExecutor(1) as pool:
        steps = range(trainer.step, trainer.recipe.total)
        futures = [pool.submit(trainer.batch, step) for step in steps[:AHEAD]]
        for step in steps:
            batch = futures.pop(0).result()
            if step + AHEAD < steps.stop:
                futures.append(pool.submit(trainer.batch, step + AHEAD))
            yield batch


def train(out: Path, recipe: NeedleRecipe, minutes: float, config: ModelConfig = NEEDLE) -> None:
    """The whole recipe, or as much as the minutes allow; what is learnt goes to `out`/policy."""
    torch.set_num_threads(1)
    began = time.monotonic()
    trainer = NeedleTrainer(config, recipe)
    out.mkdir(parents=True, exist_ok=True)
    journal = Journal(out / 'log.csv')
    for batch in ahead(trainer):
        values = trainer.learn(batch)
        if trainer.step % 20 == 0:
            journal.write(trainer.step, 'seen', values)
        over = time.monotonic() - began > 60 * minutes
        if trainer.step % 100 == 0 or trainer.step == recipe.total or over:
            spent = dict(wall=time.monotonic() - began, processor=time.process_time())
            figures = {f'{name}_min': seconds / 60 for name, seconds in spent.items()}
            journal.write(trainer.step, 'unseen', trainer.judge() | figures)
            print(journal.last(), flush=True)
            trainer.save(out / 'policy')
        if over:
            break
    journal.plot(out / 'curves.png')


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--out', type=Path, default=Path('out/train/needle'), help='folder')
    parser.add_argument('--minutes', type=float, default=600.0, help='that this may take')
    for f in fields(NeedleRecipe):
        many = isinstance(f.default, tuple)
        kind = type(f.default[0] if many else f.default)
        option = dict(type=kind, default=f.default, nargs='+' if many else None)
        parser.add_argument(f'--{f.name}', **option, **f.metadata)
    arguments = parser.parse_args()
    given = {f.name: getattr(arguments, f.name) for f in fields(NeedleRecipe)}
    try:
        recipe = NeedleRecipe(
            **{name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}
        )
        train(arguments.out, recipe, arguments.minutes)
    except ValueError as error:
        parser.exit(2, f'train.needle: {error}\n')


if __name__ == '__main__':
    main()
