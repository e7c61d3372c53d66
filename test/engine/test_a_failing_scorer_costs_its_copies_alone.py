"""A compression method that fails costs only its copies; frames and answers are unaffected."""

import logging

import pytest

from embodied_kv.engine.engine_thread import EngineThread

SMALL = dict(rows=8, max_batch_robots=2, streams=4, compressed_rows=4)


class Failing:
    """The engine's method, whose `select` fails at every n-th call."""

    def __init__(self, real, each=1):
        self.real, self.each, self.calls = real, each, 0

    def __getattr__(self, name):
        return getattr(self.real, name)

    def select(self, *args):
        self.calls += 1
        if self.calls % self.each == 0:
            raise RuntimeError('the scorer failed')
        return self.real.select(*args)


@pytest.fixture
def make_failing(make_engine):
    def make(each=1, **config):
        engine = make_engine(**SMALL | config)
        engine.compression.method = Failing(engine.compression.method, each)
        return engine

    return make


def answer(engine, stream):
    while engine.kv.streams.live():
        engine.decode()
    engine.kv.check_integrity()
    return stream.tokens, stream.reason


@pytest.mark.parametrize('consumer', ['language_keep_ratio', 'action_keep_ratio'])
def test_all_frames_of_a_batch_are_committed_and_read_whole(
    make_failing, observe, caplog, consumer
):
    engine = make_failing(each=2, compression_queries='row', **{consumer: 0.3})
    with caplog.at_level(logging.ERROR):
        handles = engine.prefill([observe(n, robot=f'r{n}') for n in range(2)])
    assert engine.kv.stats().rows_free == 6 and len(engine.kv.copies) == 1
    assert engine.kv.copies.scoring_failures == 1
    assert "robot 'r1'" in caplog.text and 'the scorer failed' in caplog.text
    with engine.kv.frames.leases(handles) as leases:
        assert len(engine.denoise(leases, [float('inf')] * 2)) == 2
    engine.kv.check_integrity()


@pytest.mark.parametrize('by', ['row', 'stream', 'text'])
def test_a_stream_answers_from_the_whole_row(make_engine, make_failing, observe, by):
    said = []
    for engine in (
        make_engine(**SMALL),
        make_failing(compression_queries=by, language_keep_ratio=0.3),
    ):
        (handle,) = engine.prefill([observe(1)])
        stream = engine.open(handle, 'what?', max_tokens=4)
        said.append(answer(engine, stream))
    assert said[0] == said[1] and len(engine.kv.copies) == 0
    assert engine.kv.copies.scoring_failures == 1


def test_failures_are_logged_at_a_bounded_rate(make_failing, observe, caplog):
    engine = make_failing(compression_queries='row', language_keep_ratio=0.3)
    with caplog.at_level(logging.ERROR):
        for n in range(10):
            engine.prefill([observe(n)])
    assert engine.kv.copies.scoring_failures == 10 and len(caplog.records) < 10


def test_every_frame_reaches_whoever_asked_for_it(make_failing, observe):
    engine = make_failing(compression_queries='row', language_keep_ratio=0.3)
    device = EngineThread(engine, lambda deltas: None)
    device.start()
    try:
        for n in range(5):
            assert device.prefill(observe(n)).result(60).sequence == n
    finally:
        device.stop()
