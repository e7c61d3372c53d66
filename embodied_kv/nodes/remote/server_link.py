"""What a node of a robot without an engine has of its policy server.

Knows a node's contract and log. Does not know what is asked.
"""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Callable
from functools import cache

from embodied_kv.config import preset
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.nodes.common.remote_host import RemoteHost
from embodied_kv.nodes.observation.inputs import ObservationBuffer
from embodied_kv.nodes.observation.synchronizer import SyncedMoment
from embodied_kv.nodes.remote.params import RemoteParams
from embodied_kv.serving.remote_policy.connection import RemotePolicy
from embodied_kv.serving.remote_policy.messages import RequestWriter
from embodied_kv.serving.websocket.extensions import Extensions, compared, meaning
from embodied_kv.text import shown

DIMENSIONS = 'pi05'  # of what neither the contract nor a parameter says: the chunk size


def remote_host(node: SuiteNode) -> RemoteHost:
    """The dimensions by the contract; of `preset` where it names one."""
    return RemoteHost(node.embodiment.adapted(preset(node.suite.preset or DIMENSIONS)))


@cache
def _process(pid: int) -> uuid.UUID:
    """Return a name of this process that no other process has, on this machine or another."""
    return uuid.uuid4()


def session_id(node: str) -> str:
    """Return the session of a node's connection, by the node's full name.

    It stays the same for as long as the process lives, so a connection that is made again goes on
    with the session. Each node has its own, and so has a node of the same name elsewhere.
    """
    name = node.strip('/').replace('/', '.')[-40:].lstrip('._')
    return f'{name}-{uuid.uuid5(_process(os.getpid()), node).hex[:16]}'


class ServerLink:
    """A connection of a node's own, and how its robot asks.

    leftover_of: actions of a chunk, where the server has to take what the arm does meanwhile; 0
    where it need not. fits: raises ValueError for a server that cannot move this robot, by what
    it can beyond openpi's protocol. Raises ValueError, OSError.
    """

    def __init__(
        self,
        node: SuiteNode,
        params: RemoteParams,
        leftover_of: int = 0,
        fits: Callable[[Extensions | None], None] = lambda extensions: None,
    ) -> None:
        self._node, self._address, self._leftover_of = node, params.where, leftover_of
        self._fits = fits
        self._writer = RequestWriter(node.embodiment.contract, params.image_size)
        self._policy: RemotePolicy | None = None

    def open(self) -> None:
        """From now on it is connected, or tries to be."""
        session = session_id(self._node.get_fully_qualified_name())
        self._policy = RemotePolicy(self._address, self._check, self._say, session)
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
            self._node.log_info('server', f'{line}{_described(self.extensions)}')

    def _check(self, extensions: Extensions | None) -> None:
        """Raise ValueError where its chunks are not of this robot; plain servers do not say."""
        if self._leftover_of:
            self._check_leftover(extensions)
        self._fits(extensions)
        robot, contract = self._node.embodiment, self._node.embodiment.contract
        if extensions is None or not extensions.action_meaning:
            self._node.log_warning(
                'actions',
                f'{self._address.uri} does not state what its actions mean: names, order, kind '
                f'and unit were not compared with those of {contract.robot_type}',
            )
        if extensions is None:
            return
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
        there = extensions.action_meaning
        if found := compared(there, meaning(contract)) if there else '':
            raise ValueError(
                f'its actions must mean what those of this robot mean: {found} (its contract is '
                f'{shown(extensions.contract)}, here {contract.robot_type}); start the server '
                'with the contract of this robot, or set the parameter contract to that of the '
                'server'
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


def _described(extensions: Extensions | None) -> str:
    """Return what a server says of itself, for a log line."""
    if extensions is None:
        return ''
    told = {name: getattr(extensions, name) for name in ('contract', 'version', 'fingerprint')}
    return ''.join(f', {name} {shown(value)}' for name, value in told.items() if value)
