"""Time from a written row to its reader: by a call, as the product does, and by a message.

Both ways carry the same handles in the same process, in turn for each frame. The call runs on the
thread that gives the frame (`nodes.common.handle_feed`). The message is published on `kv_handle`
and received by a subscription on an executor's thread, as the action node received handles before.
Both are measured again while another thread holds the interpreter's lock, as a node does that
converts images.

Physics: the call is one function call, microseconds. The message is serialized, crosses the
middleware, and wakes another thread, which needs the interpreter's lock.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time

import numpy as np
import rclpy
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor

from benchmarks.common import report
from benchmarks.common.command import Refused, command
from embodied_kv.kv.handle import KvHandle
from embodied_kv.msg import KvHandle as KvHandleMsg
from embodied_kv.nodes.common import conversions, qos
from embodied_kv.nodes.common.executable import SWITCH
from embodied_kv.nodes.common.handle_feed import HandleFeed

LONGEST = 10.0  # s that a message may take
WAYS = 'call', 'message'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument('--frames', type=int, default=500, help='of each way')
    parser.add_argument('--period', type=float, default=0.02, help='s between two frames')


def handle(number: int) -> KvHandle:
    """Return the handle of a frame of no engine."""
    return KvHandle('ab' * 16, 1, number, number, 100, 'cd' * 8, number, float(number))


class Reader:
    """Receives frames in both ways and keeps the moment of each, s."""

    def __init__(self) -> None:
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
        self._feed = HandleFeed()
        self._feed.listen(self._receive)
        self._thread.start()

    def seconds(self, way: str, given: KvHandle) -> float:
        """Return the time from giving to receiving. Raises Refused if nothing arrives."""
        self._received.clear()
        began = time.perf_counter()
        if way == 'call':
            self._feed.give(given)
        else:
            self._publisher.publish(conversions.handle_message(given))
        if not self._received.wait(LONGEST):
            raise Refused(f'a {way} did not arrive within {LONGEST:g} s')
        return self._at - began

    def _receive(self, _: KvHandle) -> None:
        self._at = time.perf_counter()
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


def measured(frames: int, period: float, is_busy: bool) -> dict[str, dict[str, float]]:
    """Return the median and the 99th percentile of each way, microseconds."""
    reader, over = Reader(), threading.Event()
    busy = threading.Thread(target=_keep_busy, args=(over,), daemon=True)
    if is_busy:
        busy.start()
    try:
        for way in WAYS:  # discovery
            reader.seconds(way, handle(0))
        taken = {way: [] for way in WAYS}
        for number in range(1, frames + 1):
            for way in WAYS:
                time.sleep(period)
                taken[way].append(reader.seconds(way, handle(number)) * 1e6)
    finally:
        over.set()
        reader.close()
    return {
        way: dict(p50_us=float(np.median(us)), p99_us=float(np.percentile(us, 99)))
        for way, us in taken.items()
    }


def _keep_busy(over: threading.Event) -> None:
    number = 0
    while not over.is_set():
        number += 1


def run(args: argparse.Namespace) -> dict:
    """Measure both ways, alone and beside a busy thread."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH)  # as in every process of nodes
    try:
        found = {
            beside: measured(args.frames, args.period, beside == 'busy')
            for beside in ('alone', 'busy')
        }
    finally:
        sys.setswitchinterval(before)
    if not args.json:
        rows = [
            dict(beside=beside, way=way, **figures)
            for beside, ways in found.items()
            for way, figures in ways.items()
        ]
        report.show('From the row to its reader', rows)
    saved = {
        beside: ways['message']['p50_us'] - ways['call']['p50_us']
        for beside, ways in found.items()
    }
    return dict(found, saved_us=saved)


main = command('handover', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
