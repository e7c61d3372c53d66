"""Losses of a policy: actions, words and positions.

All losses read one prefix, which is computed once, as on the robot. This module knows batches of
tensors, the model and a few small heads that only training needs. It knows neither scenes, text
nor optimisers.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from embodied_kv.kv.frame_memory import memory_shift
from embodied_kv.model.backbone import arange_positions
from embodied_kv.model.expert import Expert, Modulation
from embodied_kv.model.layers import rms, rotate
from embodied_kv.model.pi05 import Pi05
from training.common.batch import EMPTY, Batch
from training.common.views import PrefixCache, RecallCache, SegmentCache, SuffixCache

Point = tuple[float, float, float]
LOSSES = ('flow', 'text', 'goal', 'where', 'detect')
TABLE = (0.40, 0.0, 0.05), (0.15, 0.25, 0.10)  # m; the target is (xyz - centre) / scale
BETA = 0.1  # threshold of smooth L1, in these units
HIT = 0.025  # m, largest error of a correct position
POSITIVE = 5.0  # weight of patches with a thing; others have 1


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return the attention of q, k and v [B, heads, T, D], as products and a softmax."""
    scores = (q @ k.mT) * q.shape[-1] ** -0.5
    return scores.softmax(-1, dtype=torch.float32).to(q.dtype) @ v


