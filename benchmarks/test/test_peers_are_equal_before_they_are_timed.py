"""Benchmark peers compares outputs before it times anything, and then times all ways in turn."""

import json
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.common import report
from benchmarks.common.command import BenchmarkError
from benchmarks.peers import __main__ as peers
from benchmarks.peers import lerobot, measure
from benchmarks.peers.both import Both
from benchmarks.peers.ways import WAYS, Asked, Network, Way, ours
from embodied_kv.config import TINY, TINY_SMOLVLA

SHAPE = TINY.chunk_size, TINY.padded_action_dim
FIRST = SimpleNamespace(number=0)


def way(error=0.0, denoised=0.0, calls=None, name=''):
    """Return a way with actions n + error for frame n, which appends its calls to `calls`."""

    def call(what, value):
        if calls is not None:
            calls.append((name, what))
        return np.full(SHAPE, value, np.float32)

    return Way(
        lambda: call('prefill', 0),
        lambda: call('denoise', denoised),
        lambda asked: call('frame', getattr(asked, 'number', 0) + error),
    )


class Pair:
    """A stand-in for `Both` with given ways."""

    policy, parameters = Network.random(TINY), 7
    peer = SimpleNamespace(compile_mode='max-autotune')

    def __init__(self, **ways):
        self.ways, self.opened_in_turn = ways, []

    def theirs(self, first):
        return way()

    def to(self, dtype):
        self.opened_in_turn.append(dtype)
        return self

    @contextmanager
    def opened(self, names, first, threads):
        self.opened_in_turn.append(names)
        yield {name: self.ways.get(name, way()) for name in names}


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Return a function that runs the command with a pair and returns its figures."""
    monkeypatch.setattr(report, 'OUT', tmp_path)
    monkeypatch.setattr(report, 'ceilings', lambda *_: dict(gflops=100.0, gbytes=10.0))
    monkeypatch.setattr(lerobot, 'source', lambda path, model: path)
    monkeypatch.setattr(lerobot, 'imported', lambda package, model: nullcontext())

    def run(pair, *words):
        monkeypatch.setattr(Both, 'random', lambda *_: pair)
        peers.main(['--lerobot', '.', '--preset', 'tiny', '--device', 'cpu', *words])
        return json.loads((tmp_path / 'peers.json').read_text())

    return run


def test_the_greatest_difference_is_of_all_frames_and_of_denoising():
    frames = [SimpleNamespace(number=n) for n in range(3)]
    assert measure.greatest_difference(way(), frames, way()) == 0
    assert measure.greatest_difference(way(error=0.5), frames, way()) == 0.5
    assert measure.greatest_difference(way(denoised=-0.25), frames, way()) == 0.25
    assert np.isnan(measure.greatest_difference(way(denoised=np.nan), frames, way()))


@pytest.mark.parametrize('error', [2e-3, np.nan])
def test_what_differs_is_named_and_refused(error):
    ways = dict(ours_eager=way(), ours_compiled=way(error=error))
    with pytest.raises(BenchmarkError, match='ours_compiled') as caught:
        measure.check(ways, [FIRST], way(), 1e-3)
    assert 'ours_eager' not in str(caught.value)
    assert measure.check(dict(ours_eager=way(error=5e-4)), [FIRST], way(), 1e-3)


def test_ways_take_turns_in_every_phase():
    calls = []
    ways = {name: way(calls=calls, name=name) for name in ('a', 'b')}
    taken = measure.in_turn(ways, FIRST, 2, 'cpu')
    assert list(taken) == ['prefill', 'denoise', 'frame']
    assert [name for name, what in calls if what == 'frame'] == [*'abbaabba']
    assert all(len(own) == 2 for phase in taken.values() for own in phase.values())


def test_a_run_prints_tables_aims_and_all_figures(command, capsys, tmp_path):
    pair = Pair(ours_compiled=way(error=2**-16))
    found = command(pair, '--repeats', '1')
    out = capsys.readouterr().out
    assert json.loads(out.splitlines()[-1]) == found and 'theirs over ours' in out
    assert pair.opened_in_turn == [peers.EAGER, 'float32', list(WAYS)]
    assert found['differences']['float32'] == dict.fromkeys(WAYS, 0.0) | dict(ours_compiled=2**-16)
    assert len(found['rows']) == 3 and len(found['ratios']) == 12
    assert found['parameters'] == 7 and found['machine']['cpu_flags'] is not None
    assert (tmp_path / 'peers.png').exists()


def test_a_difference_is_no_figure(command, capsys, tmp_path):
    pair = Pair(ours_eager=way(error=0.1))
    with pytest.raises(SystemExit) as caught:
        command(pair)
    assert caught.value.code == 2 and not list(tmp_path.iterdir())
    assert 'outputs differ by more than 0.0001: ours_eager by 0.1' in capsys.readouterr().err
    assert pair.opened_in_turn == [peers.EAGER]  # before anything is compiled


def test_ours_says_what_leaves_the_network():
    policy = Network.random(TINY)
    first, other = Asked.of(policy, 0), Asked.of(policy, 1)
    with ours(policy, first, 1, 'off') as engine:
        chunk = engine.frame(first)
        assert chunk.shape == SHAPE and not np.array_equal(chunk, engine.frame(other))
        assert np.array_equal(chunk, engine.denoise())  # of the first frame, after others
        engine.prefill()
    assert len(first.images) == len(TINY.views) and first.ids.ndim == 2
    assert first.images[0].shape == (1, 3, *[TINY.vision.image_size] * 2)


def test_the_state_token_is_the_same_for_both():
    policy = Network.random(TINY_SMOLVLA)
    asked = Asked.of(policy, 0)
    state = policy.processing.state(asked.observation.state)
    assert asked.state.shape == (1, TINY_SMOLVLA.state_width)
    assert np.array_equal(asked.state[0], policy.state_token(state))


def test_the_command_says_its_physics(capsys):
    with pytest.raises(SystemExit) as caught:
        peers.main(['--help'])
    said = capsys.readouterr().out
    assert caught.value.code == 0 and 'Physics:' in said and '--lerobot PATH' in said
    assert '--policy {pi05,smolvla}' in said
