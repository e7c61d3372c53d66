"""A lifecycle node of the suite; subclasses implement `setup`, `start` and `stop`.

configure allocates and loads; activate starts; deactivate stops, after which nothing is published;
cleanup frees. Exceptions in transitions, which rclpy ignores, and in callbacks, which end its
executor, are logged instead.

All transitions run on the thread that serves the node, so they never run next to its callbacks.
The exception is `find_host`, the part of configure that takes long: `change_state` and the start
of the process run it on another thread. During that time the node has no topics, but its services
(`get_state`, parameters) answer. The response to `change_state` is sent when the transition has
ended, and other transitions are refused until then.
"""

from __future__ import annotations

import functools
import itertools
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from lifecycle_msgs.msg import State, Transition
from lifecycle_msgs.srv import ChangeState
from rclpy.callback_groups import CallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile
from rclpy.service import Service
from rclpy.subscription import Subscription

from embodied_kv.engine_config import EngineConfig
from embodied_kv.errors import CodedError, ErrorCode, code_of
from embodied_kv.nodes.common import qos
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.nodes.common.parameters import Parameters, SuiteParams
from embodied_kv.nodes.common.statistics import RateMeter, engine_values, resident_bytes
from embodied_kv.text import LINE, reason, shown, trace
from embodied_kv.throttle import Throttled

SUCCESS, FAILURE = TransitionCallbackReturn.SUCCESS, TransitionCallbackReturn.FAILURE
TransitionError = TransitionCallbackReturn.ERROR
OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR
RCLError = rclpy_implementation.RCLError
InvalidHandle = rclpy_implementation.InvalidHandle
UNCONFIGURED = LifecycleState('unconfigured', State.PRIMARY_STATE_UNCONFIGURED)
EXPECTED = (ValueError, OSError)  # their message is meant for the user
ANSWERED = (*EXPECTED, LookupError)  # in a service, it is meant for the client
ATTEMPTS = 4  # failed transitions that are logged without throttling
TELL, LOG_EVERY = 1.0, 10  # s between diagnostics of a configure; diagnostics per log line

T = TypeVar('T')


