"""Training computes what is served: equal velocities and logits, with gradients or an arena."""

import pytest
import torch

from embodied_kv.config import TINY
from embodied_kv.engine.denoise import Denoiser
from embodied_kv.kv.arena import Arena
from embodied_kv.kv.compressed_arena import CompressedArena
from embodied_kv.kv.views import PrefixWrite, SuffixRead, TailAppend
from embodied_kv.runtime.graph_cache import GraphCache

TOLERANCE = dict(rtol=1e-5, atol=1e-5)
ROWS = [4, 1, 2]


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
