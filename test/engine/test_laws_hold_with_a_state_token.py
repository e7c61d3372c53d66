"""A model with a state token passes the tests of a model whose prompt contains the state.

The imported tests run here with the policy of this module.
"""

# ruff: noqa: F401

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from capsule_sessions import QUESTIONS, begin, capsules_of
from test_a_served_row_comes_back import served, test_a_restored_row_equals_the_one_that_was_frozen
from test_compressed_prefixes_are_read_like_whole_ones import (
    test_a_batch_of_whole_and_compressed_equals_each_alone,
    test_decoding_reads_the_kept_tokens_alone,
)
from test_given_actions_are_kept import (
    test_given_actions_come_out_as_they_went_in,
    test_one_graph_serves_every_delay,
)
from test_guidance_pulls_towards_the_leftover import test_guided_euler_steps_equal_the_reference
from test_prefix_row_never_changes import test_denoising_stores_nothing
from test_restore_then_decode_equals_never_interrupted import (
    test_a_snapshot_of_what_was_restored_is_the_same_bytes,
    test_streams_over_several_frames_keep_theirs,
)
from test_shared_prefill_equals_isolated_actions import (
    test_a_batch_of_frames_equals_each_alone,
    test_a_missing_view_takes_no_room,
    test_actions_do_not_depend_on_the_row_they_are_read_from,
    test_shared_equals_isolated,
)

from embodied_kv.config import TINY_PI0, TINY_SMOLVLA
from embodied_kv.model.policy import Policy


@pytest.fixture(scope='module', params=[TINY_PI0, TINY_SMOLVLA], ids=lambda config: config.name)
def policy(request):
    torch.set_num_threads(1)
    return Policy.random(request.param, seed=1)


def chunk(engine, seen):
    (handle,) = engine.prefill([seen])
    with engine.kv.acquire(handle) as lease:
        (made,) = engine.denoise([lease], [math.inf], np.ones((1, 6, 8), np.float32))
    return handle, made.values


def moved(seen):
    """Return the same frame with another state."""
    return replace(seen, state=seen.state[::-1].copy())


def offsets(engine, seen):
    """Return the actions as offsets from the state."""
    return chunk(engine, seen)[1] - seen.state


def test_the_state_is_read_from_its_token_alone(make_engine, observe, policy):
    engine, seen = make_engine(), observe(1)
    assert policy.prompt_ids('reach', seen.state) == policy.prompt_ids('reach', -seen.state)
    difference = np.abs(offsets(engine, seen) - offsets(engine, moved(seen))).max()
    assert difference > 1e-4  # offsets are at most 0.05 with random weights


def test_the_token_is_the_last_one_of_the_row(make_engine, observe):
    engine, seen = make_engine(), observe(1)
    text = len(engine.policy.prompt_ids(seen.instruction, seen.state))
    written = []
    for each in (seen, moved(seen)):
        handle, _ = chunk(engine, each)
        assert handle.length == 2 * TINY_PI0.vision.tokens + text + 1
        written.append([part.clone() for part in engine.kv.prefixes.row(handle.row)])
    for one, other in zip(*written, strict=True):
        assert torch.equal(one[:, :, :-1], other[:, :, :-1])
        assert not torch.equal(one[:, :, -1], other[:, :, -1])


@pytest.mark.parametrize('name', ['vl_cache', 'streaming_llm', 'random'])
def test_compression_keeps_the_token_whatever_its_method(make_engine, observe, name):
    engine = make_engine(action_keep_ratio=0.2, compression_method=name)
    seen = observe(1)
    handle, values = chunk(engine, seen)
    with engine.kv.reading([engine.kv.acquire(handle)], 'action') as (copy,):
        assert copy.is_copy
        lengths = engine.kv.compressed.lengths[:, copy.row]
        layers, projected = TINY_PI0.backbone.layers, engine.policy.config.cross_layers
        kept = lengths[:layers]
        assert kept.sum() == round(0.2 * layers * (handle.length - 1)) + layers  # state tokens
        assert lengths[layers:].tolist() == [kept[i] for i in projected]
    difference = np.abs(values - seen.state - offsets(engine, moved(seen))).max()
    assert difference > 1e-4


def test_a_capsule_of_a_stream_that_waits_for_its_copy_is_restored(make_engine, observe):
    how = dict(compression_queries='text', compression_after_tokens=4, language_keep_ratio=0.4)
    engine = make_engine(**how)
    begin(engine, observe(1), steps=0)
    capsules = capsules_of(engine)
    frozen, _ = capsules.snapshot('waiting')
    assert any(name.endswith('/columns') for name in frozen.tensors)
    capsules.rollback('waiting')
    assert len(engine.kv.streams.live()) == len(QUESTIONS)
