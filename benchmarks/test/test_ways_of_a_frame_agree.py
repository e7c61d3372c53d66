"""`benchmarks.frame` compares the same work: equal actions, equal text, N tokens per frame."""

import time

import numpy as np
import pytest
import torch

from benchmarks.common.scene import QUERY, FullPolicy, observation
from benchmarks.frame import measure
from benchmarks.frame.copying import CopyingStreams
from benchmarks.frame.measure import Timed
from benchmarks.frame.modes import Batched, Setting, make_mode
from embodied_kv.config import TINY
from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig


class Clocked:
    """A way with little work and a clock of its own."""

    def __init__(self, timer):
        self.timer = timer

    def frame(self, number):
        return np.full(3, sum(range(1000))), number


@pytest.fixture(scope='module')
def policy():
    torch.set_num_threads(1)
    return FullPolicy.random(TINY)


@torch.inference_mode()
def test_all_ways_give_the_same_actions(policy):
    setting = Setting(tokens=9, steps=2, chunk_size=TINY.chunk_size)
    ways = [
        make_mode(name, policy, setting) for name in ('isolated', 'shared', 'batched', 'copying')
    ]
    for number in range(3):
        actions = [way.frame(number)[0] for way in ways]
        for other in actions[1:]:
            np.testing.assert_array_equal(actions[0], other)


@torch.inference_mode()
@pytest.mark.parametrize('tokens, steps', [(9, 1), (9, 2), (11, 5), (10, 4)])
def test_a_frame_of_the_steady_state_says_n_tokens(policy, tokens, steps):
    way = Batched(policy, Setting(tokens, steps, TINY.chunk_size))
    said = [way.frame(number)[1] for number in range(2 * tokens)]
    assert set(said) == {tokens}
    assert way.engine.kv.stats().evictions == 0
    way.engine.kv.check_integrity()


@torch.inference_mode()
def test_copying_says_what_sharing_says(policy):
    engine = Engine(policy, EngineConfig(time_budget=False))
    copies = CopyingStreams(policy.model, TINY.prefix_tokens + 40)
    streams = []
    for number in range(3):
        (handle,) = engine.prefill([observation(TINY, number)])
        streams.append(engine.open(handle, QUERY, max_tokens=20))
        copies.open(engine.kv.prefixes, handle.row, list(streams[-1].query.ids), tokens=20)
    said = list(copies.streams)
    while engine.kv.streams.live():
        engine.decode()
    while len(copies):
        copies.decode(steps=3)
    assert [stream.tokens for stream in streams] == [copy['said'][:20] for copy in said]


@torch.inference_mode()
def test_every_figure_of_a_row_is_there_and_finite(policy):
    (row,), ratios = measure.run(
        policy, [Setting(9, 2, TINY.chunk_size)], ['isolated', 'shared', 'batched', 'copying'], 2
    )
    assert row['actions_equal'] is True
    assert all(np.isfinite(value) and value >= 0 for value in row.values())
    assert [other['way'] for other in ratios] == ['isolated', 'shared', 'copying']
    for other in ratios:
        assert 0 < other['low'] <= other['ratio'] <= other['high']
        assert 0 < other['wall_low'] <= other['wall'] <= other['wall_high']


def test_cpu_time_is_not_compared_with_wall_time():
    timers = dict(
        batched=time.process_time, isolated=time.process_time, parallel=time.perf_counter
    )
    ways = {name: Timed(Clocked(timer), skip=0) for name, timer in timers.items()}
    for number in range(4):
        for way in ways.values():
            way.frame(number)
    isolated, parallel = measure.compared(ways)
    assert isolated['ratio'] and isolated['wall']
    assert parallel['ratio'] is None and parallel['wall']


def test_first_frames_do_not_count():
    way = Timed(Clocked(time.process_time), skip=1)
    for number in range(3):
        way.frame(number)
    assert len(way.own) == len(way.wall) == 2
