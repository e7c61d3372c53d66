"""A process of the suite: its nodes, their executors, start and shutdown."""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from embodied_kv import storage
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.nodes.common.lifecycle_node import SUCCESS, InvalidHandle, SuiteNode
from embodied_kv.nodes.common.process import leave, lock_path

DISCOVERY = 1.0  # s to discover the nodes of a suite on another machine
SWITCH = 0.0002  # s; Python's switch interval of 5 ms would delay threads with deadlines
WAKE = 0.1  # s between two checks of the signals
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # a closing terminal sends SIGHUP


def run(**kinds: Callable[[], SuiteNode]) -> None:
    """Build the nodes, by name, spin them until SIGINT, SIGTERM or SIGHUP, and exit.

    SIGHUP does not end the process if a node has files to `reload`. The exit status is 1 if one of
    the nodes is running in this namespace already, or if `bring_up` fails. If the previous process
    ended without such a signal, or while its arm was stopped, the nodes are marked as `respawned`.
    A signal that arrives while an engine is loaded or compiled ends the process without waiting.
    """
    faulthandler.enable()  # a crash of native code prints where it happened
    sys.setswitchinterval(SWITCH)
    stopping: list[int] = []

    def on_signal(number: int, _: object) -> None:
        if number == signal.SIGHUP and any([node.reload() for node in nodes]):
            return
        stopping.append(number)
        for name in SIGNALS:  # another one ends the process at once, but terminals repeat SIGHUP
            signal.signal(name, signal.SIG_IGN if name == signal.SIGHUP else signal.SIG_DFL)

    for name in SIGNALS:
        signal.signal(name, on_signal)
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    nodes: list[SuiteNode] = []
    code = 1
    try:
        with unique_in_namespace([*kinds]) as marks:
            respawned = any(mark.exists() for mark in marks)
            for mark in marks:
                mark.touch()
            nodes += [kind() for kind in kinds.values()]
            for node in nodes:
                node.respawned = respawned
            if spin(nodes, stopping):
                code = 0
                if not any(node.is_latched for node in nodes):
                    for mark in marks:
                        mark.unlink(missing_ok=True)
    finally:
        is_loading = any(node.is_loading for node in nodes)
        if is_loading:
            nodes[0].get_logger().warning('the process ends before an engine was ready')
        for node in nodes:
            node.end()
        if not is_loading:  # `close` would wait for the loading thread
            EngineHost.close()
        rclpy.try_shutdown()
    leave(code)  # a normal exit would wait for that thread, or crash in its native code


def spin(nodes: Sequence[SuiteNode], stopping: list[int]) -> bool:
    """Serve all nodes until `stopping` is not empty, and call `bring_up` on another thread.

    Each node with `may_wait` is served on a separate thread. Return False once `bring_up` fails.
    """
    failed = threading.Event()

    def start() -> None:
        ready = False
        try:
            with suppress(InvalidHandle):  # the nodes have ended in the meantime
                ready = bring_up(nodes, stopping)
        finally:
            if not ready and not stopping:
                failed.set()
                stopping.append(0)

    for node in nodes:
        node.starting = node.autostart
    threads = [
        threading.Thread(target=serve, args=([node], stopping), name=node.get_name())
        for node in nodes
        if node.may_wait
    ]
    for thread in threads:
        thread.start()
    threading.Thread(target=start, name='start', daemon=True).start()  # may wait for an engine
    try:
        serve([node for node in nodes if not node.may_wait], stopping)
    finally:
        for node in nodes:
            node.brake()  # before waiting for the threads
        stopping.append(0)  # also after an exception of `serve`
        for thread in threads:
            thread.join()
    return not failed.is_set()


def bring_up(nodes: Sequence[SuiteNode], stopping: Sequence[int]) -> bool:
    """Configure, then activate the nodes with `autostart` in reverse order: perception last.

    Other threads must serve the nodes, because each transition runs on the thread of its node.
    Return early if `stopping` is not empty. Return False if a configure failed and no node with an
    engine or a policy server is ready.
    """
    starting = [node for node in reversed(nodes) if node.autostart]
    ready = []
    for node in starting:
        if stopping:
            return True
        if node.submit(node.begin_configure).result().result() == SUCCESS:
            ready.append(node)
    if len(ready) < len(starting) and all(node.host is None for node in ready):
        return False
    for node in ready:
        if stopping:
            break
        node.submit(node.activate_at_start).result()
    return True


def serve(nodes: Sequence[SuiteNode], stopping: Sequence[int]) -> None:
    """Serve nodes on this thread until `stopping` is not empty."""
    # rclpy's EventsExecutor delivers messages 1 ms sooner, but crashes (SIGFPE) if a cleanup
    # destroys timers at the same time.
    executor = SingleThreadedExecutor()
    for node in nodes:
        executor.add_node(node)
    while not stopping:
        executor.spin_once(timeout_sec=WAKE)
    executor.shutdown()


@contextmanager
def unique_in_namespace(names: Sequence[str]) -> Iterator[list[Path]]:
    """Reserve the names of nodes in the namespace of this process.

    Yields a path for each name: `run` leaves a file there if the process ends without a signal.
    Exits with status 1 if one of the nodes is running already. Lock files detect it on this
    machine, even if both start at the same time, and ROS discovery on other machines.
    """
    with ExitStack() as locks:
        yield _refuse_second(names, locks)


def _refuse_second(names: Sequence[str], locks: ExitStack) -> list[Path]:
    probe = Node(f'_{names[0]}_probe', start_parameter_services=False, enable_rosout=False)
    try:
        here, domain = probe.get_namespace(), probe.context.get_domain_id()
        paths = {name: lock_path(here, domain, name) for name in names}
        taken = [
            name
            for name, path in paths.items()
            if not locks.enter_context(storage.locked(path, wait=False, file=True))
        ]
        until = time.monotonic() + DISCOVERY
        while not taken and time.monotonic() < until:
            time.sleep(0.05)
            known = probe.get_node_names_and_namespaces()
            taken = [name for name, space in known if space == here and name in names]
        if taken:
            probe.get_logger().fatal(
                f'namespace {here} must have one {", ".join(sorted(taken))} (got a second); stop '
                'the other, or choose another namespace (--ros-args -r __ns:=/other)'
            )
            sys.exit(1)
        return [path.with_suffix('.running') for path in paths.values()]
    except OSError as error:
        probe.get_logger().fatal(f'the lock file cannot be used: {error}; remove it')
        sys.exit(1)
    finally:
        probe.destroy_node()