class SuiteNode(LifecycleNode):
    """A node of the suite.

    suite, embodiment, host: set by configure. may_wait: whether its callbacks may wait, so that
    the process serves them on a separate thread. on_engine: whether `host` is the engine of the
    process, with the parameters of `engine_config`. defers_traces: whether this engine traces
    graphs after the start, while no arm of this process is armed.

    Args:
        name: The name of the node.
        own: The dataclasses of its parameters, in addition to SuiteParams.
    """

    may_wait, on_engine, engine_config, defers_traces = False, True, EngineConfig, True
    description = ''  # the URDF that the node was configured with, '' for none
    respawned = False  # whether the previous process ended unexpectedly, or with a stopped arm
    starting = False  # whether the process is about to configure or activate it
    host: EngineHost  # or what `find_host` of a node without an engine returns

    def __init__(self, name: str, *own: type, **arguments: Any) -> None:
        super().__init__(name, **arguments)
        self.active = self.configured = False
        self.robot = self.get_namespace()
        self.warning_counts: Counter[str] = Counter()
        # rclpy accepts one severity for each source line that logs.
        self._infos = Throttled(lambda line: self.get_logger().info(line))
        self._warnings = Throttled(lambda line: self.get_logger().warning(line))
        self._errors = Throttled(lambda line: self.get_logger().error(line))
        self._release, self._progress = ExitStack(), ExitStack()
        self._steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._tokens = RateMeter()
        self._submitted: queue.SimpleQueue[tuple[Future, Callable]] = queue.SimpleQueue()
        self._wake_up = self.create_guard_condition(self._run_submitted)
        self._configuring: Future | None = None  # outcome of the configure under way
        self._loader: threading.Thread | None = None
        service = self._service_change_state
        service.callback = self._answering(service.callback)
        respond = functools.partial(_respond, service)
        service.send_response = respond  # type: ignore[method-assign]  # rclpy has no other hook
        engine = [('engine.', self.engine_config)] if self.on_engine else []
        parts = [('', SuiteParams), *(('', part) for part in own), *engine]
        self.params = Parameters(self, parts, lambda: self.configured)

    @property
    def autostart(self) -> bool:
        """Return whether the process configures and activates the node."""
        return self.get_parameter('autostart').value

    @property
    def is_loading(self) -> bool:
        """Return whether the loading thread is running, which cannot be interrupted."""
        return self._loader is not None and self._loader.is_alive()

    def end(self) -> None:
        """Shut the node down from any state and destroy it, after its executor has ended."""
        self._finish_configure(loaded=False)
        if self._state_machine.current_state[1] != 'finalized':
            self.trigger_shutdown()
        self.destroy_node()

    @property
    def is_latched(self) -> bool:
        """Return whether a stop is latched, which the next process must respect."""
        return False

    def reload(self) -> bool:
        """Request that changed files are read again; called in the handler of SIGHUP.

        Return whether the node has such files. If no node has, SIGHUP ends the process.
        """
        return False

    def brake(self) -> None:
        """Bring the arm to rest, because the process ends; the action node overrides this."""

    # ------------------------------------------------------------------ for subclasses to override

    def find_host(self) -> Any:
        """Return the engine's host, its remote replacement, or None; an exception fails configure.

        Work that takes long belongs here. It may run on another thread, so it must not create
        topics, services or timers.
        """
        log, config = self.get_logger(), self.params.read(self.engine_config)
        defers = self.defers_traces
        return EngineHost.share(self.suite, config, log.info, log.warning, defers)

    def setup(self) -> None:
        """Create topics, services and timers; an exception fails configure."""

    def start(self) -> None:
        """Begin to work; `active` is true from now on."""

    def stop(self) -> None:
        """Release leases and streams; publishers still publish."""

    def report(self) -> tuple[bytes, str, dict[str, object]]:
        """Return level, message and values for the diagnostics."""
        return OK, 'active', {}

    # ------------------------------------------------------------------ for subclasses to use

    def publisher(self, kind: type, topic: str, profile: QoSProfile) -> Publisher:
        """Return a publisher that publishes while the node is active, until cleanup."""
        publisher = self.create_lifecycle_publisher(kind, topic, profile)
        self._release.callback(self.destroy_lifecycle_publisher, publisher)
        return publisher

    def subscribe(
        self,
        kind: type,
        topic: str,
        callback: Callable,
        profile: QoSProfile,
        always: bool = False,
        group: CallbackGroup | None = None,
    ) -> Subscription:
        """Return a subscription until cleanup. always: call back while inactive, too."""

        def received(message: object) -> None:
            if always or self.active:
                callback(message)

        subscription = self.create_subscription(
            kind, topic, self._surviving(received), profile, callback_group=group
        )
        self._release.callback(self.destroy_subscription, subscription)
        return subscription

    def serve(self, kind: type, name: str, answer: Callable) -> None:
        """Create a service until cleanup. answer: fills in the response, or raises an error."""

        def served(request: object, response: Any) -> object:
            try:
                answer(request, response)
                response.success = True
                return response
            except Exception as error:
                if isinstance(error, ANSWERED) or isinstance(getattr(error, 'code', 0), ErrorCode):
                    response.error_code, message = code_of(error), reason(error)
                else:  # the client gets an answer, the log the traceback
                    self.log_exception(name, error)
                    message = 'failed: see the log of the node'
                    response.error_code = ErrorCode.UNKNOWN
            response.success, response.message = False, shown(message, LINE)
            return response

        service = self.create_service(kind, name, served)
        self._release.callback(self.destroy_service, service)

    def serve_all(self, prefix: str, verbs: Mapping[str, tuple[type, Callable]]) -> None:
        """Create services `prefix/verb` that are refused while the node is not active.

        verbs: the type and the answer of each, as for `serve`.
        """
        for verb, (kind, answer) in verbs.items():
            self.serve(kind, f'{prefix}/{verb}', self.while_active(answer))

    def while_active(self, answer: Callable) -> Callable:
        """Return an answer for `serve` that is refused while the node is not active."""

        def answered(request: object, response: object) -> None:
            if not self.active:
                raise CodedError(
                    f'{self.get_name()} must be active (got inactive); activate it first',
                    ErrorCode.NOT_ACTIVE,
                )
            answer(request, response)

        return answered

    def every(self, period: float, callback: Callable[[], None]) -> None:
        """Call back every `period` s of the steady clock while active, until cleanup."""

        def due() -> None:
            if self.active:
                callback()

        timer = self.create_timer(period, self._surviving(due), clock=self._steady)
        self._release.callback(self.destroy_timer, timer)

    def log_info(self, key: str, message: str) -> None:
        """Log a line; further lines of this key within `throttle.WINDOW` s are counted."""
        self._infos(key, shown(message, LINE))

    def log_warning(self, key: str, message: str) -> None:
        """Log a warning, throttled as by `log_info`."""
        self._warnings(key, shown(message, LINE))

    def warn_throttled(self, key: str, message: str) -> None:
        """Count a warning in the diagnostics, and log it."""
        self.warning_counts[key] += 1
        self.log_warning(key, message)

    def log_error(self, key: str, message: str, burst: int = 1) -> None:
        """Log an error, throttled as by `log_info` after `burst` lines of this key."""
        self._errors(key, shown(message, LINE), burst)

    def log_exception(self, what: str, error: Exception, burst: int = 1) -> None:
        """Log an unexpected error with its traceback."""
        self._errors(f'{what}, {type(error).__name__}', f'{what} failed\n{trace(error)}', burst)

    def _surviving(self, callback: Callable) -> Callable:
        @functools.wraps(callback)
        def guarded(*arguments: object) -> None:
            try:
                callback(*arguments)
            except Exception as error:  # it would end the executor of this and other nodes
                self.log_exception('a callback', error)

        return guarded

    # ------------------------------------------------------------------ transitions

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` on the thread that serves the node; call this from any other thread.

        Raises InvalidHandle if the node has ended.
        """
        future: Future[T] = Future()
        self._submitted.put((future, work))
        self._wake_up.trigger()
        return future

    def _run_submitted(self) -> None:
        while not self._submitted.empty():
            future, work = self._submitted.get()
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)

    def _answering(self, change_state: Callable) -> Callable:
        """Return a callback that refuses impossible transitions: rclpy before Kilted ends at them.

        The callback returns a response, or for a configure the future of its outcome.
        """

        def answer(
            request: ChangeState.Request, response: ChangeState.Response
        ) -> ChangeState.Response | Future[TransitionCallbackReturn]:
            try:
                if self.starting or self._configuring:
                    what = 'configuring' if self._configuring else 'about to start'
                    raise RCLError(f'{self.get_name()} is {what}; wait until that has ended')
                if _is_configure(request.transition):
                    return self.begin_configure()
                return change_state(request, response)
            except RCLError as error:
                self.warn_throttled('transition', f'transition refused: {error}')
                response.success = False
                return response

        return answer

    def begin_configure(self) -> Future[TransitionCallbackReturn]:
        """Configure, loading on another thread; return the future of the outcome.

        Call it on the thread that serves the node, which completes the transition. Raises RCLError
        if the node cannot be configured in its state.
        """
        self._state_machine.trigger_transition_by_id(Transition.TRANSITION_CONFIGURE, True)
        self._configuring = Future()
        self._tell_progress()
        self._loader = threading.Thread(
            target=self._load_and_submit, name=f'{self.get_name()} loads', daemon=True
        )
        self._loader.start()
        return self._configuring

    def _load_and_submit(self) -> None:
        loaded = self._succeeds('configure', self._load)
        with suppress(InvalidHandle):  # the node has ended
            self.submit(lambda: self._finish_configure(loaded))

    def _finish_configure(self, loaded: bool) -> None:
        configuring, self._configuring = self._configuring, None
        if configuring is None:
            return
        self._progress.close()
        outcome = self._complete(UNCONFIGURED, loaded)
        self._state_machine.trigger_transition_by_label(outcome.to_label(), True)
        self.starting = self.starting and outcome == SUCCESS
        configuring.set_result(outcome)

    def activate_at_start(self) -> TransitionCallbackReturn:
        """Activate the node, and accept `change_state` from then on."""
        self.starting = False
        return self.trigger_activate()

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._complete(state, self._succeeds('configure', self._load))

    def _complete(self, state: LifecycleState, loaded: bool) -> TransitionCallbackReturn:
        if loaded and self._succeeds('configure', self._set_up):
            return super().on_configure(state)
        self._free()
        return FAILURE

    def _load(self) -> None:
        self.params.check()
        self.suite = self.params.read(SuiteParams)
        self.embodiment = self.suite.embodiment()
        self.host = self.find_host()
        if self.host is not None:
            self.embodiment.check(self.host.model)

    def _set_up(self) -> None:
        self.setup()
        self._diagnostics = self.publisher(DiagnosticArray, '/diagnostics', qos.STATUS)
        self.every(1.0, self._diagnose)
        self.configured = True

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        result = super().on_activate(state)
        self.active = True
        if self._succeeds('activate', self.start):
            return result
        self._halt(state)
        return FAILURE

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._halt(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        return SUCCESS if self._succeeds('cleanup', self._free) else TransitionError

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self.on_error(state)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        if self.active:
            self._halt(state)
        return SUCCESS if self._succeeds('cleanup', self._free) else FAILURE

    def _halt(self, state: LifecycleState) -> TransitionCallbackReturn:
        self.active = False
        stopped = self._succeeds('deactivate', self.stop)
        result = super().on_deactivate(state)
        return result if stopped else TransitionError

    def _free(self) -> None:
        self.configured = False
        self._release.close()

    def _succeeds(self, what: str, work: Callable[[], None]) -> bool:
        try:
            work()
            return True
        except EXPECTED as error:
            self.log_error(what, f'{what} failed: {reason(error)}', ATTEMPTS)
        except Exception as error:  # rclpy would ignore it
            self.log_exception(what, error, ATTEMPTS)
        return False

    # ------------------------------------------------------------------ diagnostics

    def _tell_progress(self) -> None:
        """Publish and log the progress of configure until `_progress` is closed."""
        began, told = time.monotonic(), itertools.count()
        # Not a lifecycle publisher, which is silent while the node is not active.
        publisher = self.create_publisher(DiagnosticArray, '/diagnostics', qos.STATUS)
        self._progress.callback(self.destroy_publisher, publisher)

        def tell() -> None:
            seconds, count = f'{time.monotonic() - began:.0f} s', next(told)
            message = f'configuring: {EngineHost.doing() or f"loading, {seconds}"}'
            publisher.publish(self._diagnostic_array(level=OK, message=message))
            if count and count % LOG_EVERY == 0:
                self.log_info('configuring', f'{message}; configure began {seconds} ago')

        tell()
        timer = self.create_timer(TELL, self._surviving(tell), clock=self._steady)
        self._progress.callback(self.destroy_timer, timer)

    def _diagnose(self) -> None:
        for throttled in (self._infos, self._warnings, self._errors):
            throttled.flush()
        level, message, values = self.report()
        values |= {f'refused, {kind}': count for kind, count in self.warning_counts.items()}
        if self.on_engine:
            rate = self._tokens.rate(self.host.tokens)
            values |= engine_values(self.host.engine.kv.stats(), rate)
            values |= {'process': self.host.engine.kv.frames.process_id[:8]}
        values |= {'memory (MiB)': f'{resident_bytes() / 2**20:.0f}'}
        array = self._diagnostic_array(
            level=level,
            message=message,
            hardware_id=self.embodiment.contract.robot_type + self.robot.rstrip('/'),
            values=[KeyValue(key=key, value=str(value)) for key, value in values.items()],
        )
        self._diagnostics.publish(array)

    def _diagnostic_array(self, **fields: object) -> DiagnosticArray:
        name = self.get_fully_qualified_name().lstrip('/')
        array = DiagnosticArray(status=[DiagnosticStatus(name=name, **fields)])
        array.header.stamp = self.get_clock().now().to_msg()
        return array


def _is_configure(wanted: Transition) -> bool:
    """Return whether a request is for configure; a label has precedence, as in rclpy."""
    if wanted.label:
        return wanted.label == 'configure'
    return wanted.id == Transition.TRANSITION_CONFIGURE


def _respond(service: Service, answer: ChangeState.Response | Future, header: object) -> None:
    """Send a response now, or when the transition has ended; the executor does not wait."""
    if isinstance(answer, Future):
        answer.add_done_callback(
            lambda done: Service.send_response(
                service, ChangeState.Response(success=done.result() == SUCCESS), header
            )
        )
    else:
        Service.send_response(service, answer, header)