class Objective(nn.Module):
    """A Pi05 in training, with heads that only training needs.

    space: centre and scale of positions, m, each (x, y, z).
    """

    def __init__(
        self, model: Pi05, colours: int, shapes: int, space: tuple[Point, Point] = TABLE
    ) -> None:
        super().__init__()
        c = model.config
        self.model, self.space = model.requires_grad_(True), space
        # On a CPU the fused attention's backward takes an eighth of a step.
        for layer in model.vision.tower.encoder.layers:
            layer.self_attn.attend = attend
        self.kinds = (1, colours, shapes, 2)  # thing or none, colour, shape, offset in patches
        self.detect = nn.Linear(c.vision.width, sum(self.kinds))
        self.goal = nn.Linear(c.backbone.width, 3)
        self.where = nn.Linear(c.backbone.width, 3)

    def forward(
        self,
        batch: Batch,
        weights: Mapping[str, float],
        generator: torch.Generator,
        draws: int = 4,
    ) -> dict[str, Tensor]:
        """Return unweighted scalar losses and metrics.

        weights: by name of LOSSES; only losses with a weight above 0 are computed. draws: (time,
        noise) pairs per prefix. Raises ValueError for the name of an unknown loss.
        """
        if unknown := set(weights) - set(LOSSES):
            raise ValueError(f'no losses {sorted(unknown)}; there are: {", ".join(LOSSES)}')
        asked = tuple(name for name in LOSSES if weights.get(name, 0) > 0)
        size, device = len(batch.actions), batch.actions.device
        uniform = torch.rand(size * draws, generator=generator, device=device)
        times = 0.001 + 0.999 * uniform ** (1 / 1.5)  # Beta(1.5, 1) by its inverse distribution
        shape = (size * draws, *batch.actions.shape[1:])
        noise = torch.randn(shape, generator=generator, device=device)
        return self.losses(batch, asked, times, noise)

    def losses(
        self, batch: Batch, asked: tuple[str, ...], times: Tensor, noise: Tensor
    ) -> dict[str, Tensor]:
        """Compute `forward` for given random numbers; only shapes affect its control flow.

        So it can be compiled. times: float32 [B * draws]; noise: float32 [B * draws, chunk,
        padded_action_dim].
        """
        patches, prefix, hidden = self.fill(batch)
        found = {}
        if 'flow' in asked:
            found['flow'] = self._flow(batch, prefix, times, noise)
        if 'text' in asked or 'where' in asked:
            middle, packed = self.packed(batch, prefix)
        if 'text' in asked:
            found |= text_losses(self.model.backbone.logits(packed), batch.answer, batch.segment)
        if 'where' in asked:
            slots = batch.where_at.clamp(min=0)[:, :, None].expand(-1, -1, middle.shape[-1])
            guess = self.where(self._normed(middle.gather(1, slots))).float()
            valid = (batch.where_at >= 0) & batch.where.isfinite().all(-1)
            loss, error = position_loss(guess, batch.where, valid, self.space)
            found |= {'where': loss, 'where_hit': mean((error < HIT).float(), valid)}
        if 'goal' in asked:
            valid = batch.goal.isfinite().all(-1)
            guess = self._goal(*hidden)
            loss, error = position_loss(guess, batch.goal, valid, self.space)
            found |= {'goal': loss, 'goal_cm': 100 * mean(error, valid)}
        if 'detect' in asked:
            outputs = self.detect(patches).float().split(self.kinds, dim=-1)
            found |= detect_losses(outputs, batch, self.model.config.vision.patch_size)
        return found

    def fill(self, batch: Batch) -> tuple[Tensor, PrefixCache, tuple[Tensor, Tensor]]:
        """Compute the prefix as the engine packs it: views in order, then the prompt.

        The cache has the memory rows of the batch in front, and the recall tokens behind.

        Returns:
            Patch features [B, V, patches, vision width], the filled cache, and the states [B, N,
            width] that enter the last layer with the weight of each token, [B, N]: those of the
            recall tokens, or of the prompt in a sample without them.
        """
        filled = self._fill(batch.images, batch.prompt, batch.prompt_length)
        patches, prefix, hidden = filled
        told = hidden[:, -batch.prompt.shape[1] :], _valid(batch.prompt, batch.prompt_length)
        if batch.memory_images is not None:
            prefix.remember(*self._remembered(batch))
            told = self._recall(batch, prefix, *told)
        return patches, prefix, told

    def _recall(
        self, batch: Batch, prefix: PrefixCache, hidden: Tensor, told: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Append the recall tokens to the cache, and return states and valid tokens of `fill`."""
        assert batch.recall is not None and batch.recall_length is not None
        cache = RecallCache(prefix, _valid(batch.recall, batch.recall_length))
        embeddings = self.model.embed_tokens(batch.recall)
        recalled = self.model.backbone.fill(embeddings, cache.positions, cache)
        prefix.append(cache)
        told = told & ~cache.valid.any(1, keepdim=True)
        return torch.cat([hidden, recalled], 1), torch.cat([told, cache.valid], 1)

    def _fill(
        self, images: Tensor, prompt: Tensor, lengths: Tensor
    ) -> tuple[Tensor, PrefixCache, Tensor]:
        vision = self.model.vision
        pixels = images.flatten(0, 1).permute(0, 3, 1, 2).float().div(127.5).sub(1)
        patches = vision.encode(vision.embed_patches(pixels))
        views = vision.project(patches).unflatten(0, images.shape[:2]).flatten(1, 2)
        embeddings = torch.cat([views, self.model.embed_tokens(prompt)], dim=1)
        size, width = embeddings.shape[:2]
        prefix = PrefixCache(views.shape[1] + lengths, width)
        positions = arange_positions(size, width, embeddings.device)
        hidden = self.model.backbone.fill(embeddings, positions, prefix)
        return patches.unflatten(0, images.shape[:2]), prefix, hidden

    @torch.no_grad()
    def _remembered(self, batch: Batch) -> tuple[dict[int, tuple[Tensor, Tensor]], Tensor]:
        """Return KV of earlier frames by layer, moved in front of the prefix, and what is seen.

        K and V [B, M * N, kv_heads, head_dim], as `kv.frame_memory` serves them.
        """
        images, prompt, lengths = batch.memory_images, batch.memory_prompt, batch.memory_length
        assert images is not None and prompt is not None and lengths is not None
        assert batch.memory_seen is not None
        size, rows = lengths.shape
        there = lengths.flatten() > 0  # absent frames are not computed
        columns = (column.flatten(0, 1)[there] for column in (images, prompt, lengths))
        _, prefix, _ = self._fill(*columns)
        shifts = [memory_shift(age, self.model.config.prefix_tokens) for age in range(rows)]
        by = torch.tensor(shifts, device=images.device).repeat(size)[there, None, None, None]
        found = {}
        for layer, (k, v) in prefix.layers.items():
            wavelengths = self.model.backbone.wavelengths.to(k.device)
            angles = by / wavelengths[min(layer, len(wavelengths) - 1)]
            moved = rotate(k.float(), (angles.cos(), angles.sin())).to(k.dtype)
            padded = moved.new_zeros(2, size * rows, *k.shape[1:])
            padded[:, there] = torch.stack([moved, v])
            keys, values = padded.unflatten(1, (size, rows)).flatten(2, 3)
            found[layer] = keys, values
        return found, batch.memory_seen.flatten(1)

    def velocity(
        self, x: Tensor, times: Tensor, prefix: PrefixCache, given: Tensor | None = None
    ) -> Tensor:
        """Return v(x_t, t); both float32 [S, chunk, padded_action_dim], S = B * draws; times [S].

        given: bool [S, chunk], actions of the action prefix, at time 0; None for no prefix.
        """
        cache = SuffixCache(prefix, len(x) // len(prefix.lengths), x.shape[1])
        rope = self.model.suffix_rope(cache.positions)
        modulation = slot_modulation(self.model.expert, times, given)
        return self.model.velocity(x, modulation, cache, rope)

    def packed(self, batch: Batch, prefix: PrefixCache) -> tuple[Tensor, Tensor]:
        """Return hidden states of the packed tokens: middle ones, and normed last ones.

        Both are [B, T, width]. The middle is after two thirds of the layers. The position of a
        named thing must be known there, so that the last layers can compare things.
        """
        backbone, cache = self.model.backbone, SegmentCache(prefix, batch.segment)
        hidden = middle = self.model.embed_tokens(batch.packed)
        rope = backbone.rope(prefix.lengths[:, None] + batch.offset, hidden.dtype)
        layers = backbone.config.layers
        for i in range(layers):
            hidden = backbone.layer(i, hidden, cache, rope)
            if i + 1 == 2 * layers // 3:
                middle = hidden
        return middle, backbone.norm(hidden)

    def _flow(self, batch: Batch, prefix: PrefixCache, times: Tensor, noise: Tensor) -> Tensor:
        """Return the loss of the labelled actions after the prefix.

        Source: training-time RTC, arXiv 2512.05964.
        """
        draws = len(times) // len(batch.actions)
        actions = batch.actions.repeat_interleave(draws, 0)
        slots = torch.arange(actions.shape[1], device=times.device)
        given = (slots < batch.delay[:, None]).repeat_interleave(draws, 0)
        known = (slots < batch.known[:, None]).repeat_interleave(draws, 0)
        way = noise - actions
        x = actions + times[:, None, None] * way * ~given[..., None]
        error = (self.velocity(x, times, prefix, given) - way).square().mean(-1)
        return mean(error, known & ~given)

    def _goal(self, hidden: Tensor, told: Tensor) -> Tensor:
        """Return [B, 3], regressed from the normed mean of states [B, N, width] where `told`."""
        share = told / told.sum(1, keepdim=True)
        return self.goal(self._normed((hidden.float() * share[..., None]).sum(1))).float()

    def _normed(self, hidden: Tensor) -> Tensor:
        one = torch.ones(hidden.shape[-1], device=hidden.device)
        return rms(hidden, one, self.model.config.backbone.eps)


def slot_modulation(expert: Expert, times: Tensor, given: Tensor | None = None) -> Modulation:
    """Return the modulation of each norm at times [S], at time 0 for given actions [S, chunk].

    Element i of scale, shift and gate belongs to norm i and is [S, chunk, width], or [S, 1, width]
    if `given` is None.
    """
    encoded = expert.time_embedding(torch.cat([times, times.new_zeros(1)]))
    condition = expert.conditioning(encoded.to(expert.time_in.weight.dtype))[:, None]
    dense = [norm for layer in expert.layers for norm in (layer.attn_norm, layer.mlp_norm)]
    rows = [norm(condition) for norm in (*dense, expert.norm)]  # [S + 1, 1, 3 width]
    if given is None:
        rows = [row[:-1] for row in rows]
    else:
        rows = [row[-1].where(given[..., None], row[:-1]) for row in rows]
    scale, shift, gate = zip(*(row.chunk(3, dim=-1) for row in rows), strict=True)
    return Modulation([1 + s.float() for s in scale], [s.float() for s in shift], gate)


def _valid(ids: Tensor, lengths: Tensor) -> Tensor:
    """Return which tokens of right-padded ids [B, T] are valid, bool [B, T]."""
    return torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]


def mean(x: Tensor, valid: Tensor) -> Tensor:
    """Return the mean of x where valid, 0 if nothing is; an invalid x may be NaN."""
    return x.where(valid, 0).sum() / valid.sum().clamp(min=1)


def position_loss(
    guess: Tensor, target: Tensor, valid: Tensor, space: tuple[Point, Point] = TABLE
) -> tuple[Tensor, Tensor]:
    """Return the mean smooth L1 loss in units of the space, and each distance in m.

    guess: in units of the space; target: m; both [..., 3]. valid: [...].
    """
    centre, scale = (target.new_tensor(point) for point in space)
    # NaN must not enter the difference: its gradient would be NaN even where it is masked.
    units = ((target - centre) / scale).nan_to_num(0)
    loss = F.smooth_l1_loss(guess, units, beta=BETA, reduction='none').mean(-1)
    error = (guess * scale + centre - target).detach().norm(dim=-1)
    return mean(loss, valid), error


def text_losses(logits: Tensor, answer: Tensor, segment: Tensor) -> dict[str, Tensor]:
    """Return the cross-entropy 'text', and 'text_exact', the share of fully correct segments.

    logits: float32 [B, T, vocab].
    """
    asked = answer != EMPTY
    loss = F.cross_entropy(logits.flatten(0, 1), answer.flatten(), reduction='sum')
    wrong = asked & (logits.detach().argmax(-1) != answer)
    home = segment.where(segment >= 0, segment.shape[1])
    empty = torch.zeros(len(segment), segment.shape[1] + 1, device=logits.device)
    questions, mistakes = (empty.scatter_add(1, home, x.float()) for x in (asked, wrong))
    return {
        'text': loss / asked.sum().clamp(min=1),
        'text_exact': mean((mistakes == 0).float(), questions > 0),
    }


def detect_losses(outputs: tuple[Tensor, ...], batch: Batch, patch_size: int) -> dict[str, Tensor]:
    """Return the detection loss and the share of correct colours.

    outputs: thing, colour, shape, offset, each [B, V, patches, kinds]. If the centres of two
    things are on one patch, the first thing is the target.
    """
    thing, colour, shape, offset = outputs
    owner, centre = thing_of_patch(batch, patch_size, thing.shape[2])
    taken, owner = owner >= 0, owner.clamp(min=0)

    def pick(labels: Tensor) -> Tensor:  # [B, N] -> [B, V, patches]
        return labels[:, None].expand(-1, owner.shape[1], -1).gather(2, owner)

    def classify(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits.movedim(-1, 1), labels.clamp(min=0), reduction='none')

    colours, shapes = pick(batch.colour), pick(batch.shape)
    offsets = centre.gather(2, owner[..., None].expand(-1, -1, -1, 2))
    objectness = F.binary_cross_entropy_with_logits(
        thing.squeeze(-1), taken.float(), pos_weight=thing.new_tensor(POSITIVE)
    )
    near = F.smooth_l1_loss(offset, offsets, beta=BETA, reduction='none').mean(-1)
    attributes = 2 * (classify(colour, colours) + classify(shape, shapes)) + near
    right = colour.detach().argmax(-1) == colours
    return {
        'detect': objectness + mean(attributes, taken),
        'detect_colour': mean(right.float(), taken),
    }


def thing_of_patch(batch: Batch, patch_size: int, patches: int) -> tuple[Tensor, Tensor]:
    """Return the thing whose centre each patch has, long [B, V, patches] or -1, and all offsets.

    The offset [B, V, N, 2] is (column, row) from the middle of a thing's patch, in patches.
    """
    at = batch.pixels.transpose(1, 2) / patch_size  # [B, V, N, 2], in patches
    side = round(patches**0.5)
    there = ((at >= 0) & (at < side)).all(-1) & (batch.colour >= 0)[:, None]
    at = at.where(there[..., None], 0)
    column, row = at.long().unbind(-1)
    cell = (row * side + column).where(there, patches)  # things out of view: extra cell
    owner = cell.new_full((*cell.shape[:2], patches + 1), -1)
    for n in reversed(range(cell.shape[2])):
        owner = owner.scatter(2, cell[..., n : n + 1], n)
    return owner[..., :patches], at - at.floor() - 0.5
