"""`python -m embodied_kv.train.needle`: trains a small model to read codes off a page of patches.

A question names a colour; the answer is the three digits of that colour's code, each from another
patch of about a thousand. Text alone is learnt, through the model and the prefix of any policy, so
that what is dropped from a long visual cache can be seen in the answers. The page grows: at first
few of its patches are shown, each at its true place. Everything of a step is a function of the
recipe and the step's number.
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
from embodied_kv.model.pi05 import Pi05
from embodied_kv.model.policy import empty_model
from embodied_kv.model.preprocess import Normalizer, prompt_tokens
from embodied_kv.model.tokenizer import Tokenizer
from embodied_kv.sim.scene import COLOURS
from embodied_kv.train.initial import init_for_training
from embodied_kv.train.journal import Journal
from embodied_kv.train.needle_pages import DIGITS, Pages, draw_pages
from embodied_kv.train.objective import Objective, text_losses
from embodied_kv.train.segments import Segments
from embodied_kv.train.views import PrefixTape
from embodied_kv.train.words import train_tokenizer

INSTRUCTION = 'read'  # the same for every page: the prompt does not know what will be asked
UNSEEN = 1_000_003  # seed of pages that are not learnt from
AHEAD = 3  # batches that are made while one is learnt from


@dataclass(frozen=True)
class NeedleRecipe:
    """Metadata `help` is the command line's.

    Stage i shows `shown[i]` patches of a page, on `pages[i]` pages a step, for `steps[i]` steps.
    """

    shown: tuple[int, ...] = field(
        default=(64, 256, 1024), metadata=dict(help='patches of a page, by stage')
    )
    pages: tuple[int, ...] = field(default=(48, 16, 6), metadata=dict(help='of a step, by stage'))
    steps: tuple[int, ...] = field(default=(1500, 600, 400), metadata=dict(help='of each stage'))
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
        ends = np.cumsum(self.steps)
        return min(int(np.searchsorted(ends, step, side='right')), len(self.steps) - 1)

    def learning_rate(self, step: int, warm: int = 100) -> float:
        """A linear start, then half a cosine down to a fiftieth."""
        share = 0.02 + 0.98 * (1 + cos(pi * min(1.0, step / max(1, self.total)))) / 2
        return self.rate * min(1.0, (step + 1) / warm) * share


def question(colour: str) -> str:
    return f'What is {colour}?'


def answer(code: np.ndarray) -> str:
    """Its tokens are the digits: with the question's ' ', as `Segments.say` puts it."""
    return ' '.join(map(str, code))


def prompt_ids(tokenizer: Tokenizer, normalizer: Normalizer, config: ModelConfig) -> list[int]:
    """As a policy makes them of the instruction and a state of zeros."""
    state = normalizer.state(np.zeros(config.state_dim, np.float32))
    return prompt_tokens(tokenizer, INSTRUCTION, state, config.max_text)[0]


@dataclass(frozen=True, eq=False)
class PageBatch:
    """Pages as tensors, their prompts, and every colour's question in the tail.

    images: uint8 [B, S, S, 3]. shown: long [B, k]. prompt: long [B, P]. tail, segment, offset,
    answer: as in `objective.Batch`; offsets count the patches that are not shown.
    """

    images: Tensor
    shown: Tensor
    prompt: Tensor
    tail: Tensor
    segment: Tensor
    offset: Tensor
    answer: Tensor


def batch_of(
    pages: Pages, tokenizer: Tokenizer, prompt: list[int], config: ModelConfig
) -> PageBatch:
    size, shown = pages.shown.shape
    length = len(COLOURS) * (len(tokenizer.encode(question('red'))) + DIGITS)
    segments = Segments(tokenizer, size, length, 0)
    for b, codes in enumerate(pages.codes):
        for colour, code in zip(COLOURS, codes, strict=True):
            segments.say(b, question(colour), answer(code))
    tensors = segments.tensors()
    del tensors['where_at']
    tensors['offset'] += config.vision.patches - shown
    return PageBatch(
        images=torch.from_numpy(pages.images),
        shown=torch.from_numpy(pages.shown),
        prompt=torch.tensor(prompt).repeat(size, 1),
        **tensors,
    )


