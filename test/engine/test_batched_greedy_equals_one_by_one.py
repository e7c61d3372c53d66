"""Streams decoded in one batch, in any order of arrival, get the tokens that each gets alone.

In float32, with a padded batch.
"""

from contextlib import contextmanager

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embodied_kv.engine.decode import Decoder

MARGIN = 1e-4
TOLERANCE = 2e-5

Arrival = st.tuples(
    st.integers(0, 4),  # index of its frame
    st.sampled_from(['Subtask:', 'Is it done?', 'x']),
    st.integers(2, 14),  # maximum number of tokens
    st.integers(0, 6),  # decode steps since the previous arrival
)


@contextmanager
def recorded_logits():
    """Record the logits of every step by stream: {stream: [logits, ...]}."""
    record, run = {}, Decoder._run

    def recording(decoder, streams, *others):
        said = run(decoder, streams, *others)
        for row, stream in zip(decoder._out, streams, strict=False):
            record.setdefault(stream, []).append(row.clone())
        return said

    Decoder._run = recording
    try:
        yield record
    finally:
        Decoder._run = run


def finish(engine):
    while engine.kv.streams.live():
        engine.decode()


def speak(engine, arrivals, handles):
    """Open each arrival after its pause, decode all streams, and return them in order."""
    streams = []
    for frame, text, tokens, pause in arrivals:
        for _ in range(pause):
            engine.decode()
        streams.append(engine.open(handles[frame], text, max_tokens=tokens))
    finish(engine)
    return streams


def hold_frames(engine, observe):
    handles = engine.prefill([observe(sequence, robot=f'r{sequence}') for sequence in range(5)])
    return handles, [engine.kv.acquire(handle) for handle in handles]


@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(arrivals=st.lists(Arrival, min_size=2, max_size=8))
def test_batched_equals_one_by_one(make_engine, observe, arrivals):
    engine = make_engine(decode_batch_multiple=8)
    handles, leases = hold_frames(engine, observe)
    with recorded_logits() as batched_logits:
        batched = speak(engine, arrivals, handles)
    engine.kv.check_integrity()
    with recorded_logits() as alone_logits:
        alone = [
            speak(engine, [(frame, text, tokens, 0)], handles)[0]
            for frame, text, tokens, _ in arrivals
        ]
    for one, many in zip(alone, batched, strict=True):
        for expected, got in zip(alone_logits[one], batched_logits[many], strict=False):
            torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=0)
            best, second = expected.topk(2).values
            if best - second <= MARGIN:
                break  # a tie: either token is right, and the rest differs
            assert got.argmax() == expected.argmax()
        else:
            assert (one.tokens, one.reason) == (many.tokens, many.reason)
    for lease in leases:
        lease.release()


def test_interrupted_and_resumed_equals_uninterrupted(make_engine, observe):
    engine = make_engine(decode_batch_multiple=8)
    handles, _ = hold_frames(engine, observe)
    whole = engine.open(handles[0], 'Subtask:', max_tokens=20)
    finish(engine)
    parts = engine.open(handles[0], 'Subtask:', max_tokens=20)
    for sequence in range(5, 25):
        engine.decode()
        engine.prefill([observe(sequence)])  # other frames are computed between two tokens
        if sequence == 7:
            seen = observe(sequence + 100)
            with engine.kv.frames.leases(engine.prefill([seen])) as leases:
                engine.denoise(leases, [seen.deadline])
    finish(engine)
    assert (parts.tokens, parts.reason) == (whole.tokens, whole.reason)


def test_sampled_stream_depends_on_its_seed_alone(make_engine, observe):
    engine = make_engine(decode_batch_multiple=8)
    handles, _ = hold_frames(engine, observe)

    def sample(seed, company):
        for i in range(company):
            engine.open(handles[i], 'x', max_tokens=10, temperature=1.0, seed=i)
        stream = engine.open(handles[4], 'Subtask:', max_tokens=16, temperature=1.0, seed=seed)
        finish(engine)
        return stream.tokens

    assert sample(7, company=0) == sample(7, company=4)
    assert sample(7, company=0) != sample(8, company=0)


def test_a_stream_attends_to_its_frame(make_engine, observe):
    engine = make_engine()
    handles, _ = hold_frames(engine, observe)
    with recorded_logits() as logits:
        streams = [engine.open(handle, 'Subtask:', max_tokens=2) for handle in handles[:2]]
        finish(engine)
    first, second = (logits[stream][0] for stream in streams)
    assert (first - second).abs().max() > 100 * TOLERANCE
