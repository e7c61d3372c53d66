"""Time from a row to its reader and its chunk: by a call, as in the product, and by a message.

Both ways carry the same handles in the same process, in turn for each frame. The call runs on the
thread that gives the frame (`nodes.common.handle_feed`). The message is published on `kv_handle`
and received by a subscription on an executor's thread, as the action node received handles before.
Both are measured again while another thread holds the interpreter's lock, as a node does that
converts images.

Then an engine prefills each frame, and its reader has it denoised, by either way in turn. Where
the handle is a message, the engine thread waits for the denoising, up to 5 ms, as it did then.

Physics: the call is one function call, microseconds. The message is serialized, crosses the
middleware, and wakes another thread, which needs the interpreter's lock. Denoising takes the same
time in both ways, so the model is a tiny one. What a call saves is the median of the differences
of consecutive frames.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import rclpy
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor

from benchmarks.common import report
from benchmarks.common.command import BenchmarkError, add_engine, command
from embodied_kv.config import ModelConfig, preset
from embodied_kv.engine.warmup import blank
from embodied_kv.engine_config import EngineConfig
from embodied_kv.kv.handle import KvHandle, Lease
from embodied_kv.model.policy import Policy
from embodied_kv.msg import KvHandle as KvHandleMsg
from embodied_kv.nodes.common import conversions, qos
from embodied_kv.nodes.common.executable import SWITCH
from embodied_kv.serving.engine_runner import EngineRunner, Feed
from embodied_kv.types import ActionChunk

LONGEST = 10.0  # s that a message may take
WAYS = 'call', 'message'
HANDOVER = 0.005  # s that the engine thread waited for the denoising of a frame


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_engine(parser, 'tiny')
    parser.add_argument('--frames', type=int, default=500, help='of each way')
    parser.add_argument('--period', type=float, default=0.02, help='s between two frames')


def handle(number: int) -> KvHandle:
    """Return a frame handle that belongs to no engine."""
    return KvHandle('ab' * 16, 1, number, number, 100, 'cd' * 8, number, float(number))


class Reader:
    """Receives frames in both ways and keeps the moment of each, s. read: takes each frame."""

    def __init__(self, read: Callable[[KvHandle], object] = lambda frame: None) -> None:
        self._read = read
        self._context = Context()
        rclpy.init(context=self._context)
        self._node = rclpy.create_node('handover', context=self._context, namespace='/handover')
        self._publisher = self._node.create_publisher(KvHandleMsg, 'kv_handle', qos.HANDLE)
        self._node.create_subscription(
            KvHandleMsg,
            'kv_handle',
            lambda message: self._receive(conversions.handle(message, '')),
            qos.HANDLE,
        )
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._received, self._at, self._ends = threading.Event(), 0.0, False
        self._feed: Feed[KvHandle] = Feed('a reader of frames')
        self._feed.listen(self._receive)
        self._thread.start()

    def seconds(self, way: str, given: KvHandle) -> float:
        """Return the time from giving to receiving. Raises BenchmarkError if nothing arrives."""
        self._received.clear()
        began = time.perf_counter()
        self.give(way, given)
        if not self._received.wait(LONGEST):
            raise BenchmarkError(f'a {way} did not arrive within {LONGEST:g} s')
        return self._at - began

    def give(self, way: str, given: KvHandle) -> None:
        """Hand over a frame and do not wait for a message to arrive."""
        if way == 'call':
            self._feed.give(given)
        else:
            self._publisher.publish(conversions.handle_message(given))

    def _receive(self, given: KvHandle) -> None:
        self._at = time.perf_counter()
        self._read(given)
        self._received.set()

    def _spin(self) -> None:
        while not self._ends:
            self._executor.spin_once(timeout_sec=0.05)

    def close(self) -> None:
        """End the thread and the node."""
        self._ends = True
        self._thread.join()
        self._executor.shutdown()
        self._node.destroy_node()
        rclpy.shutdown(context=self._context)


class Actor:
    """An engine whose frames a reader has denoised, as the action node does.

    config: its dimensions, with random weights. threads: of torch.
    """

    def __init__(self, config: ModelConfig, threads: int, device: str) -> None:
        policy = Policy.random(config, 0, device)
        settings = EngineConfig(time_budget=False, streams=1, threads=threads, device=device)
        self._runner = EngineRunner(policy, settings)
        self._reader = Reader(self._denoise)
        self._asked, self._done = threading.Event(), threading.Event()
        self._began = self._at = 0.0
        self._frame = replace(blank(self._runner.engine), robot='')

    def seconds(self, way: str, number: int) -> float:
        """Return the time from a frame's row to its chunk. Raises BenchmarkError without one."""
        self._done.clear()
        frame = replace(self._frame, deadline=time.monotonic() + LONGEST, sequence=number)
        self._runner.device.prefill(frame, partial(self._give, way))
        if not self._done.wait(LONGEST):
            raise BenchmarkError(f'a frame that was handed over by a {way} has no chunk')
        return self._at - self._began

    def _give(self, way: str, row: Future[KvHandle]) -> None:
        """Hand the row over, on the engine thread."""
        self._asked.clear()
        self._began = time.perf_counter()
        self._reader.give(way, row.result())
        self._asked.wait(HANDOVER)  # a call has submitted it already

    def _denoise(self, frame: KvHandle) -> None:
        lease = self._runner.engine.kv.acquire(frame)
        chunk = self._runner.device.denoise(lease, frame.deadline)
        self._asked.set()
        chunk.add_done_callback(partial(self._on_chunk, lease))

    def _on_chunk(self, lease: Lease, chunk: Future[ActionChunk | None]) -> None:
        self._at = time.perf_counter()
        lease.release()
        if chunk.result() is not None:
            self._done.set()

    def close(self) -> None:
        """End the threads and the node."""
        self._reader.close()
        self._runner.stop()


