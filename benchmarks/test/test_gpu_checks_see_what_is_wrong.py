"""The checks of kernels and replays report what differs and what cannot run."""

import json
from argparse import Namespace
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.common.scene import FullPolicy
from benchmarks.gpu import kernels, launches, loading, real, replay
from benchmarks.gpu.stages import STAGES
from embodied_kv.config import PI05, TINY
from embodied_kv.engine.shapes import compiled_shapes
from embodied_kv.engine_config import EngineConfig
from embodied_kv.runtime import compiled

ABOUT = dict(kernel='attention', case='prefill', head_dim=256, dtype='float32')


@pytest.mark.parametrize(
    'error, ok', [(0.0, True), (5e-5, True), (6e-5, False), (float('inf'), False)]
)
def test_an_error_has_its_tolerance(error, ok):
    row = kernels.checked(ABOUT, torch.float32, lambda: error)
    assert (row['ok'], row['error'], row['why']) == (ok, error, '')


def test_stored_bytes_have_none():
    stored = ABOUT | dict(kernel='stored')
    assert not kernels.checked(stored, torch.bfloat16, lambda: 1e-9)['ok']


def test_a_shape_that_cannot_run_says_why():
    def out_of_room():
        raise RuntimeError('out of resource: shared memory\nHint: lower the block size')

    row = kernels.checked(ABOUT, torch.float32, out_of_room)
    assert not row['ok'] and row['error'] is None
    assert row['why'] == 'RuntimeError: out of resource: shared memory'


def test_what_is_not_a_number_differs():
    assert kernels.difference(torch.tensor([1.0, float('nan')]), torch.ones(2)) > 1e30
    assert kernels.difference(torch.ones(2, dtype=torch.bfloat16), torch.ones(2)) == 0


def test_what_is_served_is_checked_first_and_said_at_once(monkeypatch, capsys):
    first, *_ = kernels.checks(False, 'cpu')
    assert (first[0]['head_dim'], first[0]['dtype']) == (256, 'bfloat16')
    checks = [(ABOUT, torch.float32, lambda error=error: error) for error in (0.0, 1.0)]
    monkeypatch.setattr(kernels, 'checks', lambda *_: checks)
    kernels.run(Namespace(dry=False, device='cpu', heads=(), json=True))
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one['ok'], len(one['rows'])) for one in said] == [(True, 1), (False, 2)]


def test_replays_are_compared_without_tf32(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, 'allow_tf32', True)
    monkeypatch.setattr(replay, 'rows', lambda *_: [dict(ok=not torch.backends.cudnn.allow_tf32)])
    assert replay.run(Namespace(device='cuda', dry=False, json=True))['ok']


def test_what_cannot_be_compiled_is_not_measured_as_compiled(monkeypatch):
    def build(*_):
        raise RuntimeError('cannot find -lcuda')

    monkeypatch.setattr(compiled, 'build', build)
    policy = FullPolicy.random(TINY)
    with pytest.raises(SystemExit, match='nothing is compiled.*cannot find -lcuda'):
        real.engine(policy, 1, 'compiled', 'cpu')


def test_a_frame_needs_three_computations_compiled():
    c, e = PI05, EngineConfig(compile='now', rows=10, streams=4)
    needed, every = real.frame_shapes(c, e), compiled_shapes(c, e)
    assert len(needed) == 3 < len(every) and set(needed) < set(every)


def test_every_kernel_is_checked_at_every_head_and_dtype():
    stages = (stage for stage in STAGES if stage.module.endswith('.kernels'))
    heads = [int(head) for stage in stages for head in stage.words if head.isdigit()]
    rows = [about for about, _, _ in kernels.checks(False, 'cpu', heads)]
    for kernel in ('attention', 'segments', 'dense', 'statistics', 'stored'):
        met = {(row['head_dim'], row['dtype']) for row in rows if row['kernel'] == kernel}
        assert met == {(dim, t) for dim in (48, 80, 256) for t in ('float32', 'bfloat16')}


def made(**change):
    trial = replay.Trial(np.zeros((1, 2, 3)), [[1, 2]], [[3]], 0)
    return replace(trial, **change)


@pytest.mark.parametrize(
    'change, exact, close',
    [
        ({}, True, True),
        (dict(actions=np.full((1, 2, 3), 1e-6)), False, True),
        (dict(actions=np.full((1, 2, 3), np.nan)), False, False),
        (dict(greedy=[[1, 3]]), False, False),
        (dict(drawn=[[4]]), False, True),
    ],
)
def test_replays_are_equal_to_the_bit_and_devices_within_a_tolerance(change, exact, close):
    assert replay.compared(made(**change), made(), 0.0)['ok'] == exact
    assert replay.compared(made(**change), made(), replay.TOLERANCE)['ok'] == close


def test_the_floor_of_a_frame_is_that_of_its_phases():
    from benchmarks.common import physics
    from benchmarks.common.clock import Ceilings

    best = Ceilings(gflops=100.0, gbytes=10.0)
    prefill = physics.prefill(TINY, TINY.prefix_tokens, 2)
    step = physics.denoise_step(TINY, TINY.prefix_tokens)
    assert real.frame_floor(TINY, 10, best) == pytest.approx(
        best.floor(**prefill) + 10 * best.floor(**step)
    )
    row = real.row('frame', [0.01, 0.02, 0.03], 0.005)
    assert (row['ms'], row['floor_ms'], row['of_floor']) == (20.0, 5.0, 0.25)


def test_launches_are_counted_and_copies_are_none():
    a, b = torch.ones(2, 8, 8).unbind(0)
    found = {kernel.name: kernel for kernel in launches.kernels(lambda: (a @ b, b @ a), 'cpu')}
    assert found['aten::mm'].launches == 2 and found['aten::mm'].us > 0
    some = [launches.Kernel('gemm', 3, 9.0), launches.Kernel('Memcpy HtoD', 2, 1.0)]
    assert launches.counted(some) == 3


def test_a_prompt_is_of_segments_and_a_question():
    size = loading.size(dry=True)
    asked = loading.prompt(size)
    assert asked.length == size.length <= size.config.max_tokens
    assert [len(piece.ids) for piece in asked.pieces] == [size.tokens] * size.segments
    kept = loading.Kept(size, asked, pinned=False)
    k, v = kept(asked.pieces[0].unit, 1)
    assert k.shape == v.shape == (1, size.tokens, 16) and kept.bytes == k.nbytes + v.nbytes