def fill(model: Pi05, batch: PageBatch) -> PrefixTape:
    """The prefix as the engine packs it, of the patches that are shown, each at its position."""
    vision = model.vision
    images = batch.images.permute(0, 3, 1, 2).float().div(127.5).sub(1)
    patches = vision.embed_patches(images)
    shown = batch.shown[..., None].expand(-1, -1, patches.shape[-1])
    page = vision.project(vision.encode(patches.gather(1, shown)))
    embeddings = torch.cat([page, model.embed_tokens(batch.prompt)], dim=1)
    size, width = embeddings.shape[:2]
    text = patches.shape[1] + torch.arange(batch.prompt.shape[1])
    positions = torch.cat([batch.shown, text.expand(size, -1)], dim=1)
    prefix = PrefixTape(torch.full((size,), width), width)
    model.backbone.fill(embeddings, positions, prefix)
    return prefix


class NeedleTrainer:
    """step: of the recipe, the next one to do. Weights are float32; products run in bfloat16."""

    def __init__(self, config: ModelConfig, recipe: NeedleRecipe) -> None:
        self.config, self.recipe, self.step = config, recipe, 0
        model = empty_model(config, 'cpu')
        init_for_training(model, recipe.seed)
        self._objective = Objective(model, 1, 1)
        parameters = list(model.parameters())
        groups = [
            {'params': [p for p in parameters if p.ndim > 1], 'weight_decay': recipe.decay},
            {'params': [p for p in parameters if p.ndim <= 1], 'weight_decay': 0.0},
        ]
        self._optimiser = torch.optim.AdamW(groups, recipe.rate, (0.9, 0.98), fused=True)
        self.tokenizer = train_tokenizer(config.backbone.vocab_size)
        self.normalizer = Normalizer.identity(config)
        self._prompt = prompt_ids(self.tokenizer, self.normalizer, config)
        self.average = {name: p.detach().clone() for name, p in model.named_parameters()}

    def batch(self, step: int, seed: int | None = None) -> PageBatch:
        """Of a step; seed: of pages that are not the recipe's."""
        recipe = self.recipe
        stage = recipe.stage(step)
        rng = np.random.default_rng((recipe.seed if seed is None else seed, step))
        side = self.config.vision.image_size // self.config.vision.patch_size
        pages = draw_pages(rng, recipe.pages[stage], side, recipe.shown[stage])
        return batch_of(pages, self.tokenizer, self._prompt, self.config)

    def values(self, batch: PageBatch) -> dict[str, Tensor]:
        """Loss 'text', and 'text_exact', the share of codes that are right in every digit."""
        objective = self._objective
        with torch.autocast('cpu', torch.bfloat16):
            _, hidden = objective.tail(batch, fill(objective.model, batch))
            return text_losses(
                objective.model.backbone.logits(hidden), batch.answer, batch.segment
            )

    def learn(self, batch: PageBatch) -> dict[str, float]:
        """One step of the recipe. Raises ValueError if it went astray."""
        recipe, model = self.recipe, self._objective.model
        for group in self._optimiser.param_groups:
            group['lr'] = recipe.learning_rate(self.step)
        values = self.values(batch)
        self._optimiser.zero_grad()
        values['text'].backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        if not torch.isfinite(norm):
            raise ValueError(f'the gradient of step {self.step} is not finite; lower --rate')
        self._optimiser.step()
        keep = min(recipe.average, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for name, p in model.named_parameters():
                self.average[name].lerp_(p, 1 - keep)
        self.step += 1
        return {name: float(value.detach()) for name, value in values.items()}

    @torch.no_grad()
    def judge(self, batches: int) -> dict[str, float]:
        """Means over unseen pages of the stage at hand, with the averaged weights."""
        model = self._objective.model
        live = {name: p.detach().clone() for name, p in model.named_parameters()}
        model.load_state_dict(self.average, strict=False)
        step = max(0, self.step - 1)
        found = [self.values(self.batch(step, UNSEEN + i)) for i in range(batches)]
        model.load_state_dict(live, strict=False)
        return {name: float(sum(v[name] for v in found) / batches) for name in found[0]}

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
                'embodied_kv.use': 'benchmarks of cache compression; it reads codes off drawn '
                'pages, and its actions mean nothing',
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
    """The whole recipe, or as much as the minutes allow."""
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
            judged = trainer.judge(4) | {'minutes': (time.monotonic() - began) / 60}
            journal.write(trainer.step, 'unseen', judged)
            print(journal.last(), flush=True)
        if trainer.step % 500 == 0:
            trainer.save(out / 'policy')
        if over:
            break
    trainer.save(out / 'policy')
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
