"""Pages as inputs of a model: a prefix, a question about each code, and the answers.

This module knows pages, words and the model, not an optimiser.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from embodied_kv.config import ModelConfig
from embodied_kv.demo.sim.scene import COLOURS
from embodied_kv.model.pi05 import Pi05
from embodied_kv.model.processing.normalizer import Normalizer
from embodied_kv.model.processing.prompt import OWN_PROMPT
from embodied_kv.model.tokenizer import Tokenizer
from training.common.objective import Objective, text_losses
from training.common.segments import Segments
from training.common.views import PrefixCache
from training.needle.pages import DOTS, GLYPHS, INKS, Pages

INSTRUCTION = 'read'  # the same for every page, so that the prompt does not reveal the question
KINDS = tuple(map(len, (GLYPHS, DOTS, INKS)))


def question(colour: str) -> str:
    """Return the question of a decode stream."""
    return f'What is {colour}?'


def answer(code: np.ndarray) -> str:
    """Return the answer; each digit is a token, with the space before it."""
    return ' '.join(map(str, code))


def list_question(colours: Sequence[str]) -> str:
    """Return the question that asks for the codes of these colours, in this order."""
    return question(', '.join(colours))


def list_answer(colours: Sequence[str], codes: np.ndarray) -> str:
    """Return the answer to `list_question`. codes: int [colours, 3], of these colours."""
    named = zip(colours, codes, strict=True)
    return ', '.join(f'{colour} {answer(code)}' for colour, code in named)


def prompt_ids(tokenizer: Tokenizer, normalizer: Normalizer, config: ModelConfig) -> list[int]:
    """Return the prompt's tokens as a policy makes them, with a state of zeros."""
    state = normalizer.state(np.zeros(config.state_dim, np.float32))
    return OWN_PROMPT.tokens(tokenizer, INSTRUCTION, state, config.max_text)[0]


@dataclass(frozen=True, eq=False)
class PageBatch:
    """Pages, their prompts, and every code's question, packed.

    cells, shown, kinds: of `Pages`. prompt: long [B, P]. packed, segment, offset, answer: as in
    `training.common.batch.Batch`; offsets count the patches that are not shown.
    """

    cells: Tensor
    shown: Tensor
    kinds: Tensor
    prompt: Tensor
    packed: Tensor
    segment: Tensor
    offset: Tensor
    answer: Tensor


def batch_of(
    pages: Pages, tokenizer: Tokenizer, prompt: list[int], config: ModelConfig
) -> PageBatch:
    """Return a batch with a question for each code of these pages."""
    asked = [
        [(question(colour), answer(code)) for colour, code in zip(COLOURS, codes, strict=True)]
        for codes in pages.codes
    ]
    return packed(pages, asked, tokenizer, prompt, config)


def list_batch_of(
    pages: Pages,
    lists: int,
    rng: np.random.Generator,
    tokenizer: Tokenizer,
    prompt: list[int],
    config: ModelConfig,
) -> PageBatch:
    """Return a batch with `lists` questions for all codes of a page, each in a random order."""
    names = np.array(list(COLOURS))
    asked = []
    for codes in pages.codes:
        orders = [rng.permutation(len(names)) for _ in range(lists)]
        asked.append([(list_question(names[o]), list_answer(names[o], codes[o])) for o in orders])
    return packed(pages, asked, tokenizer, prompt, config)


def packed(
    pages: Pages,
    asked: Sequence[Sequence[tuple[str, str]]],
    tokenizer: Tokenizer,
    prompt: list[int],
    config: ModelConfig,
) -> PageBatch:
    """Return a batch with these questions and answers about each page, all equally long."""
    size, shown = pages.shown.shape
    length = len(asked[0]) * len(tokenizer.encode(' '.join(asked[0][0])))
    segments = Segments(tokenizer, size, length, 0)
    for b, some in enumerate(asked):
        for wanted, said in some:
            segments.say(b, wanted, said)
    tensors = segments.tensors()
    return PageBatch(
        cells=torch.from_numpy(pages.cells),
        shown=torch.from_numpy(pages.shown),
        kinds=torch.from_numpy(pages.kinds),
        prompt=torch.tensor(prompt).repeat(size, 1),
        packed=tensors['packed'],
        segment=tensors['segment'],
        offset=tensors['offset'] + config.vision.patches - shown,
        answer=tensors['answer'],
    )


class Reader(nn.Module):
    """A Pi05 that learns to read, with a head for the content of patches, for training only."""

    def __init__(self, model: Pi05) -> None:
        super().__init__()
        self.objective = Objective(model, 1, 1)
        self.kinds = nn.Linear(model.config.vision.width, sum(KINDS))

    @property
    def model(self) -> Pi05:
        return self.objective.model

    def forward(self, batch: PageBatch) -> dict[str, Tensor]:
        """Return the losses 'text' and 'kinds', and 'text_exact'.

        The latter is the share of codes without a wrong digit.
        """
        patches, prefix = self.fill(batch)
        _, hidden = self.objective.packed(batch, prefix)
        logits = self.model.backbone.logits(hidden)
        guesses = self.kinds(patches).float().flatten(0, 1).split(KINDS, -1)
        kinds = batch.kinds.flatten(0, 1).unbind(-1)
        found = [F.cross_entropy(*pair) for pair in zip(guesses, kinds, strict=True)]
        return text_losses(logits, batch.answer, batch.segment) | {'kinds': sum(found)}

    def fill(self, batch: PageBatch) -> tuple[Tensor, PrefixCache]:
        """Return the features of patches, [B, k, vision width], and the prefix of the engine.

        Both have only the patches that are shown, each at its position on the page.
        """
        vision, table = self.model.vision, self.model.vision.tower.embeddings
        pixels = batch.cells.permute(0, 1, 4, 2, 3).float().div(127.5).sub(1).flatten(2)
        weight, bias = table.patch_embedding.weight.flatten(1), table.patch_embedding.bias
        embedded = F.linear(pixels, weight, bias) + table.position_embedding(batch.shown)
        patches = vision.encode(embedded)
        words = self.model.embed_tokens(batch.prompt)
        embeddings = torch.cat([vision.project(patches), words], dim=1)
        size, width = embeddings.shape[:2]
        text = self.model.config.vision.patches + torch.arange(words.shape[1])
        positions = torch.cat([batch.shown, text.expand(size, -1)], dim=1)
        prefix = PrefixCache(torch.full((size,), width), width)
        self.model.backbone.fill(embeddings, positions, prefix)
        return patches, prefix
