"""The connection of a node to a policy server: its parameters, and the checks of the server.

The module knows the contract and the log of a node, but not what the node requests.
"""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from embodied_kv.config import preset
from embodied_kv.engine_config import EngineConfig
from embodied_kv.nodes.common.lifecycle_node import SuiteNode
from embodied_kv.nodes.common.parameters import Parameters, param
from embodied_kv.nodes.observation.inputs import ObservationBuffer
from embodied_kv.nodes.observation.synchronizer import SyncedMoment
from embodied_kv.serving.remote_policy.connection import Address, RemotePolicy
from embodied_kv.serving.remote_policy.messages import RequestWriter
from embodied_kv.serving.remote_policy.remote_part import RemoteHost
from embodied_kv.serving.websocket.extensions import Extensions, compared, meaning
from embodied_kv.text import shown

OPENPI = 224  # pixels to which openpi's clients reduce images
DIMENSIONS = 'pi05'  # preset of the chunk size, if neither the contract nor a parameter names one


@dataclass(frozen=True)
class RemoteParams:
    """Parameters `server.NAME` of each node that connects to the policy server."""

    address: str = param(
        'ws://127.0.0.1:8000',
        'Websocket address of a policy server, of this package or of any that speaks the protocol '
        'of openpi',
    )
    api_key_file: str = param(
        '', "Path of a file with the API key of the server; '' for none", old=('api_key',)
    )
    reply_timeout: float = param(
        5.0,
        'Time (s) without a reply after which a connection is closed and opened again',
        range=(0.1, 600.0),
        old=('reply_seconds',),
    )
    answer_timeout: float = param(
        30.0,
        'The same limit (s) for a question. Text takes longer than a chunk, and waits for that of '
        'other robots',
        range=(0.1, 600.0),
        old=('answer_seconds',),
    )
    image_size: int = param(
        -1,
        'Largest side (pixels) of the images that are sent; larger ones are scaled down, as the '
        'clients of openpi do. 0: images are sent unchanged. -1: 224, or unchanged to a server of '
        'this suite whose policy resizes in another way than openpi',
        range=(-1, 4096),
    )
    request_ahead: int = param(
        -1,
        'Number of actions before the end of an execution at which the next chunk is requested, '
        'so that many robots share a server. With the age of an image it must be below the least '
        'execution horizon. -1: a chunk is requested `control_frequency` times per second',
        range=(-1, 1000),
    )
    send_deadlines: bool = param(
        True,
        'Send the time that a chunk may take to a server that keeps deadlines, which fits its '
        'Euler steps into it. Not under simulated time',
        old=('deadlines',),
    )
    rtc: bool = param(
        False,
        'Send the leftover actions, so that a chunk continues them (real-time chunking) as '
        '`engine.rtc` of the server states. A server that does not accept them is refused',
    )
    rtc_horizon: int = param(
        0,
        'With rtc: number of actions after which a chunk must have taken over. 0: half of a chunk',
        range=(0, 1000),
    )

    @property
    def settings(self) -> EngineConfig:
        """Return the same settings for a local engine; the server chooses the mode."""
        return EngineConfig(rtc='guided' if self.rtc else 'off', rtc_horizon=self.rtc_horizon)

    @property
    def where(self) -> Address:
        """Return the address with its key. Raises ValueError, OSError."""
        try:
            key = Address.key_of(self.api_key_file)
            return Address(self.address, key, self.reply_timeout)
        except ValueError as error:
            raise ValueError(f'parameter server.address, server.api_key_file: {error}') from error


class RemoteNode(SuiteNode):
    """Mixin for a node of a robot without an engine; it precedes the class of the node."""

    on_engine = False

    def find_host(self) -> RemoteHost:
        """Return a host with the dimensions of the preset, adapted to the contract."""
        return RemoteHost(self.embodiment.adapted(preset(self.suite.preset or DIMENSIONS)))


class ConnectedNode(RemoteNode):
    """A remote node with the parameters of the policy server."""

    def __init__(self, *own: Any, **arguments: Any) -> None:
        super().__init__(*own, **arguments)
        self._server_params = Parameters(
            self, [('server.', RemoteParams)], lambda: self.configured
        )

    @property
    def server_params(self) -> RemoteParams:
        return self._server_params.read(RemoteParams)


@cache
def _process(pid: int) -> uuid.UUID:
    """Return a random id of this process; `pid` renews it after a fork."""
    return uuid.uuid4()


def session_id(node: str) -> str:
    """Return the session id of a node, by its full name.

    It stays the same while the process lives, so a new connection continues the session. Nodes of
    the same name in other processes have other ids.
    """
    name = node.strip('/').replace('/', '.')[-40:].lstrip('._')
    return f'{name}-{uuid.uuid5(_process(os.getpid()), node).hex[:16]}'


class ServerLink:
    """The connection of a node to its policy server. Raises ValueError, OSError.

    Args:
        node: The node, which has the contract and the log.
        params: Parameters of the server.
        leftover_of: Required chunk size of a server that must accept leftover actions; 0: none.
        fits: Raises ValueError for the extensions of a server that cannot move this robot.
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
        self._image_size = params.image_size
        self._writer = RequestWriter(node.embodiment.contract, self._size(''))
        self._policy: RemotePolicy | None = None

    def open(self) -> None:
        """Connect, and connect again whenever the connection is lost."""
        session = session_id(self._node.get_fully_qualified_name())
        self._policy = RemotePolicy(self._address, self._check, self._log, session)
        self._policy.start()

    def close(self) -> None:
        if self._policy is not None:
            self._policy.stop()

    @property
    def policy(self) -> RemotePolicy:
        """Return the connection, after `open`."""
        return cast('RemotePolicy', self._policy)

    def observed(
        self, frames: ObservationBuffer, moment: SyncedMoment
    ) -> dict[str, object] | None:
        """Return a request for a chunk; warn and return None if it cannot be made."""
        images, state = frames.pixels(moment), frames.state(moment)
        if images is None or state is None:
            return None
        try:
            return self._writer.write(images, state, frames.instruction)
        except ValueError as error:
            self._node.warn_throttled('view', str(error))
            return None

    def _log(self, line: str) -> None:
        if self.policy.problem:
            self._node.log_warning('no server', line)
            return
        details, extensions = '', self.policy.extensions
        for name in ('contract', 'version', 'fingerprint'):
            if value := getattr(extensions, name, ''):  # extensions: None for another server
                details += f', {name} {shown(value)}'
        self._node.log_info('server', f'{line}{details}')

    def _check(self, extensions: Extensions | None) -> None:
        """Raise ValueError if the server states that its chunks are not for this robot."""
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
        size = self._size('' if extensions is None else extensions.resize)
        self._writer = RequestWriter(contract, size)
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

    def _size(self, resize: str) -> int:
        """Return the largest side (pixels) of images for a server that resizes in this way."""
        if self._image_size >= 0:
            return self._image_size
        return OPENPI if resize in ('', 'pillow') else 0

    def _check_leftover(self, extensions: Extensions | None) -> None:
        """Raise ValueError if the server cannot continue leftover actions, as `rtc` requires."""
        if extensions is None or not extensions.leftover:
            why = 'knows none' if extensions is None else 'takes none, its engine.rtc is off'
            raise ValueError(
                f'server.rtc sends leftover actions, and it {why}: set server.rtc: false'
            )
        if extensions.chunk_size != self._leftover_of:
            raise ValueError(
                f'server.rtc is true, and its chunk_size is {extensions.chunk_size}, here '
                f'{self._leftover_of}: set preset to that of the server'
            )
