"""The perception node: prefills frames into rows of the KV arena, and shares their handles."""

from __future__ import annotations

from functools import partial

from embodied_kv.capsule.reentry import SceneSummary
from embodied_kv.kv.handle import KvHandle
from embodied_kv.msg import KvHandle as KvHandleMsg
from embodied_kv.nodes.common import conversions, executable, qos
from embodied_kv.nodes.common.kv_services import KvServices, MemoryRowServices
from embodied_kv.nodes.common.lifecycle_node import OK, WARN, SuiteNode
from embodied_kv.nodes.common.statistics import PeriodMeter
from embodied_kv.nodes.control.session_parts import InstructionPart
from embodied_kv.nodes.observation.inputs import ObservationParams
from embodied_kv.nodes.observation.pipeline import ObservationPipeline
from embodied_kv.session.participant import Participant
from embodied_kv.text import shown


class Perception(SuiteNode, Participant):
    """Prefills frames, gives each handle to the nodes of the process, and serves `kv/*`."""

    makes_frames = True

    def __init__(self, **arguments: object) -> None:
        super().__init__('perception', ObservationParams, **arguments)
        self._period = PeriodMeter()

    def setup(self) -> None:
        self._handles = self.publisher(KvHandleMsg, 'kv_handle', qos.HANDLE)
        self._feed = self.host.frames(self.robot)
        self._frames = ObservationPipeline(self, self._on_handle, self._on_told)
        KvServices(self)
        MemoryRowServices(self)

    def start(self) -> None:
        self._period.restart()
        self._frames.restart()
        self._part = InstructionPart(
            lambda: self._frames.instruction,
            lambda instruction: self.submit(partial(self._frames.put_back, instruction)),
        )
        session = self.host.session(self.robot)
        session.register(self._part)
        session.participants.join(self)
        self._on_told(self._frames.instruction)
        self._frames.publish_missed()

    def stop(self) -> None:
        session = self.host.session(self.robot)
        session.unregister(self._part)
        session.participants.leave(self)

    def scene(self) -> SceneSummary | None:
        return self._frames.scene()

    def _on_told(self, instruction: str) -> None:
        self.host.session(self.robot).participants.on_instruction(instruction)

    def _on_handle(self, handle: KvHandle) -> None:
        self._feed.give(handle)
        self._handles.publish(conversions.handle_message(handle))
        self._period.tick()

    def report(self) -> tuple[bytes, str, dict[str, object]]:
        values: dict[str, object] = {
            **self._period.values(),
            'prefill (ms)': f'{self.host.engine.latency.median("prefill") * 1e3:.1f}',
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


def main() -> None:
    """Run the executable `perception`."""
    executable.run(perception=Perception)


if __name__ == '__main__':
    main()
