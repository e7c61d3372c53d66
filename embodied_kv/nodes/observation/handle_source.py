"""Where readers have their frames from: perception's handles, and own images if alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from embodied_kv.kv.handle import KvHandle, Stale
from embodied_kv.msg import KvHandle as KvHandleMsg
from embodied_kv.nodes.common import conversions, qos
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.nodes.observation.pipeline import ObservationParams, Prefiller

FOREIGN = 16  # boot ids of other processes that are remembered


def frame_params(alone: bool) -> tuple[type, ...]:
    """Parameters that a FrameSource reads."""
    return (ObservationParams,) if alone else ()


class FrameSource:
    """Hands a node every handle that is published, and its own ones where it is alone.

    on_handle: called by the executor, or on the device thread.
    """

    def __init__(
        self, node: SuiteNode, alone: bool, on_handle: Callable[[KvHandle], None]
    ) -> None:
        self._node = node
        self._foreign: deque[str] = deque(maxlen=FOREIGN)  # boot ids
        self._prefiller = Prefiller(node, on_handle) if alone else None
        node.subscribe(
            KvHandleMsg,
            'kv_handle',
            lambda message: on_handle(conversions.handle(message, node.robot)),
            qos.HANDLE,
        )

    def restart(self) -> None:
        """Begin with what arrives from now on."""
        if self._prefiller is not None:
            self._prefiller.restart()

    def refuse(self, handle: KvHandle, reason: Stale) -> None:
        """Count a handle that cannot be read; a foreign process is named once."""
        if handle.boot == self._node.host.engine.kv.boot:
            self._node.complain('stale handle', f'handle refused: {reason}')
            return
        if handle.boot in self._foreign:
            self._node.complaints['foreign handle'] += 1
            return
        self._foreign.append(handle.boot)
        self._node.complain('foreign handle', f'handle refused: {reason}')
