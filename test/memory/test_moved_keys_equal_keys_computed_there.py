"""Keys rotated by a difference of positions equal keys computed at the new positions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_kv.memory.rotate import Rotation
from embodied_kv.model.layers import Rope, rotate, wavelengths

THETA, DIM = 10_000.0, 32
MOVE = Rotation(wavelengths(DIM, THETA)[None])
SHIFTS = st.integers(-2048, 2048)


def raw(tokens=5, heads=2, dtype=torch.float32, seed=0):
    """Return keys before their rotation, [heads, tokens, dim]."""
    made = torch.randn(heads, tokens, DIM, generator=torch.Generator().manual_seed(seed))
    return made.to(dtype)


def by_model(k, start):
    """Return the keys as the model rotates them, at the positions from `start` on."""
    rope = Rope(DIM, THETA)(torch.arange(start, start + k.shape[1])[None], k.dtype)
    return rotate(k.transpose(0, 1)[None], rope)[0].transpose(0, 1)


def exactly(k, start, wavelength=None, scale=1.0):
    """Return scale * R(position) k, computed in float64."""
    wavelength = wavelengths(DIM, THETA) if wavelength is None else wavelength
    angles = torch.arange(start, start + k.shape[1], dtype=torch.float64)[:, None] / wavelength
    cos, sin = scale * angles.cos(), scale * angles.sin()
    first, second = k.double().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def unrotated(k, start, scale=1.0):
    """Return the argument of `exactly`."""
    angles = torch.arange(start, start + k.shape[1], dtype=torch.float64)[:, None]
    angles = angles / wavelengths(DIM, THETA)
    first, second = k.double().chunk(2, dim=-1)
    cos, sin = angles.cos() / scale, angles.sin() / scale
    return torch.cat([first * cos + second * sin, second * cos - first * sin], dim=-1)


@pytest.mark.parametrize(('start', 'by'), [(0, 1), (0, 700), (700, -700), (13, 4000), (4013, -3)])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.float64])
def test_moved_equals_unrotated_moved_and_rotated(start, by, dtype):
    k = exactly(raw(), start).to(dtype)
    wanted = exactly(unrotated(k, start), start + by)
    error = (MOVE(k, by).double() - wanted).abs().max()
    assert error <= {torch.float32: 2e-6, torch.bfloat16: 0.02, torch.float64: 1e-11}[dtype]


@pytest.mark.parametrize('by', [1, 100, 1000])
def test_moved_equals_what_the_model_computes_there(by):
    k = raw()
    torch.testing.assert_close(MOVE(by_model(k, 0), by), by_model(k, by), atol=3e-4, rtol=0)


def test_each_layer_has_its_own_wavelengths():
    lines = torch.stack([wavelengths(DIM, THETA), wavelengths(DIM, 100.0)])
    k = raw()
    assert torch.equal(Rotation(lines)(k, 9, 0), MOVE(k, 9))
    assert torch.equal(Rotation(lines)(k, 9, 1), Rotation(lines[1:])(k, 9))


@settings(deadline=None)
@given(SHIFTS, SHIFTS)
def test_a_then_b_equals_a_plus_b(a, b):
    k = raw(dtype=torch.float64)
    torch.testing.assert_close(MOVE(MOVE(k, a), b), MOVE(k, a + b), atol=1e-11, rtol=0)
    once = MOVE(k.float(), a + b)
    torch.testing.assert_close(MOVE(MOVE(k.float(), a), b), once, atol=5e-6, rtol=0)


@settings(deadline=None)
@given(SHIFTS)
def test_there_and_back_is_where_it_was(a):
    k = raw()
    torch.testing.assert_close(MOVE(MOVE(k, a), -a), k, atol=5e-6, rtol=0)


@settings(deadline=None)
@given(SHIFTS)
def test_lengths_stay(a):
    k = raw()
    torch.testing.assert_close(MOVE(k, a).norm(dim=-1), k.norm(dim=-1), atol=0, rtol=1e-5)


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_zero_changes_no_bit(dtype):
    k = raw(dtype=dtype)
    k[0, 0, 0], k[0, 0, 1] = float('nan'), -0.0
    integers = {2: torch.int16, 4: torch.int32}[k.itemsize]
    assert torch.equal(MOVE(k, 0).view(integers), k.view(integers))


def test_a_scale_is_applied_once():
    """YaRN and similar methods scale cos and sin: stored keys are scaled, a move adds nothing."""
    k = raw(dtype=torch.float64)
    stretched = wavelengths(DIM, THETA) * 4  # positions are scaled as well
    stored = exactly(k, 7, stretched, scale=1.3)
    wanted = exactly(k, 57, stretched, scale=1.3)
    torch.testing.assert_close(Rotation(stretched[None])(stored, 50), wanted, atol=1e-11, rtol=0)


def test_moved_keys_are_new_memory_in_their_dtype():
    k = raw(dtype=torch.bfloat16)
    before = k.clone()
    assert MOVE(k, 3).dtype == torch.bfloat16 and torch.equal(k, before)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match='k must have heads of 32'):
        MOVE(torch.zeros(1, 1, 16), 1)
    with pytest.raises(ValueError, match='wavelengths must be float32'):
        Rotation(torch.ones(1, 4, dtype=torch.float64))