def measured(frames: int, period: float, is_busy: bool, actor: Actor | None = None) -> dict:
    """Return the median and the 99th percentile of each way, and what a call saves, microseconds.

    The times are to the reader, or with an actor to the chunk.
    """
    with ExitStack() as over:
        if is_busy:
            over.enter_context(_busy())
        if actor is None:
            reader = Reader()
            over.callback(reader.close)
            seconds = lambda way, number: reader.seconds(way, handle(number))  # noqa: E731
        else:
            seconds = actor.seconds
        for way in WAYS:  # discovery
            seconds(way, 0)
        taken = {way: [] for way in WAYS}
        for number in range(1, frames + 1):
            for way in WAYS:
                time.sleep(period)
                taken[way].append(seconds(way, number) * 1e6)
    found = {
        way: dict(p50_us=float(np.median(us)), p99_us=float(np.percentile(us, 99)))
        for way, us in taken.items()
    }
    saved = np.median(np.subtract(taken['message'], taken['call']))
    return found | dict(saved_us=float(saved))


@contextmanager
def _busy() -> Iterator[None]:
    """Let another thread hold the interpreter's lock."""
    over = threading.Event()
    thread = threading.Thread(target=_keep_busy, args=(over,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _keep_busy(over: threading.Event) -> None:
    number = 0
    while not over.is_set():
        number += 1


def run(args: argparse.Namespace) -> dict:
    """Measure both ways, alone and next to a busy thread, to the reader and to the chunk."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH)  # as in every process of nodes
    try:
        reader = _both(partial(measured, args.frames, args.period))
        actor = Actor(preset(args.preset), args.threads, args.device)
        try:
            chunk = _both(partial(measured, args.frames, args.period, actor=actor))
        finally:
            actor.close()
    finally:
        sys.setswitchinterval(before)
    if not args.json:
        _show('From the row to its reader', reader)
        _show(f'From the row to its chunk, {args.preset}', chunk)
    return dict(reader=reader, chunk=chunk, preset=args.preset)


def _both(measure: Callable[..., dict]) -> dict[str, dict]:
    return {beside: measure(is_busy=beside == 'busy') for beside in ('alone', 'busy')}


def _show(title: str, found: dict[str, dict]) -> None:
    rows = [
        dict(beside=beside, way=way, **ways[way], saved_us=ways['saved_us'])
        for beside, ways in found.items()
        for way in WAYS
    ]
    report.show(title, rows)


main = command('handover', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
