"""A process of the suite: its nodes, their executors, start and shutdown.

Knows rclpy's contexts, executors and signals. Does not know what the nodes do.
"""

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
from embodied_kv.nodes.common.leaving import leave
from embodied_kv.nodes.common.lifecycle_node import SUCCESS, InvalidHandle, SuiteNode
from embodied_kv.nodes.common.lock_file import lock_path

DISCOVERY = 1.0  # s in which a suite on another machine is found, if there is one
SWITCH = 0.0002  # s; Python's own 5 ms would let a thread that must be on time wait so long
WAKE = 0.1  # s between two checks of the signals
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the last one of a terminal that closes


def run(*kinds: Callable[..., SuiteNode], **options: object) -> None:
    """Build the nodes with these options, spin them until SIGINT, SIGTERM or SIGHUP, and leave.

    SIGHUP does not end the process if a node has something to `reload`.
    Exits 1 if one of them is running in this namespace already, or if none that is to start by
    itself can be configured. If the process before this one ended without such a signal, or
    while its arm was stopped, the nodes are marked as `respawned`. A signal that arrives while an
    engine is loaded or compiled ends the process without waiting for it.
    """
    faulthandler.enable()  # a crash of native code prints where it happened
    sys.setswitchinterval(SWITCH)
    stopping: list[int] = []

    def on_signal(number: int, _: object) -> None:
        if number == signal.SIGHUP and any([node.reload() for node in nodes]):
            return
        stopping.append(number)
        for name in SIGNALS:  # the next one ends it at once; a terminal that closes sends two
            signal.signal(name, signal.SIG_IGN if name == signal.SIGHUP else signal.SIG_DFL)

    for name in SIGNALS:
        signal.signal(name, on_signal)
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    nodes: list[SuiteNode] = []
    code = 1
    try:
        with unique_in_namespace([kind.__name__.lower() for kind in kinds]) as marks:
            respawned = any(mark.exists() for mark in marks)
            for mark in marks:
                mark.touch()
            nodes += [kind(**options) for kind in kinds]
            for node in nodes:
                node.respawned = respawned
            if spin(nodes, stopping):
                code = 0
                if not any(node.is_latched for node in nodes):
                    for mark in marks:
                        mark.unlink(missing_ok=True)
        if any(node.is_loading for node in nodes):
            _leave_loading(nodes, code)
    finally:
        for node in nodes:
            node.end()
        EngineHost.close()
        rclpy.try_shutdown()
    leave(code)


def _leave_loading(nodes: Sequence[SuiteNode], code: int) -> None:
    """End the process while a thread of it loads or compiles, which cannot be interrupted.

    Python itself would wait for the thread, or end while it runs native code, which may crash.
    """
    nodes[0].get_logger().warning('the process ends before an engine was ready')
    for node in nodes:
        node.end()
    rclpy.try_shutdown()
    leave(code)


def spin(nodes: Sequence[SuiteNode], stopping: list[int]) -> bool:
    """Serve all nodes until `stopping`, and `bring_up` those with `autostart` from a thread.

    Nodes that may wait have a thread each. False, at once, where `bring_up` failed.
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
            node.brake()  # before anything waits
        stopping.append(0)  # also where this thread failed
        for thread in threads:
            thread.join()
    return not failed.is_set()


def bring_up(nodes: Sequence[SuiteNode], stopping: Sequence[int]) -> bool:
    """Configure and activate the nodes with `autostart`, one after another, readers first.

    Other threads must serve the nodes in the meantime: each transition runs on the thread of its
    node. Returns early where `stopping` has something. False where a configure failed and no node
    is ready that computes something.
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
    """Answer for these nodes, on this thread, until `stopping` has something."""
    # rclpy's EventsExecutor hands messages on 1 ms sooner, but dies (SIGFPE) where a cleanup
    # destroys timers beside it.
    executor = SingleThreadedExecutor()
    for node in nodes:
        executor.add_node(node)
    while not stopping:
        executor.spin_once(timeout_sec=WAKE)
    executor.shutdown()


@contextmanager
def unique_in_namespace(names: Sequence[str]) -> Iterator[list[Path]]:
    """Nodes of these names live in the namespace of this process alone, until the end.

    Yields the path of a mark for each name: `run` leaves it where the process ends unasked.
    Exits 1 with a message if one of them lives there already. On this machine, locked files tell
    at once, even of one that starts at the same moment. Of other machines ROS discovery tells, in
    a while.
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
                f'namespace {here} has its {", ".join(sorted(taken))} already: stop that, or give '
                'this one a namespace of its own (--ros-args -r __ns:=/other)'
            )
            sys.exit(1)
        return [path.with_suffix('.running') for path in paths.values()]
    except OSError as error:
        probe.get_logger().fatal(f'the lock file cannot be used: {error}; remove it')
        sys.exit(1)
    finally:
        probe.destroy_node()
