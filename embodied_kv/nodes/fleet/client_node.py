"""The action node of a robot of a fleet: its chunks come from an engine that serves many."""

from __future__ import annotations

import math
import time
import uuid
from collections import OrderedDict
from dataclasses import dataclass, replace

from std_msgs.msg import String

from embodied_kv.config import preset
from embodied_kv.control.rtc import RealTimeChunking
from embodied_kv.engine_config import RTC_SCHEDULES, EngineConfig
from embodied_kv.fleet.request_timing import RequestTiming
from embodied_kv.msg import FleetAnswer, FleetRequest
from embodied_kv.nodes.action import Action, ActionParams
from embodied_kv.nodes.common import conversions, executable
from embodied_kv.nodes.common.lifecycle_node import OK, WARN
from embodied_kv.nodes.common.parameters import Parameters, one_of, param
from embodied_kv.nodes.common.publishers import SinglePublishers
from embodied_kv.nodes.common.remote_host import RemoteHost
from embodied_kv.nodes.fleet import messages
from embodied_kv.nodes.fleet.messages import (
    ANSWER,
    ANSWERS,
    FINISHED,
    FREEZE,
    REQUEST,
    REQUESTS,
    RESUME,
)
from embodied_kv.nodes.observation.observation_buffer import ObservationBuffer
from embodied_kv.nodes.observation.params import ObservationParams
from embodied_kv.srv import FleetFreeze, FleetResume
from embodied_kv.text import shown
from embodied_kv.types import Guide

CHECK_EVERY = 0.02  # s between two checks whether a request is due
LOOK_EVERY = 0.5  # s between two looks for other publishers of the robot's topics
KEPT = 64  # observations that were sent and may still be answered


@dataclass(frozen=True)
class FleetClientParams:
    """When a robot asks its fleet."""

    request_ahead: int = param(
        1,
        'Actions before the end of an execution at which the next chunk is asked for; with the '
        'age of an image below the least horizon',
        range=(0, 1000),
        old='ahead',
    )
    retry_interval: float = param(
        0.1,
        'Without an answer for so long, s, a request is repeated',
        range=(0.01, 60.0),
        old='repeat',
    )
    rtc: bool = param(
        False,
        'Tell the fleet what the arm does meanwhile: a chunk goes on from that (real-time '
        'chunking) as engine.rtc of the fleet says',
    )
    rtc_horizon: int = param(
        0,
        'Actions of a chunk, from its first on, that the running one shapes; until then it must '
        'take over. 0: half of them',
        range=(0, 1000),
    )
    rtc_schedule: str = param(
        'exponential',
        'How guidance fades out until rtc_horizon: linear, exponential, ones or zeros',
        check=one_of(RTC_SCHEDULES),
    )

    @property
    def settings(self) -> EngineConfig:
        """As an engine of the robot's own would be told; which mode it is, the fleet's decides."""
        mode = 'guided' if self.rtc else 'off'
        return EngineConfig(rtc=mode, rtc_horizon=self.rtc_horizon, rtc_schedule=self.rtc_schedule)


