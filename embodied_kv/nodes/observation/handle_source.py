"""Where readers get their frames: perception's handles, or their own images when standalone.

Knows handles and whose they are. Does not know what is read from a row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from embodied_kv.kv.handle import KvHandle, Stale
from embodied_kv.msg import KvHandle as KvHandleMsg
from embodied_kv.nodes.common import conversions, qos
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.nodes.observation.params import ObservationParams
from embodied_kv.nodes.observation.pipeline import ObservationPipeline

FOREIGN = 16  # ids of other processes that are remembered


def frame_params(standalone: bool) -> tuple[type, ...]:
    """Parameters that a HandleSource reads."""
    return (ObservationParams,) if standalone else ()


class HandleSource:
    """Hands a node every handle that is published, and its own ones where it is standalone.

    on_handle: called by the executor, or on the device thread. on_instruction: where it is
    standalone, as of the pipeline.
    """

    def __init__(
        self,
        node: SuiteNode,
        standalone: bool,
        on_handle: Callable[[KvHandle], None],
        on_instruction: Callable[[str], None] = lambda instruction: None,
    ) -> None:
        self._node = node
        self._foreign: deque[str] = deque(maxlen=FOREIGN)  # process ids
        self._pipeline = (
            ObservationPipeline(node, on_handle, on_instruction) if standalone else None
        )
        node.subscribe(
            KvHandleMsg,
            'kv_handle',
            lambda message: on_handle(conversions.handle(message, node.robot)),
            qos.HANDLE,
        )

    def restart(self) -> None:
        """Begin with what arrives from now on."""
        if self._pipeline is not None:
            self._pipeline.restart()

    def refuse(self, handle: KvHandle, reason: Stale) -> None:
        """Count a handle that cannot be read; a foreign process is named once."""
        if handle.process_id == self._node.host.engine.kv.frames.process_id:
            self._node.warn_throttled('stale handle', f'handle refused: {reason}')
            return
        if handle.process_id in self._foreign:
            self._node.warning_counts['foreign handle'] += 1
            return
        self._foreign.append(handle.process_id)
        self._node.warn_throttled('foreign handle', f'handle refused: {reason}')
