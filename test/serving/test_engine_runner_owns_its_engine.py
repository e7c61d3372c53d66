"""An engine runner starts, profiles and stops an engine, and forwards its text."""

import threading
import time
from dataclasses import replace

import pytest

from embodied_kv.config import TINY
from embodied_kv.engine.warmup import blank
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model.policy import Policy
from embodied_kv.runtime.graph_cache import GraphCache
from embodied_kv.serving import engine_runner
from embodied_kv.serving.engine_runner import EngineRunner

CONFIG = EngineConfig(rows=8, max_batch_robots=2, streams=2, time_budget=False)


class Compiling:
    """A fake compiler process that records its calls."""

    def __init__(self):
        self.asked = []

    def resume(self):
        self.asked.append('resume')

    def pause(self):
        self.asked.append('pause')

    def stop(self):
        self.asked.append('stop')


@pytest.fixture(scope='module')
def policy():
    return Policy.random(TINY, seed=1)


@pytest.fixture
def compiling(monkeypatch):
    made = Compiling()
    monkeypatch.setattr(GraphCache, 'compile_later', lambda graphs, say, submit: made)
    return made


def engine_threads():
    return [thread for thread in threading.enumerate() if thread.name == 'device']


def test_listeners_receive_text_and_tokens_are_counted_once(policy, caplog):
    heard, others = [], []

    def fail(_):
        raise RuntimeError('a listener')

    with EngineRunner(policy, CONFIG) as runner:
        for listener in (fail, heard.extend, others.extend):
            runner.deltas.listen(listener)
        runner.deltas.unlisten(others.extend)
        frame = replace(blank(runner.engine), deadline=time.monotonic() + 60.0)
        handle = runner.device.prefill(frame).result(60)
        stream = runner.engine.open(handle, 'Subtask:', max_tokens=5)
        runner.device.wake()
        deadline = time.monotonic() + 60.0
        while not any(delta.finished for delta in heard):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert {delta.stream for delta in heard} == {stream.id} and not others
        assert runner.tokens == len(stream.tokens) > 0
    assert 'a listener of text deltas failed' in caplog.text


def test_a_profile_has_every_batch_size_and_is_measured_while_nothing_is_compiled(
    policy, compiling, monkeypatch
):
    measure, then = engine_runner.batch_seconds, []

    def measured(engine, repeats):
        then.append(list(compiling.asked))
        return measure(engine, repeats)

    monkeypatch.setattr(engine_runner, 'batch_seconds', measured)
    with EngineRunner(policy, CONFIG) as runner:
        profile = runner.profile(repeats=1)
    assert profile.sizes == (1, 2) and then == [['resume', 'pause']]
    assert compiling.asked == ['resume', 'pause', 'resume', 'stop']


def test_the_compiler_is_held_as_long_as_one_reason_is_left(policy, compiling):
    with EngineRunner(policy, CONFIG) as runner:
        for reason, holds in (('a', True), ('b', True), ('a', False), ('b', False)):
            runner.hold_compiler(reason, holds)
    assert compiling.asked == ['resume', 'pause', 'pause', 'pause', 'resume', 'stop']


def test_an_engine_that_cannot_warm_up_leaves_no_thread(policy, compiling, monkeypatch):
    def fail(engine):
        raise RuntimeError('no memory')

    monkeypatch.setattr(engine_runner, 'warm_up', fail)
    before = engine_threads()
    with pytest.raises(RuntimeError, match='no memory'):
        EngineRunner(policy, CONFIG)
    assert engine_threads() == before and not compiling.asked


def test_stop_ends_the_engine_thread(policy):
    with EngineRunner(policy, CONFIG) as runner:
        assert runner.device.is_alive()
    assert not runner.device.is_alive() and runner.compiling is None
