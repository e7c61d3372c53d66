"""The action node of a robot without a model: its chunks come from a policy server.

The control loop, its limits, deadlines and fallbacks are those of any action node: who asks never
waits, and where no chunk comes the arm goes on as far as the last one reaches, and rests.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import numpy as np
from rcl_interfaces.msg import SetParametersResult
from rclpy.parameter import Parameter

from embodied_kv.control import execution_horizon
from embodied_kv.control.control_loop import ControlLoop
from embodied_kv.control.rtc import RealTimeChunking
from embodied_kv.nodes.action import Action, ActionParams
from embodied_kv.nodes.common.lifecycle_node import WARN
from embodied_kv.nodes.common.parameters import Parameters
from embodied_kv.nodes.common.remote_host import RemoteHost
from embodied_kv.nodes.observation.observation_buffer import ObservationBuffer
from embodied_kv.nodes.observation.pace import Pace
from embodied_kv.nodes.observation.params import ObservationParams
from embodied_kv.nodes.observation.synchronizer import SyncedMoment
from embodied_kv.nodes.remote.params import RemoteParams
from embodied_kv.nodes.remote.server_link import ServerLink, remote_host
from embodied_kv.serving.remote_policy import reply as replies
from embodied_kv.serving.remote_policy.connection import Reply, Unanswered
from embodied_kv.types import Guide

CHECK_EVERY = 0.01  # s between two checks whether a request is due
WAYS = 10  # requests by which the way to the server and back is known
SHORTEST = 1e-3  # s of a deadline that a server is told
UNSURE = (
    'parameter execution_horizon: confidence needs an engine of its own, no policy server says '
    'how sure its actions are: write whole or static:H'
)


@dataclass(frozen=True, eq=False)
class _Asked:
    """An observation that was sent: when it was made and sent, and who executes its chunk.

    told_ms: that the server has, as it was told; None where it was told nothing.
    """

    moment: SyncedMoment
    instruction: str
    sequence: int
    sent: float
    guide: Guide | None
    control: ControlLoop
    told_ms: float | None


class RemoteAction(Action):
    """Sends the newest observation `rate` times a second, one at a time.

    Publishes what the action node publishes, under its name and with its parameters.
    """

    on_engine = False

    def __init__(self, **arguments: object) -> None:
        super().__init__(ObservationParams, **arguments)
        self._server_params = Parameters(
            self, [('server.', RemoteParams)], lambda: self.configured
        )
        self._sequence = self._stale = 0
        self.add_on_set_parameters_callback(self._on_horizon)

    def find_host(self) -> RemoteHost:
        return remote_host(self)

    def setup(self) -> None:
        self._remote = self._server_params.read(RemoteParams)
        self._work: Future[Reply] | None = None
        self._setup_commands(self.params.read(ActionParams))
        if isinstance(self._policy(), execution_horizon.Confidence):
            raise ValueError(UNSURE)
        self._frames = ObservationBuffer(self, self._told)
        leftover_of = self.host.model.chunk_size if self._remote.rtc else 0
        self._server = ServerLink(self, self._remote, leftover_of)
        self._pace = Pace(self.suite.period)
        self._ways: deque[float] = deque(maxlen=WAYS)
        self.every(CHECK_EVERY, self._ask_if_due)

    def start(self) -> None:
        super().start()
        self._frames.restart()
        self._told(self._frames.instruction)
        self._pace.restart(self._latest)
        self._shown = 0  # stamp of the newest observation that was sent
        self._server.open()

    def stop(self) -> None:
        super().stop()
        self._server.close()

    def _on_horizon(self, parameters: Sequence[Parameter]) -> SetParametersResult:
        """Refused before anybody else hears of it."""
        unsure = any(
            p.name == 'execution_horizon' and str(p.value).startswith('confidence')
            for p in parameters
        )
        return SetParametersResult(successful=not unsure, reason=UNSURE if unsure else '')

    def _enter_session(self) -> None:
        """It has none: capsules are of an engine."""

    def _leave_session(self) -> None:
        pass

    def _real_time_chunking(self) -> RealTimeChunking | None:
        settings, model = self._remote.settings, self.host.model
        allowed = settings.allowed(model, self.suite.period)
        return RealTimeChunking.of(settings, model, allowed)

    # ------------------------------------------------------------------ asking

    def _ask_if_due(self) -> None:
        now, before = self._world.now(), self._latest
        self._latest = now
        if now < before:
            self._begin_anew()
            self._pace.restart(now)
            self._shown = 0
        if self._work is not None and not self._work.done():
            return
        policy, instruction = self._server.policy, self._frames.instruction
        if not instruction or not policy.is_connected or not self._pace.is_due(now):
            return
        moment = self._frames.newest()
        if moment is not None and moment.stamp == self._shown:
            return
        self._pace.gave(now)
        if moment is None:
            self.warn_throttled('no frame', f'nothing to ask with: {self._frames.waits}')
            return
        request = self._server.observed(self._frames, moment)
        if request is None:
            return
        control = self._control
        control.expect(moment.taken + control.allowed)
        guide, wishes = self._wishes(moment)
        self._sequence, self._shown = self._sequence + 1, moment.stamp
        told = wishes.get('deadline_ms')
        asked = _Asked(moment, instruction, self._sequence, time.monotonic(), guide, control, told)
        self._work = policy.ask(request | wishes)
        self._work.add_done_callback(partial(self._on_reply, asked))

    def _wishes(self, moment: SyncedMoment) -> tuple[Guide | None, dict[str, object]]:
        """What the chunk goes on from, and what this server is told beyond openpi's protocol."""
        more, wishes = self._server.extensions, {}
        if more is None:
            return None, wishes
        guide = self._control.guide(moment.taken) if more.leftover else None
        if guide is not None:
            actions = self.embodiment.actions.policy(guide.actions)
            left = actions[np.isfinite(actions).all(axis=1)][: more.chunk_size]
            guide = replace(guide, delay=min(guide.delay, len(left), more.chunk_size - 1))
            wishes = {'leftover': left, 'leftover_delay': guide.delay}
        if more.deadlines and self._remote.deadlines and not self._world.is_simulated:
            way = median(self._ways) if self._ways else 0.0
            left = moment.taken + self._control.allowed - self._world.now() - way
            if left > SHORTEST:  # else it is late already: whatever there is, is better
                wishes['deadline_ms'] = left * 1e3
        return guide, wishes

    # ------------------------------------------------------------------ on the connection's thread

    def _on_reply(self, asked: _Asked, work: Future[Reply]) -> None:
        if not self.active:
            return
        try:
            reply = work.result()
            self._measure(asked, reply)
            chunk = replies.chunk(
                reply,
                len(self.embodiment.axes),
                self.embodiment.contract.dt,
                asked.moment.stamp,
                asked.sequence,
            )
        except CancelledError:
            return
        except replies.Missed:
            self._too_late += 1
            self.warn_throttled('missed', _missed(asked.told_ms))
            return
        except Unanswered as error:
            self.warn_throttled('request', f'a request has no reply: {error}')
            return
        except replies.Declined as error:
            self.warn_throttled('request', f'the server refused a request: {error}')
            return
        except replies.Unusable as error:
            self.warn_throttled('reply', f'a reply cannot be used: {error}')
            return
        if asked.control is not self._control or asked.instruction != self._frames.instruction:
            self._stale += 1  # of another task, or of another time: the next one comes
            return
        deadline = asked.moment.taken + asked.control.allowed
        if not self._is_refused(chunk, asked.control):
            asked.control.offer(self._judged(chunk, deadline), guide=asked.guide)

    def _measure(self, asked: _Asked, reply: Reply) -> None:
        """How long request and reply are on their way, where the server tells its own time."""
        timing = reply.get('server_timing')
        if isinstance(timing, dict):
            there = replies.number(timing, 'infer_ms') / 1e3
            self._ways.append(max(0.0, time.monotonic() - asked.sent - there))

    # ------------------------------------------------------------------ diagnostics

    def report(self) -> tuple[bytes, str, dict[str, object]]:
        level, message, values = super().report()
        problem = self._server.policy.problem
        values |= {
            'server': self._remote.address,
            'real-time chunking': 'on' if self._remote.rtc else 'off',
            'replies out of date': self._stale,
            'way to the server and back (ms)': f'{median(self._ways or [0.0]) * 1e3:.1f}',
        }
        return (level, message, values) if not problem else (max(level, WARN), problem, values)


def _missed(told_ms: float | None) -> str:
    if told_ms is None:
        return 'the server makes no chunk in time, though it was told no deadline'
    within = f'{told_ms:.0f} ms'
    return f'the server makes no chunk in {within}: lower rate, or set server.deadlines: false'


def action(**arguments: object) -> RemoteAction:
    """The action node of this namespace: as anywhere, there is one."""
    return RemoteAction(**arguments)
