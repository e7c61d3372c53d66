"""The action node of a robot without a model: its chunks come from a policy server.

The control loop, its limits, deadlines and fallbacks are those of the action node. No request
blocks it: without a new chunk, the arm executes the rest of the last one and comes to rest.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from rcl_interfaces.msg import SetParametersResult
from rclpy.parameter import Parameter

from embodied_kv.capsule.reentry import SceneSummary, thumbnail
from embodied_kv.control import execution_horizon
from embodied_kv.control.control_loop import ControlLoop
from embodied_kv.control.rtc import RealTimeChunking
from embodied_kv.fleet.request_timing import RequestTiming
from embodied_kv.nodes.action import Action, ActionParams
from embodied_kv.nodes.common.lifecycle_node import WARN
from embodied_kv.nodes.control.session_parts import InstructionPart
from embodied_kv.nodes.observation.clock import FrameThrottle
from embodied_kv.nodes.observation.inputs import ObservationBuffer, ObservationParams
from embodied_kv.nodes.observation.synchronizer import SyncedMoment
from embodied_kv.nodes.remote.server_link import ConnectedNode, ServerLink
from embodied_kv.serving.remote_policy import messages as replies
from embodied_kv.serving.remote_policy.connection import Reply, UnansweredError
from embodied_kv.serving.websocket.extensions import Extensions
from embodied_kv.types import ActionChunk, Guide

if TYPE_CHECKING:
    from embodied_kv.serving.remote_policy.remote_part import RemotePart

CHECK_EVERY = 0.01  # s between two checks whether a request is due
STANDING = 1.0  # s between two requests of an arm that is not to move
RECENT = 1.0  # s for which an observation is the present scene of a capsule
WAYS = 10  # number of requests in the median of the transport time
SHORTEST = 1e-3  # minimum time (s) to a deadline that is sent
UNSURE = (
    'execution_horizon must be whole or static:H (got confidence); the policy server does not '
    'state how sure its actions are'
)


@dataclass(frozen=True, eq=False)
class _Asked:
    """A request in flight: its observation, when it was sent, and the loop that gets its chunk.

    told_ms: the deadline that was sent (ms); None for none. judges: whether the policy of the
    execution horizon was sent.
    """

    moment: SyncedMoment
    instruction: str
    sequence: int
    sent: float
    guide: Guide | None
    control: ControlLoop
    told_ms: float | None
    judges: bool


class RemoteAction(ConnectedNode, Action):
    """Sends the newest observation each control period, or shortly before an execution ends.

    One request is in flight at a time. The node has the name and the topics of the action node,
    and more parameters.
    """

    def __init__(self, **arguments: object) -> None:
        super().__init__(ObservationParams, **arguments)
        self._sequence = self._stale = 0
        self._words: InstructionPart | None = None  # while the control loop runs
        self._asking = threading.Lock()  # guards `_asked`
        self.add_on_set_parameters_callback(self._on_horizon)

    def setup(self) -> None:
        self._remote = self.server_params
        self._asked: _Asked | None = None
        self._timing: RequestTiming | None = None  # None: a request per control period
        self._seen: SyncedMoment | None = None  # the newest observation that was read
        self._setup_commands(self.params.read(ActionParams))
        self._frames = ObservationBuffer(self, self.on_instruction)
        leftover_of = self.host.model.chunk_size if self._remote.rtc else 0
        self._server = ServerLink(self, self._remote, leftover_of, self._check)
        self._pace = FrameThrottle(self.suite.period)
        self._ways: deque[float] = deque(maxlen=WAYS)
        self.every(CHECK_EVERY, self._ask_if_due)
        self._join_session()

    def start(self) -> None:
        super().start()
        self._frames.restart()
        self.on_instruction(self._frames.instruction)
        self._frames.publish_missed()
        self._restart_requests()
        self._server.open()
        self._remote_part.attach(self._server.policy)

    def stop(self) -> None:
        try:
            super().stop()
        finally:
            self._remote_part.attach(None)
            self._server.close()

    def _restart_requests(self) -> None:
        """Forget all requests, so that the newest observation is sent next."""
        self._pace.restart(self._latest)
        with self._asking:
            self._asked = None
        self._instruction = ''  # of the newest request
        self._requested = -math.inf  # when it was sent
        self._shown = 0  # stamp of the newest observation that was sent
        self._seen = None
        if self._by_execution:
            dt = self.host.model.action_dt
            self._timing = RequestTiming(dt, self._remote.request_ahead, math.inf)

    @property
    def _by_execution(self) -> bool:
        return self._remote.request_ahead >= 0

    def _check(self, extensions: Extensions | None) -> None:
        """Raise ValueError for a server that does not state what `execution_horizon` needs."""
        judges = extensions is not None and extensions.executions
        if not judges and isinstance(self._policy(), execution_horizon.Confidence):
            raise ValueError(UNSURE)

    def _on_horizon(self, parameters: Sequence[Parameter]) -> SetParametersResult:
        """Refuse a horizon by confidence if the connected server does not state confidences."""
        unsure = any(
            p.name == 'execution_horizon' and str(p.value).startswith('confidence')
            for p in parameters
        )
        is_connected = self.active and self._server.policy.is_connected
        more = self._server.policy.extensions if is_connected else None
        # Without a connection, `_check` checks it at the next one.
        unsure = unsure and is_connected and (more is None or not more.executions)
        return SetParametersResult(successful=not unsure, reason=UNSURE if unsure else '')

    def _enter_session(self) -> None:
        self._register()
        self._words = InstructionPart(lambda: self._frames.instruction, self._tell)
        self.host.session(self.robot).register(self._words)

    def _leave_session(self) -> None:
        self._unregister()
        if self._words is not None:  # None if `start` has failed
            self.host.session(self.robot).unregister(self._words)
        self._words = None

    # ------------------------------------------------------------------ for the session

    @property
    def _remote_part(self) -> RemotePart:
        return cast('RemotePart', self.host.session(self.robot).engine_part)

    def _tell(self, instruction: str) -> None:
        self.submit(lambda: self._frames.put_back(instruction))

    @property
    def makes_frames(self) -> bool:
        return self.active

    def scene(self) -> SceneSummary | None:
        moment = self._seen
        if not self.active or moment is None or self._world.now() - moment.taken > RECENT:
            return None
        pixels = self._frames.pixels(moment)
        if pixels is None:
            return None
        images = {view: thumbnail(image) for view, image in pixels.items()}
        return SceneSummary(moment.state.positions, images, moment.stamp, self.robot)

    # ------------------------------------------------------------------ as an action node

    def _real_time_chunking(self) -> RealTimeChunking | None:
        settings, model = self._remote.settings, self.host.model
        allowed = settings.allowed(model, self.suite.period)
        return RealTimeChunking.of(settings, model, allowed)

    # ------------------------------------------------------------------ requests

    def _ask_if_due(self) -> None:
        now, before = self._world.now(), self._latest
        self._latest = now
        if now < before:
            self._restart_control()
            self._restart_requests()
        is_watched = self.host.session(self.robot).observer.is_watched
        if is_watched:
            self._seen = self._frames.newest()
        if self._asked is not None:
            return
        policy, instruction, timing = self._server.policy, self._frames.instruction, self._timing
        if not instruction or not policy.is_connected or not self._pace.is_due(now):
            return
        is_needed = is_watched or self._safety.is_meant_to_move
        if not is_needed and now < self._requested + STANDING:
            return  # other robots need the server more
        if timing is not None and not timing.due(now):
            if not self._control.is_idle:
                return
            timing.execute(0, now)  # its chunk was refused, or the arm was stopped
        moment = self._frames.newest()
        if moment is not None and moment.stamp == self._shown:
            return
        self._pace.record_frame(now)
        if moment is None:
            why = f'no observation available; request not sent (reason: {self._frames.waits})'
            self.warn_throttled('no frame', why)
            return
        self._seen = moment
        request = self._server.observed(self._frames, moment)
        if request is None:
            return
        control = self._control
        control.expect(moment.taken + control.allowed)
        if instruction != self._instruction:
            self._instruction = instruction
            if timing is not None:
                timing.begin('')  # the arm executes a chunk of another task
        guide, wishes = self._wishes(moment)
        self._sequence, self._shown = self._sequence + 1, moment.stamp
        asked = self._asked = _Asked(
            moment,
            instruction,
            self._sequence,
            time.monotonic(),
            guide,
            control,
            told_ms=wishes.get('deadline_ms'),
            judges='execution_horizon' in wishes,
        )
        self._requested = now
        if timing is not None:
            timing.ask(now)
        self._remote_part.asked(moment.stamp)
        policy.ask(request | wishes).add_done_callback(partial(self._on_reply, asked))

    def _wishes(self, moment: SyncedMoment) -> tuple[Guide | None, dict[str, Any]]:
        """Return the action prefix of the chunk, and the fields beyond openpi's protocol."""
        wishes: dict[str, Any] = {}
        more = self._server.policy.extensions
        if more is None:
            return None, wishes
        guide = self._control.guide(moment.taken) if more.leftover else None
        if guide is not None:
            actions = self.embodiment.actions.policy(guide.actions)
            left = actions[np.isfinite(actions).all(axis=1)][: more.chunk_size]
            guide = replace(guide, delay=min(guide.delay, len(left), more.chunk_size - 1))
            wishes = {'leftover': left, 'leftover_delay': guide.delay}
        now, timing = self._world.now(), self._timing
        if more.deadlines and self._remote.send_deadlines and not self._world.is_simulated:
            way = median(self._ways) if self._ways else 0.0
            spare = self._latest_use(moment, now) - now - way
            if spare > SHORTEST:  # otherwise it is too late, and a late chunk is better than none
                wishes['deadline_ms'] = spare * 1e3
        if more.executions:
            wishes['execution_horizon'] = str(self._policy())
            if timing is not None and (done := timing.execution(now)) is not None:
                wishes['execution'] = asdict(done)
        return guide, wishes

    def _latest_use(self, moment: SyncedMoment, now: float) -> float:
        """Return the time (s) until which a chunk of this observation can be used."""
        if self._timing is None:
            return moment.taken + self._control.allowed
        # The arm executes until `ends`, then stands until the chunk arrives.
        needed = max(now, self._timing.ends) + self._control.allowed
        return min(needed, moment.taken + self._params.max_chunk_age)

    # ------------------------------------------------------------------ on the connection's thread

    def _on_reply(self, asked: _Asked, work: Future[Reply]) -> None:
        try:
            if self.active:
                self._take(asked, work)
        finally:
            with self._asking:
                if self._asked is asked:  # the node's thread may send the next request now
                    if self._timing is not None:
                        self._timing.waiting = False
                    self._asked = None

    def _take(self, asked: _Asked, work: Future[Reply]) -> None:
        """Offer the chunk of a reply to the control loop, or log why there is none."""
        try:
            reply = work.result()
            self._measure(asked, reply)
            chunk = replies.chunk(
                reply,
                len(self.embodiment.axes),
                self.embodiment.contract.dt,
                asked.moment.stamp,
                asked.sequence,
                asked.judges,
            )
        except CancelledError:
            return
        except replies.MissedDeadlineError:
            self._too_late += 1
            self.warn_throttled('missed', _missed(asked.told_ms))
            return
        except UnansweredError as error:
            self.warn_throttled('request', f'a request has no reply: {error}')
            return
        except replies.RefusedRequestError as error:
            self.warn_throttled('request', f'the server refused a request: {error}')
            return
        except replies.UnusableReplyError as error:
            self.warn_throttled('reply', f'a reply cannot be used: {error}')
            return
        if asked.control is not self._control or asked.instruction != self._frames.instruction:
            self._stale += 1  # for another instruction, or from before the clock was set back
            return
        control, observed = asked.control, asked.moment.taken
        if self._is_refused(chunk, control):
            return
        chunk, policy = self._judged(chunk, observed + control.allowed), self._policy()
        if isinstance(policy, execution_horizon.Confidence) and chunk.execution_horizon is None:
            self.warn_throttled('reply', 'a reply cannot be used: it has no execution_horizon')
            return
        stood = self._executed(chunk, replies.round_of(reply), observed)
        chunk = replace(chunk, deadline=chunk.deadline + stood)
        control.offer(chunk, observed=observed, guide=asked.guide)
        self._validate(chunk, observed)

    def _judged(self, chunk: ActionChunk, deadline: float) -> ActionChunk:
        """Return the chunk with its execution horizon; the server computes one by confidence.

        With `request_ahead`, the horizon is at most the chunk size of the preset, because
        `missed_chunk_limit` does not end an execution.
        """
        made = super()._judged(chunk, deadline)
        if isinstance(self._policy(), execution_horizon.Confidence):
            made = replace(made, execution_horizon=chunk.execution_horizon)
        if self._by_execution and made.execution_horizon is not None:
            most = min(made.execution_horizon, self.host.model.chunk_size)
            made = replace(made, execution_horizon=most)
        return made if chunk.confidence is None else replace(made, confidence=chunk.confidence)

    def _executed(self, chunk: ActionChunk, round: int | None, observed: float) -> float:
        """Record the execution of a chunk; return for how long (s) the arm waited for it.

        The actions begin later by this time. With real-time chunking the control loop accounts for
        the delay, and 0 is returned.
        """
        timing = self._timing
        if timing is None:
            return 0.0
        timing.round = timing.round if round is None else round
        horizon = chunk.execution_horizon or len(chunk.values)
        stood = timing.take(horizon, observed, self._world.now()) - observed
        return stood if self._rtc is None else 0.0

    def _measure(self, asked: _Asked, reply: Reply) -> None:
        """Measure the transport time of request and reply, if the server states its own time."""
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
        return 'the server makes no chunk in time, although no deadline was sent'
    within = f'{told_ms:.0f} ms'
    return (
        f'the server makes no chunk in {within}: lower control_frequency, or set '
        'server.send_deadlines: false'
    )
