"""`benchmarks.frame` compares the same work: equal actions, equal text, N tokens per frame."""

import numpy as np
import pytest
import torch

from benchmarks.common.scene import QUERY, FullPolicy, observation
from benchmarks.frame import measure
from benchmarks.frame.copying import CopyingStreams
from benchmarks.frame.modes import Batched, Setting, make_mode
from embodied_kv.config import TINY
from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig


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
    (row,) = measure.run(
        policy, [Setting(9, 2, TINY.chunk_size)], ['isolated', 'shared', 'batched', 'copying'], 2
    )
    assert row['actions_equal'] is True
    assert row['speedup'] == row['isolated_ms'] / row['batched_ms']
    assert all(np.isfinite(value) and value >= 0 for value in row.values())
