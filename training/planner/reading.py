"""A training pass of the planner over a prompt and all its questions, and the losses.

A question sees the prompt and, causally, itself; its position is right behind the prompt, as if it
were the only one. This module knows lessons and the model, not an optimiser.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from embodied_kv.model.planner import Planner
from training.common.batch import EMPTY
from training.common.views import seen
from training.planner.pages import THINGS, THREADS, Lesson

BLOCKS = 4  # of a prompt's rows


def products() -> torch.dtype:
    """Return the dtype of matrix products."""
    return torch.get_autocast_dtype('cpu') if torch.is_autocast_enabled('cpu') else torch.float32


class LessonCache:
    """Attention over prompts and the lines behind them, with gradients; K and V are not kept.

    A prompt is causal. A line's token sees its prompt and, causally, its own segment. Attention is
    a batched product over blocks, so that few masked scores are computed. Masks have the dtype of
    the products.
    """

    def __init__(self, lesson: Lesson) -> None:
        self._memory = lesson.memory.shape[1]
        self._lines, self._length = lesson.segment.shape[1:]
        step = -(-self._memory // max(1, min(BLOCKS, self._memory // 64)))
        self._ends = [*range(step, self._memory, step), self._memory]
        causal = torch.ones(self._memory, self._memory, dtype=torch.bool).tril()
        self._causal = seen(causal).to(products())
        visible = torch.arange(self._memory) < lesson.lengths[:, None]
        self._visible = seen(visible).to(products())[:, None, None, None]  # [B, 1, 1, 1, M]
        segment = lesson.segment
        own = (segment[..., :, None] == segment[..., None, :]).tril()  # [B, N, L, L]
        self._own = seen(own).to(products())[:, None, :, None]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the attention, like q.

        q: [B, M + N * L, heads, D]; k, v: the same with kv_heads.
        """
        batch, _, _, dim = q.shape
        kv_heads, m = k.shape[2], self._memory
        # Query heads that share K and V become more queries: [B * kv, group, T, D].
        q = (q * dim**-0.5).unflatten(2, (kv_heads, -1)).permute(0, 2, 3, 1, 4).flatten(0, 1)
        k, v = (x.transpose(1, 2).flatten(0, 1) for x in (k, v))  # [B * kv, T, D]
        parts, begin = [], 0
        for end in self._ends:
            parts.append(self._prompt(q[:, :, begin:end], k[:, :end], v[:, :end], begin))
            begin = end
        parts.append(self._packed(q[:, :, m:], k, v, batch))
        out = torch.cat(parts, dim=2).unflatten(0, (batch, kv_heads))
        return out.permute(0, 3, 1, 2, 4).flatten(2, 3)

    def _prompt(self, q: Tensor, k: Tensor, v: Tensor, begin: int) -> Tensor:
        """Return rows of the prompt from `begin` on, like q [B * kv, group, rows, D]."""
        mask = self._causal[begin : k.shape[1], : k.shape[1]].repeat(q.shape[1], 1)
        scores = torch.baddbmm(mask, q.flatten(1, 2), k.mT)
        return torch.bmm(scores.softmax(-1), v).view_as(q)

    def _packed(self, q: Tensor, k: Tensor, v: Tensor, batch: int) -> Tensor:
        """Return rows of the lines, like q [B * kv, group, N * L, D]."""
        m, n, length = self._memory, self._lines, self._length
        group, dim = q.shape[1], q.shape[3]
        # Lines first, then the heads that share K and V: [B, kv, N, group, L, D]
        q = q.unflatten(2, (n, length)).transpose(1, 2)
        far = torch.bmm(q.flatten(1, 3), k[:, :m].mT)
        far = far.view(batch, -1, n, group * length, m) + self._visible
        lines = q.reshape(-1, group * length, dim)
        keys, values = (x[:, m:].reshape(-1, length, dim) for x in (k, v))
        near = torch.bmm(lines, keys.mT).view(batch, -1, n, group, length, length) + self._own
        near = near.flatten(3, 4)
        weights = torch.cat([far, near], dim=-1).softmax(-1)
        far, near = weights.split([m, length], dim=-1)
        past = torch.bmm(far.flatten(2, 3).flatten(0, 1), v[:, :m])
        own = torch.bmm(near.flatten(0, 2), values)
        out = past.view(-1, n, group, length, dim) + own.view(-1, n, group, length, dim)
        return out.transpose(1, 2).flatten(2, 3)


