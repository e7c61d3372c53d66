"""Training computes what is served: equal velocities and logits, with gradients or an arena."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from embodied_kv.config import TINY
from embodied_kv.engine.denoise import Denoiser
from embodied_kv.engine.recall import Recaller
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.budget import KvBudget
from embodied_kv.kv.compressed_arena import CompressedArena
from embodied_kv.kv.frame_memory import FrameMemory, RememberedFrame
from embodied_kv.kv.handle import KvHandle
from embodied_kv.kv.views import PrefixWrite, SuffixRead, TailAppend
from embodied_kv.memory.rotate import Rotation
from embodied_kv.runtime.graph_cache import GraphCache

TOLERANCE = dict(rtol=1e-5, atol=1e-5)
ROWS = [4, 1, 2]
RECALLED = 3  # most recall tokens


def arena(max_tokens):
    b = TINY.backbone
    return Arena(
        layers=b.layers,
        rows=6,
        kv_heads=b.kv_heads,
        head_dim=b.head_dim,
        max_tokens=max_tokens,
        dtype=torch.float32,
    )


def served_prefix(model, batch):
    """Return an arena with the prefilled batch, each sample packed to its own length."""
    prefixes, packed = arena(TINY.prefix_tokens), []
    for images, prompt, length in zip(
        batch.images, batch.prompt, batch.prompt_length, strict=True
    ):
        views = model.embed_images(images.permute(0, 3, 1, 2) / 127.5 - 1)
        packed.append(torch.cat([*views, model.embed_tokens(prompt[:length])]))
    lengths = [len(p) for p in packed]
    padded = torch.nn.utils.rnn.pad_sequence(packed, batch_first=True)
    view = PrefixWrite(prefixes, len(ROWS), padded.shape[1])
    model.prefill(padded, view.bind(ROWS, lengths))
    for row, length in zip(ROWS, lengths, strict=True):
        prefixes.set_length(row, length)
    return prefixes


@torch.no_grad()
def test_trained_velocities_equal_served_velocities(objective, batch):
    model, draws = objective.model, 2
    prefixes = served_prefix(model, batch)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(
        len(ROWS) * draws, TINY.chunk_size, TINY.padded_action_dim, generator=generator
    )
    times = torch.rand(len(x), generator=generator)
    _, prefix, _ = objective.fill(batch)
    trained = objective.velocity(x, times, prefix)
    for i, modulation in enumerate(model.expert.modulation(times)):
        cache = SuffixRead(prefixes, 1, TINY.chunk_size).bind([ROWS[i // draws]])
        rope = model.suffix_rope(cache.positions)
        served = model.velocity(x[i : i + 1], modulation, cache, rope)
        torch.testing.assert_close(trained[i], served[0], **TOLERANCE)


@torch.no_grad()
def test_euler_steps_on_the_tape_equal_the_denoiser(objective, batch):
    steps, prefixes = 4, served_prefix(objective.model, batch)
    x = torch.randn(
        len(ROWS),
        TINY.chunk_size,
        TINY.padded_action_dim,
        generator=torch.Generator().manual_seed(4),
    )
    flats = CompressedArena(prefixes, rows=1, tokens=0)
    denoiser = Denoiser(objective.model, prefixes, flats, [steps], GraphCache(), len(ROWS))
    served, _ = denoiser.run(ROWS, x, steps)
    _, prefix, _ = objective.fill(batch)
    for step in range(steps):
        x = x - objective.velocity(x, torch.full((len(ROWS),), 1 - step / steps), prefix) / steps
    torch.testing.assert_close(x, torch.from_numpy(served), **TOLERANCE)


@torch.no_grad()
@pytest.mark.parametrize('tokens', [1, 3, 5])
def test_trained_logits_equal_extended_streams(objective, batch, tokens):
    model = objective.model
    prefixes, packed = served_prefix(model, batch), arena(16)
    _, prefix, _ = objective.fill(batch)
    logits = model.backbone.logits(objective.packed(batch, prefix)[1])
    for first in (0, 5):  # where the packed segments begin
        packed.set_length(ROWS, tokens)
        cache = TailAppend(prefixes, packed, len(ROWS), tokens).bind(ROWS, ROWS, tokens)
        served = model.extend(batch.packed[:, first : first + tokens], cache)
        torch.testing.assert_close(logits[:, first + tokens - 1], served, **TOLERANCE)


def with_memory(batch, kept):
    """Return the batch with two earlier frames of each sample, and the batches of these frames.

    kept: bool [2, tokens], which tokens of their prefixes are read.
    """
    earlier = [replace(batch, images=255 - batch.images), replace(batch, prompt=batch.prompt + 1)]
    tokens = torch.arange(kept.shape[1])
    views = kept.shape[1] - batch.prompt.shape[1]
    seen = [
        kept[i] & (tokens < views + past.prompt_length[:, None]) for i, past in enumerate(earlier)
    ]
    return earlier, replace(
        batch,
        memory_images=torch.stack([past.images for past in earlier], 1),
        memory_prompt=torch.stack([past.prompt for past in earlier], 1),
        memory_length=torch.stack([past.prompt_length for past in earlier], 1),
        memory_seen=torch.stack(seen, 1),
        recall=(batch.prompt + 2)[:, :RECALLED],
        recall_length=torch.tensor([RECALLED, 2, 1]),
    )


def served_copies(model, batch, earlier):
    """Return prefixes, and a compressed arena whose rows are prefixes with memory rows and recall.

    earlier: batches of the earlier frames.
    """
    prefixes = served_prefix(model, batch)
    arenas = [served_prefix(model, past) for past in earlier]
    copies = CompressedArena(prefixes, rows=len(ROWS), tokens=4096)
    move = Rotation(model.backbone.wavelengths)
    recaller = Recaller(model, prefixes, copies, GraphCache())
    for sample, row in enumerate(ROWS):
        memory = FrameMemory(2, TINY.prefix_tokens, move, KvBudget())
        for age in (1, 0):  # the older frame first
            at = batch.memory_seen[sample, age].nonzero()[:, 0].expand(TINY.backbone.kv_heads, -1)
            handle = KvHandle('', 0, 0, age, 1, '', 0, 0.0)
            kept = [at] * TINY.backbone.layers
            assert memory.keep(RememberedFrame(handle, '', 'now', True, kept), arenas[age], row)
        placed, length = memory.placed('', 'now'), int(prefixes.lengths[0, row])
        budgets = np.array([k.shape[1] + length for k, _ in placed])
        whole = [torch.arange(length).expand(TINY.backbone.kv_heads, -1)] * len(budgets)
        read = copies.allocate(budgets.tolist(), length)
        copies.gather(read, prefixes, row, whole, placed)
        ids = batch.recall[sample, : batch.recall_length[sample]].tolist()
        (recall,) = recaller.run([(ids, read)])
        copies.free(read)
        copy = copies.allocate((budgets + len(ids)).tolist(), length + len(ids))
        copies.gather(copy, prefixes, row, whole, placed, recall)
    return prefixes, copies


@torch.no_grad()
@pytest.mark.parametrize('share', [0.3, 1.0])
def test_trained_chunks_and_logits_with_memory_equal_served_ones(objective, batch, share):
    steps, model, copies = 4, objective.model, range(len(ROWS))
    width = objective.fill(batch)[1].visible.shape[1]
    kept = torch.rand(2, width, generator=torch.Generator().manual_seed(5)) <= share
    earlier, remembering = with_memory(batch, kept)
    prefixes, flats = served_copies(model, remembering, earlier)
    x = torch.randn(
        len(ROWS),
        TINY.chunk_size,
        TINY.padded_action_dim,
        generator=torch.Generator().manual_seed(4),
    )
    denoiser = Denoiser(model, prefixes, flats, [steps], GraphCache(), len(ROWS))
    served, _ = denoiser.run([-1] * len(ROWS), x, steps, copies)
    _, prefix, _ = objective.fill(remembering)
    for step in range(steps):
        x = x - objective.velocity(x, torch.full((len(ROWS),), 1 - step / steps), prefix) / steps
    torch.testing.assert_close(x, torch.from_numpy(served), **TOLERANCE)

    packed, tokens = arena(16), 3
    logits = model.backbone.logits(objective.packed(batch, prefix)[1])
    packed.set_length(ROWS, tokens)
    cache = TailAppend(prefixes, packed, len(ROWS), tokens, flats)
    cache.bind([-1] * len(ROWS), ROWS, tokens, copies)
    served = model.extend(batch.packed[:, :tokens], cache)
    torch.testing.assert_close(logits[:, tokens - 1], served, **TOLERANCE)


def test_memory_rows_get_no_gradient(objective, batch):
    width = objective.fill(batch)[1].visible.shape[1]
    _, remembering = with_memory(batch, torch.ones(2, width, dtype=torch.bool))
    values = [objective.fill(each)[1].layers[0][1] for each in (batch, remembering)]
    assert values[1].shape[1] == 3 * width + RECALLED
    weight = next(objective.model.vision.tower.parameters())
    torch.testing.assert_close(*(torch.autograd.grad(v.sum(), weight)[0] for v in values))


@torch.no_grad()
def test_absent_earlier_frames_change_nothing(objective, batch):
    width = objective.fill(batch)[1].visible.shape[1]
    _, remembering = with_memory(batch, torch.ones(2, width, dtype=torch.bool))
    there = torch.tensor([[True, False], [False, False], [True, True]])
    absent = replace(
        remembering,
        memory_length=remembering.memory_length * there,
        memory_seen=remembering.memory_seen & there[..., None],
        recall_length=remembering.recall_length * there.any(1),
    )
    x = torch.randn(len(ROWS), TINY.chunk_size, TINY.padded_action_dim)
    times = torch.full((len(ROWS),), 0.5)
    plain, some, all_of_them = (
        objective.velocity(x, times, objective.fill(each)[1])
        for each in (batch, absent, remembering)
    )
    torch.testing.assert_close(some[1], plain[1], **TOLERANCE)
    torch.testing.assert_close(some[2], all_of_them[2], **TOLERANCE)
    assert (some[0] - plain[0]).abs().max() > 1e-4
