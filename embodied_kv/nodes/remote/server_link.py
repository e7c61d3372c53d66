"""What a node of a robot without an engine has of its policy server.

Knows a node's contract and log. Does not know what is asked.
"""

from __future__ import annotations

import math

from embodied_kv.config import preset
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.nodes.common.remote_host import RemoteHost
from embodied_kv.nodes.observation.observation_buffer import ObservationBuffer
from embodied_kv.nodes.observation.synchronizer import SyncedMoment
from embodied_kv.nodes.remote.params import RemoteParams
from embodied_kv.serving.remote_policy.connection import RemotePolicy
from embodied_kv.serving.remote_policy.request import RequestWriter
from embodied_kv.serving.websocket.extensions import Extensions

DIMENSIONS = 'pi05'  # of what neither the contract nor a parameter says: the chunk size


def remote_host(node: SuiteNode) -> RemoteHost:
    """The dimensions by the contract; of `preset` where it names one."""
    return RemoteHost(node.embodiment.adapted(preset(node.suite.preset or DIMENSIONS)))


class ServerLink:
    """A connection of a node's own, and how its robot asks.

    leftover_of: actions of a chunk, where the server has to take what the arm does meanwhile; 0
    where it need not. Raises ValueError, OSError.
    """

    def __init__(self, node: SuiteNode, params: RemoteParams, leftover_of: int = 0) -> None:
        self._node, self._address, self._leftover_of = node, params.where, leftover_of
        self._writer = RequestWriter(node.embodiment.contract, params.image_size)
        self._policy: RemotePolicy | None = None

    def open(self) -> None:
        """From now on it is connected, or tries to be."""
        self._policy = RemotePolicy(self._address, self._check, self._say)
        self._policy.start()

    def close(self) -> None:
        """Says goodbye."""
        if self._policy is not None:
            self._policy.stop()

    @property
    def policy(self) -> RemotePolicy:
        """While it is open."""
        return self._policy

    @property
    def extensions(self) -> Extensions | None:
        """What the server can beyond openpi's protocol; None for nothing."""
        return self._policy.extensions

    def observed(
        self, frames: ObservationBuffer, moment: SyncedMoment
    ) -> dict[str, object] | None:
        """A request for a chunk; None where it cannot be made, which is warned of."""
        images, state = frames.pixels(moment), frames.state(moment)
        if images is None or state is None:
            return None
        try:
            return self._writer.write(images, state, frames.instruction)
        except ValueError as error:
            self._node.warn_throttled('view', str(error))
            return None

    def _say(self, line: str) -> None:
        if self._policy.problem:
            self._node.log_warning('no server', line)
        else:
            self._node.log_info('server', line)

    def _check(self, extensions: Extensions | None) -> None:
        """Raises ValueError where its chunks are not of this robot; plain ones do not say."""
        if self._leftover_of:
            self._check_leftover(extensions)
        if extensions is None:
            return
        robot, contract = self._node.embodiment, self._node.embodiment.contract
        if extensions.action_dim != len(robot.axes):
            raise ValueError(
                f'its actions have {extensions.action_dim} numbers, those of '
                f'{contract.robot_type} {len(robot.axes)}: is it started with this contract?'
            )
        if not math.isclose(extensions.dt, contract.dt, rel_tol=1e-6):
            raise ValueError(
                f'it makes {1 / extensions.dt:g} actions a second, {contract.robot_type} executes '
                f'{contract.fps:g}: is it started with this contract?'
            )

    def _check_leftover(self, extensions: Extensions | None) -> None:
        """Raises ValueError where it cannot go on from what the arm does, as server.rtc says."""
        if extensions is None or not extensions.leftover:
            why = 'knows none' if extensions is None else 'takes none, its engine.rtc is off'
            raise ValueError(
                f'server.rtc tells it a leftover, and it {why}: set server.rtc: false'
            )
        if extensions.chunk_size != self._leftover_of:
            raise ValueError(
                f'server.rtc is true, and its chunk_size is {extensions.chunk_size}, here '
                f'{self._leftover_of}: set preset to that of the server'
            )