class PlannerObjective(nn.Module):
    """A planner, with two heads for training only: ends of threads, and meant things.

    middle, late: layers after which they are read.
    """

    def __init__(self, planner: Planner, middle: int, late: int) -> None:
        super().__init__()
        self.planner, self.middle, self.late = planner, middle, late
        width = planner.config.backbone.width
        self.threads, self.meant = nn.Linear(width, sum(THREADS)), nn.Linear(width, THINGS)

    def forward(self, lesson: Lesson) -> dict[str, Tensor]:
        """Return the losses 'answers', 'threads', 'meant'; 'exact': bool [questions]; two shares.

        'followed' is the share of correct ends, 'understood' that of places where all meant things
        are correct. An answer is exact if each of its tokens, and <eos>, is the most probable one
        after those before it: then, and only then, greedy decoding returns it.
        """
        backbone = self.planner.backbone
        batch, m = lesson.memory.shape
        ids = torch.cat([lesson.memory, lesson.packed.flatten(1)], dim=1)
        behind = lesson.lengths[:, None, None] + lesson.offset
        positions = torch.cat([torch.arange(m).expand(batch, -1), behind.flatten(1)], dim=1)
        cache = LessonCache(lesson)
        hidden = self.planner.embed(ids)
        rope = backbone.rope(positions, products())
        for i in range(backbone.config.layers):
            hidden = self.planner.layer(i, hidden, cache, rope)
            if i + 1 == self.middle:
                threads, followed = self._follow(hidden, lesson.threads)
            if i + 1 == self.late:
                meant, understood = self._understand(hidden, lesson)
        said = lesson.answer
        at = (said != EMPTY).nonzero(as_tuple=True)
        last = hidden[:, m:].unflatten(1, said.shape[1:])[at]
        logits = self.planner.logits(backbone.norm(last))
        return {
            'answers': F.cross_entropy(logits, said[at]),
            'threads': threads,
            'meant': meant,
            'exact': _exact(lesson, at, logits.argmax(-1) == said[at]),
            'followed': followed,
            'understood': understood,
        }

    def _follow(self, hidden: Tensor, threads: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss on threads, and the share of correct ends."""
        at = (threads != EMPTY).any(-1).nonzero(as_tuple=True)
        guesses = self.threads(F.rms_norm(hidden[at], hidden.shape[-1:])).float()
        pairs = zip(guesses.split(THREADS, -1), threads[at].unbind(-1), strict=True)
        losses = [
            F.cross_entropy(guess, wanted, ignore_index=EMPTY, reduction='sum')
            / (wanted != EMPTY).sum().clamp(min=1)
            for guess, wanted in pairs
        ]
        ends, wanted = guesses.split(THREADS, -1)[1], threads[at][:, 1]
        right = ends.argmax(-1) == wanted
        return sum(losses), right[wanted != EMPTY].float().mean()

    def _understand(self, hidden: Tensor, lesson: Lesson) -> tuple[Tensor, Tensor]:
        """Return the loss on meant things, and the share of places where all are correct."""
        if not len(lesson.meant_at):
            return hidden.new_zeros(()) * self.meant.bias.sum(), hidden.new_ones(())
        read = hidden[tuple(lesson.meant_at.T)]
        guesses = self.meant(F.rms_norm(read, read.shape[-1:])).float()
        loss = F.binary_cross_entropy_with_logits(guesses, lesson.meant)
        right = ((guesses > 0) == (lesson.meant > 0.5)).all(-1)
        return THINGS / 4 * loss, right.float().mean()


def _exact(lesson: Lesson, at: tuple[Tensor, ...], right: Tensor) -> Tensor:
    """Return whether each question has no wrong token, bool, in the order of `truths`."""
    prompt, line, _ = at
    order = torch.stack([prompt, line, lesson.segment[at]])
    _, question = order.unique(dim=1, return_inverse=True)
    wrong = torch.zeros(len(lesson.truths)).index_add_(0, question, (~right).float())
    return wrong == 0
