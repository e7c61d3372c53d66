"""An error in a thread, callback, future or process ends a benchmark and is reported."""

import argparse
import logging
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

import embodied_kv
from benchmarks.common import report
from benchmarks.common.command import BenchmarkError, command
from benchmarks.common.workers import Workers, check_status, received
from benchmarks.deadline import serve
from benchmarks.safety.world import PolicyServer
from embodied_kv.capsule.tiers import NoRoomError, TierCapacities
from embodied_kv.serving.websocket import codec


class LostError(Exception):
    """The error that the workers of these tests raise."""


def fail(*_):
    raise LostError('of a worker')


def in_a_thread():
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()


def in_a_callback():
    future = Future()
    future.add_done_callback(fail)
    future.set_result(None)


@pytest.mark.parametrize('work', [in_a_thread, in_a_callback])
@pytest.mark.parametrize('then', [lambda: {}, lambda: 1 / 0, lambda: refuse()])
def test_a_benchmark_ends_with_the_error_of_its_worker(work, then, monkeypatch, tmp_path):
    monkeypatch.setattr(report, 'OUT', tmp_path)

    def run(args):
        work()
        return then()

    with pytest.raises(LostError, match='of a worker'):
        command('test', 'a test', lambda parser: None, run)([])
    assert not list(tmp_path.iterdir())


def refuse():
    raise BenchmarkError('what cannot be measured')


def test_the_exit_status_of_such_a_benchmark_is_not_0(tmp_path):
    code = (
        'import threading\n'
        'from benchmarks.common.command import command\n'
        'def run(args):\n'
        '    thread = threading.Thread(target=lambda: 1 / 0)\n'
        '    thread.start(); thread.join()\n'
        '    return {}\n'
        "command('test', 'a test', lambda parser: None, run)([])\n"
    )
    paths = f'{Path(embodied_kv.__file__).parents[1]}:{os.environ.get("PYTHONPATH", "")}'
    ended = subprocess.run(
        [sys.executable, '-c', code],
        capture_output=True,
        cwd=tmp_path,
        env=os.environ | {'PYTHONPATH': paths},
    )
    assert ended.returncode == 1 and b'ZeroDivisionError' in ended.stderr and not ended.stdout


def test_a_watched_future_and_function_count_and_a_cancelled_future_does_not():
    cancelled = Future()
    with Workers() as workers:
        workers.watch(cancelled)
        cancelled.cancel()
        workers.check()
    with ThreadPoolExecutor(1) as thread:
        with pytest.raises(LostError), Workers() as workers:
            workers.watch(thread.submit(fail)).exception()
        with pytest.raises(LostError), Workers() as workers:
            thread.submit(workers.watched(fail)).exception()


def test_the_first_error_is_raised_unless_it_was_expected():
    with pytest.raises(LostError), Workers(lambda error: isinstance(error, KeyError)) as workers:
        for error in (KeyError(), LostError(), ValueError()):
            workers.failed(error)


def test_nothing_is_changed_once_the_workers_are_done():
    before = threading.excepthook, list(logging.getLogger('concurrent.futures').handlers)
    with Workers():
        assert threading.excepthook != before[0]
    assert before == (
        threading.excepthook,
        logging.getLogger('concurrent.futures').handlers,
    )


def test_the_status_of_a_process_is_checked():
    check_status('a child', None)
    check_status('a child', 0)
    with pytest.raises(RuntimeError, match='a child failed: exit status -9: its words'):
        check_status('a child', -9, 'its words')


def test_a_child_that_ends_without_a_word_fails_and_a_slow_one_does_not():
    spawn = get_context('fork')
    queue = spawn.Queue()

    def put(seconds):
        time.sleep(seconds)
        queue.put(seconds)

    children = [spawn.Process(target=put, args=(seconds,)) for seconds in (0.0, 2.5)]
    children.append(spawn.Process(target=os._exit, args=(3,), name='the third'))
    for child in children:
        child.start()
    assert [received(queue, *children[:2]) for _ in range(2)] == [0.0, 2.5]
    with pytest.raises(RuntimeError, match='the third failed: exit status 3'):
        received(queue, *children)
    for child in children:
        child.join()


ARGS = dict(preset='tiny', views=None, threads=1, device='cpu', compile='off', period=0.05)


def served(deadlines, **named):
    return serve.serve(argparse.Namespace(deadlines=deadlines, **ARGS), True, **named)


def test_deadlines_end_where_a_snapshot_fails(monkeypatch):
    monkeypatch.setattr(serve, 'SNAPSHOT_EVERY', 0.1)
    monkeypatch.setattr(serve, 'CAPACITIES', TierCapacities(device=1, host=1))
    began = time.monotonic()
    with pytest.raises(NoRoomError, match='larger than the tier'):
        served(100_000, freeze=True)
    assert time.monotonic() - began < 1_000


def test_deadlines_end_where_language_fails(monkeypatch):
    monkeypatch.setattr(serve.Backlog, 'refill', fail)
    with pytest.raises(LostError):
        served(100_000)


def test_snapshots_go_on_under_one_budget_where_the_host_is_full(monkeypatch):
    monkeypatch.setattr(serve, 'SNAPSHOT_EVERY', 0.02)
    monkeypatch.setattr(serve, 'CAPACITIES', TierCapacities(host=10**5, policy='drop'))
    found = served(120, freeze=True, kv_budget_mib=1)
    # more MB than the budget and the host tier hold
    assert found['snapshots']['count'] * found['snapshots']['mb'] > 1.2
    assert found['tokens_s'] > 0


def test_a_policy_that_fails_is_an_error_of_the_server_around_it():
    server = PolicyServer(fail, ['state'])
    with pytest.raises(LostError):
        try:
            with connect(server.address, compression=None, proxy=None) as socket:
                socket.recv(20)
                socket.send(codec.pack({'state': [0.0]}))
                with pytest.raises(ConnectionClosed):
                    socket.recv(20)
        finally:
            server.close()
