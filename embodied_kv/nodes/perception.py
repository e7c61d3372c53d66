"""The perception node: a camera frame becomes a row of the KV arena, and its handle a message."""

from __future__ import annotations

from embodied_kv.engine.compression import ACTION
from embodied_kv.kv.handle import KvHandle
from embodied_kv.kv.manager import LANGUAGE
from embodied_kv.msg import KvHandle as KvHandleMsg
from embodied_kv.nodes.common import conversions, executable, qos
from embodied_kv.nodes.common.lifecycle_node import OK, WARN, SuiteNode
from embodied_kv.nodes.common.statistics import PeriodMeter
from embodied_kv.nodes.control.session_parts import InstructionPart
from embodied_kv.nodes.observation.params import ObservationParams
from embodied_kv.nodes.observation.pipeline import ObservationPipeline
from embodied_kv.srv import Evict, KvStats, SetLimits
from embodied_kv.text import shown


class Perception(SuiteNode):
    """Prefills, publishes `kv_handle`, and answers for the cache."""

    def __init__(self, **arguments: object) -> None:
        super().__init__('perception', ObservationParams, **arguments)
        self._period = PeriodMeter()

    def setup(self) -> None:
        self._handles = self.publisher(KvHandleMsg, 'kv_handle', qos.HANDLE)
        self._frames = ObservationPipeline(self, self._on_handle, self._on_told)
        self.serve(KvStats, 'kv/stats', self._stats)
        self.serve(SetLimits, 'kv/set_limits', self._set_limits)
        self.serve(Evict, 'kv/evict', self._evict)

    def start(self) -> None:
        self._period.restart()
        self._frames.restart()
        self._part = InstructionPart(lambda: self._frames.instruction, self._frames.tell)
        session = self.host.session(self.robot)
        session.register(self._part)
        session.scene, session.sight.is_open = self._frames.scene, True
        self._on_told(self._frames.instruction)

    def stop(self) -> None:
        session = self.host.session(self.robot)
        session.unregister(self._part)
        session.scene, session.sight.is_open = lambda: None, False

    def _on_told(self, instruction: str) -> None:
        self.host.session(self.robot).on_instruction(instruction)

    def _on_handle(self, handle: KvHandle) -> None:
        self._handles.publish(conversions.handle_message(handle))
        self._period.tick()

    def report(self) -> tuple[bytes, str, dict[str, object]]:
        values = {
            **self._period.values(),
            'prefill (ms)': f'{self.host.engine.costs.median("prefill") * 1e3:.1f}',
            'instruction': shown(self._frames.instruction, 200),
            'missing views': ', '.join(self._frames.missing) or 'none',
        }
        if not self._frames.instruction:
            return OK, 'no instruction: nothing to do', values
        if self._frames.waits:
            return WARN, f'no frame: {self._frames.waits}', values
        if self._frames.missing:
            return WARN, f'without view {", ".join(self._frames.missing)}', values
        return OK, 'prefilling', values

    # ------------------------------------------------------------------ services

    def _stats(self, _: KvStats.Request, response: KvStats.Response) -> None:
        stats = self.host.engine.kv.stats()
        conversions.fill_stats(stats, response)
        response.message = (
            f'{stats.rows - stats.rows_free} of {stats.rows} rows used, {stats.leases} leases, '
            f'{stats.streams} streams; {self.host.plane}'
        )

    def _set_limits(self, request: SetLimits.Request, response: SetLimits.Response) -> None:
        kv, compression = self.host.engine.kv, self.host.engine.compression
        asked = {LANGUAGE: request.language_keep_ratio, ACTION: request.action_keep_ratio}
        keep_ratios = {consumer: ratio for consumer, ratio in asked.items() if ratio != 0}
        for consumer, ratio in keep_ratios.items():
            compression.check(consumer, ratio)
        kv.set_limits(
            rows=None if request.rows == -1 else request.rows,
            streams=None if request.streams == -1 else request.streams,
        )
        for consumer, ratio in keep_ratios.items():
            compression.set_keep_ratio(consumer, ratio)
        self.host.device.wake()
        response.rows, response.streams = kv.language_rows_max, kv.streams_max
        response.language_keep_ratio = compression.keep_ratios[LANGUAGE]
        response.action_keep_ratio = compression.keep_ratios[ACTION]
        response.message = (
            f'language may hold {response.rows} rows, {response.streams} streams, and keeps '
            f'{response.language_keep_ratio:.0%} of a prefix; actions keep '
            f'{response.action_keep_ratio:.0%}'
        )

    def _evict(self, request: Evict.Request, response: Evict.Response) -> None:
        kv = self.host.engine.kv
        free = kv.stats().rows_free
        streams = kv.streams.live()
        if request.stream:
            streams = [kv.streams.get(request.stream)]
        elif not request.all:
            streams = streams[:1]
        for stream in streams:
            kv.streams.release(stream, 'evicted')
        self.host.device.wake()
        response.ended, response.rows_freed = len(streams), max(0, kv.stats().rows_free - free)
        response.message = f'{response.ended} streams ended'


def main() -> None:
    """Run the executable `perception`, in a process of its own."""
    executable.run(Perception)


if __name__ == '__main__':
    main()
