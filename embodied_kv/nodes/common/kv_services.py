"""The services `kv/*`: statistics and limits of the KV cache of a process, and memory rows.

Statistics, limits and eviction concern all robots that the engine serves, memory rows one robot.
"""

from __future__ import annotations

from functools import partial

import cv2
import numpy as np
from sensor_msgs.msg import CompressedImage

from embodied_kv.engine.compression import ACTION
from embodied_kv.kv.frame_memory import MemoryRow
from embodied_kv.kv.manager import LANGUAGE
from embodied_kv.msg import MemoryRow as MemoryRowMsg
from embodied_kv.nodes.common import conversions
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.srv import Evict, KvForget, KvMemory, KvStats, SetLimits


class KvServices:
    """Serve `kv/stats`, `kv/set_limits` and `kv/evict` for the engine of a node, until cleanup."""

    def __init__(self, node: SuiteNode) -> None:
        self._host: EngineHost = node.host
        node.serve(KvStats, 'kv/stats', self._stats)
        node.serve(SetLimits, 'kv/set_limits', self._set_limits)
        node.serve(Evict, 'kv/evict', self._evict)

    def _stats(self, _: KvStats.Request, response: KvStats.Response) -> None:
        stats = self._host.engine.kv.stats()
        for name in stats.__dataclass_fields__:
            setattr(response, name, getattr(stats, name))
        response.seconds_saved = self._host.engine.seconds_saved
        response.message = (
            f'{stats.rows - stats.rows_free} of {stats.rows} rows used, {stats.leases} leases, '
            f'{stats.streams} streams; {self._host.kv_budget}'
        )

    def _set_limits(self, request: SetLimits.Request, response: SetLimits.Response) -> None:
        kv, compression = self._host.engine.kv, self._host.engine.compression
        requested = {LANGUAGE: request.language_keep_ratio, ACTION: request.action_keep_ratio}
        keep_ratios = {consumer: ratio for consumer, ratio in requested.items() if ratio != 0}
        for consumer, ratio in keep_ratios.items():
            compression.validate_keep_ratio(consumer, ratio)
        kv.set_limits(
            rows=None if request.rows == -1 else request.rows,
            streams=None if request.streams == -1 else request.streams,
        )
        for consumer, ratio in keep_ratios.items():
            compression.set_keep_ratio(consumer, ratio)
        self._host.device.wake()
        response.rows, response.streams = kv.language_rows_max, kv.streams_max
        response.language_keep_ratio = compression.keep_ratios[LANGUAGE]
        response.action_keep_ratio = compression.keep_ratios[ACTION]
        response.message = (
            f'language may hold {response.rows} rows, {response.streams} streams, and keeps '
            f'{response.language_keep_ratio:.0%} of a prefix; actions keep '
            f'{response.action_keep_ratio:.0%}'
        )

    def _evict(self, request: Evict.Request, response: Evict.Response) -> None:
        kv = self._host.engine.kv
        free = kv.stats().rows_free
        streams = kv.streams.live()
        if request.stream:
            streams = [kv.streams.get(request.stream)]
        elif not request.all:
            streams = streams[:1]
        for stream in streams:
            kv.streams.release(stream, 'evicted')
        self._host.device.wake()
        response.ended, response.rows_freed = len(streams), max(0, kv.stats().rows_free - free)
        response.message = f'{response.ended} streams ended'


class MemoryRowServices:
    """Serve `kv/memory` and `kv/forget` for the robot of a node, until cleanup."""

    def __init__(self, node: SuiteNode) -> None:
        self._host, self._robot = node.host, node.robot
        node.serve(KvMemory, 'kv/memory', self._list)
        node.serve(KvForget, 'kv/forget', self._forget)

    def _list(self, request: KvMemory.Request, response: KvMemory.Response) -> None:
        memory = self._host.engine.memory
        rows = memory.rows(self._robot)
        response.rows = [_message(row, request.pictures) for row in rows]
        most = (
            f'at most {memory.most} of the present instruction and {memory.most} of earlier ones'
        )
        response.message = f'{len(rows)} memory rows, {most}'

    def _forget(self, request: KvForget.Request, response: KvForget.Response) -> None:
        forgetting = partial(self._forgotten, set(request.sequences))
        response.removed = self._host.device.call(forgetting).result()
        response.message = f'{response.removed} memory rows are removed'

    def _forgotten(self, wanted: set[int]) -> int:
        """Forget memory rows, between two frames: on the engine thread."""
        engine = self._host.engine
        rows = engine.memory.rows(self._robot)
        if missing := wanted - {row.handle.sequence for row in rows}:
            raise LookupError(f'no memory row of frame {min(missing)}; list them with kv/memory')
        if not wanted:
            return engine.forget(self._robot)
        gone = [row for row in rows if row.handle.sequence in wanted]
        return sum(engine.memory.forget(self._robot, row) for row in gone)


def _message(row: MemoryRow, pictures: bool) -> MemoryRowMsg:
    return MemoryRowMsg(
        stamp=conversions.stamp(row.handle.stamp),
        sequence=row.handle.sequence,
        instruction=row.instruction,
        is_last=row.is_last,
        tokens=max(row.budgets),
        bytes=row.bytes,
        pictures=[_png(picture) for picture in row.pictures] if pictures else [],
    )


def _png(picture: np.ndarray) -> CompressedImage:
    """Return a PNG message of an RGB picture."""
    _, data = cv2.imencode('.png', cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))
    return CompressedImage(format='rgb8; png compressed bgr8', data=data.tobytes())