class FleetClient(Action):
    """Asks on `fleet/request`, executes H actions of each answer, holds when one is late.

    Publishes what the action node publishes, under its name and with its parameters.
    """

    on_engine = False

    def __init__(self, **arguments: object) -> None:
        super().__init__(ObservationParams, **arguments)
        self._ask_params = Parameters(self, [('', FleetClientParams)], lambda: self.configured)
        self._process_id, self._tasks = uuid.uuid4().hex[:12], 0

    def find_host(self) -> RemoteHost:
        if not self.suite.preset:
            raise ValueError('parameter preset: name the model of the fleet')
        return RemoteHost(self.embodiment.adapted(preset(self.suite.preset)))

    def setup(self) -> None:
        model, ask = self.host.model, self._ask_params.read(FleetClientParams)
        p, self._settings = self.params.read(ActionParams), ask.settings
        if not ask.rtc:
            # Between two chunks lies an execution: only from its end on does the robot miss one.
            lasts = math.ceil(model.chunk_size * model.action_dt / self.suite.period)
            p = replace(p, stop_after=p.stop_after + lasts)
        self._setup_commands(p)
        self._timing = RequestTiming(model.action_dt, ask.request_ahead, ask.retry_interval)
        self._instruction = ''  # of the present task
        self._requests = self.publisher(FleetRequest, REQUEST, REQUESTS)
        self._finished = self.publisher(String, FINISHED, REQUESTS)
        self._observations = ObservationBuffer(self, self.on_instruction)
        self.subscribe(FleetAnswer, ANSWER, self._on_answer, ANSWERS)
        self.serve(FleetFreeze, FREEZE, self.while_active(self._freeze))
        self.serve(FleetResume, RESUME, self.while_active(self._resume))
        self.every(CHECK_EVERY, self._ask_if_due)
        self._single = SinglePublishers(
            self, 'stop all nodes but one: one client asks for a robot, and one fleet answers'
        )
        self.every(LOOK_EVERY, lambda: self._single.look((REQUEST, FINISHED, ANSWER)))

    def start(self) -> None:
        # stamp -> moment, and what the robot does meanwhile, in SI
        self._sent: OrderedDict[int, tuple[float, Guide | None]] = OrderedDict()
        self._heard = time.monotonic()
        self._start_moving()
        self._observations.restart()
        self.on_instruction(self._observations.instruction)
        self._begin()

    def _real_time_chunking(self) -> RealTimeChunking | None:
        settings, model = self._settings, self.host.model
        allowed = settings.allowed(model, self.suite.period)
        return RealTimeChunking.of(settings, model, allowed)

    def stop(self) -> None:
        self._stop_control()
        self._finished.publish(String(data=self._timing.task))

    def _begin(self, next: int = 0) -> None:
        """A new task, with a name that was never used. next: the number of its first round."""
        self._tasks += 1
        self._timing.begin(f'{self._process_id}-{self._tasks}', next)
        self._instruction = self._observations.instruction

    # ------------------------------------------------------------------ asking

    def _ask_if_due(self) -> None:
        now = time.monotonic()
        if not self._timing.due(now) or not self._observations.instruction:
            return
        moment = self._observations.newest()
        images = moment and self._observations.images(moment)
        if images is None:
            self.warn_throttled('no frame', f'nothing to ask with: {self._observations.waits}')
            return
        if self._observations.instruction != self._instruction:
            self._begin()
        control, timing, execution = self._control, self._timing, self._timing.execution(now)
        control.expect(self._world.now() + control.allowed)
        observed = self._observations.clock.steady(moment.taken)
        guide = control.guide(self._world.of_steady(observed))
        self._sent[moment.stamp] = observed, guide
        while len(self._sent) > KEPT:
            self._sent.popitem(last=False)
        self._requests.publish(
            messages.request_message(
                timing.task,
                timing.ask(now),
                str(self._policy()),
                execution,
                images,
                self._observations.joint_state(moment),
                self._instruction,
                moment.stamp,
                guide,
                self.embodiment.axes,
            )
        )

    def _on_answer(self, message: FleetAnswer) -> None:
        timing, now = self._timing, time.monotonic()
        self._heard = now
        if (message.task, message.round) != (timing.task, timing.round) or not timing.waiting:
            return  # of a round that is over
        if message.verdict in (FleetAnswer.QUEUED, FleetAnswer.DUPLICATE):
            return
        if message.verdict == FleetAnswer.LATE:
            self._begin()  # somebody has used this name
            return
        if message.verdict != FleetAnswer.ANSWERED:
            self.warn_throttled('refused', f'the fleet refuses: {shown(message.message, 300)}')
            timing.refused(now)
            return
        try:
            chunk = messages.chunk(message, self.embodiment.axes, 0.0)
            observed, guide = self._sent[chunk.stamp]
        except (conversions.Refused, KeyError) as error:
            self.warn_throttled('answer', f'an answer cannot be used: {error}')
            timing.refused(now)
            return
        stood = timing.take(chunk.execution_horizon, observed, now) - observed
        if self._rtc is not None:  # then the control loop knows by itself for how long
            stood = 0.0
        seen = self._world.of_steady(observed)
        deadline = seen + stood + self._control.allowed
        self._control.offer(replace(chunk, deadline=deadline), seen, guide)

    # ------------------------------------------------------------------ capsules

    def _freeze(self, _: FleetFreeze.Request, response: FleetFreeze.Response) -> None:
        """What a capsule at the fleet is to hold of this robot."""
        moment, left = self._observations.newest(), self._control.leftover()
        images = moment and self._observations.images(moment)
        response.task, response.next = self._timing.task, self._timing.next
        response.seen.instruction = self._observations.instruction
        if images is not None:
            response.seen = messages.observation_message(
                images,
                self._observations.joint_state(moment),
                self._observations.instruction,
                moment.stamp,
            )
        if left is not None:
            dt, names = self.host.model.action_dt, self.embodiment.axes
            response.left = [messages.left_message(left, dt, names)]

    def _resume(self, request: FleetResume.Request, response: FleetResume.Response) -> None:
        """Goes on from such a capsule: what was left of its chunk, then a round of a new task."""
        stamp, now = self.get_clock().now().nanoseconds, time.monotonic()
        left = messages.left(request.left, self.host.model, self.embodiment.axes)
        self._finished.publish(String(data=self._timing.task))
        if not request.hold:
            self._observations.tell(request.instruction or self._observations.instruction)
        self._begin(0 if request.hold else request.next)
        if request.hold:
            self._control.hold()
            self._timing.execute(0, now)
        elif left is not None:
            age = max(0.0, (stamp - left.stamp) / 1e9)
            self._control.resume(replace(left, age=age), stamp)
            self._timing.execute(len(left.values), now)
        response.task = self._timing.task

    # ------------------------------------------------------------------ diagnostics

    def report(self) -> tuple[bytes, str, dict[str, object]]:
        level, message, values = super().report()
        del values['frames too late to denoise']
        values['rounds'] = self._timing.round + 1
        values['seconds since the fleet was heard'] = f'{time.monotonic() - self._heard:.1f}'
        values |= self._single.values()
        if level == OK and self._single.problem:
            level, message = WARN, self._single.problem
        return level, message, values


def action(**arguments: object) -> FleetClient:
    """The action node of this namespace: as anywhere, there is one."""
    return FleetClient(**arguments)


def main() -> None:
    """Run the executable `fleet_client`, in a process of its own."""
    executable.run(action)


if __name__ == '__main__':
    main()
