"""A process of the suite: its nodes, their executor, its beginning and its end.

Knows rclpy's contexts, executors and signals. Does not know what the nodes do.
"""

from __future__ import annotations

import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from embodied_kv.nodes.base import SUCCESS, SuiteNode
from embodied_kv.nodes.host import EngineHost
from embodied_kv.nodes.params import SuiteParams

DISCOVERY = 1.5  # s in which another suite is found, if there is one
SWITCH = 0.0002  # s; Python's own 5 ms would let a thread that must be on time wait so long
WAKE = 0.1  # s between two looks at the signals


def run(*kinds: Callable[..., SuiteNode], **options: object) -> None:
    """Build the nodes with these options, spin them until SIGINT or SIGTERM, and leave.

    Exits 1 if one of them is running in this namespace already.
    """
    sys.setswitchinterval(SWITCH)
    stopping: list[int] = []

    def on_signal(number: int, _: object) -> None:
        stopping.append(number)
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, signal.SIG_DFL)  # the next one ends it at once

    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, on_signal)
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    nodes: list[SuiteNode] = []
    try:
        refuse_second([kind.__name__.lower() for kind in kinds])
        nodes += [kind(**options) for kind in kinds]
        spin(nodes, stopping)
    finally:
        for node in nodes:
            node.trigger_shutdown()
            node.destroy_node()
        EngineHost.close()
        rclpy.try_shutdown()


def spin(nodes: Sequence[SuiteNode], stopping: Sequence[int]) -> None:
    """Bring up the nodes that want it, readers first, and serve all until something is in `stopping`."""
    import os
    from rclpy.experimental import EventsExecutor
    executor = EventsExecutor() if os.environ.get("EV") else SingleThreadedExecutor()
    for node in nodes:
        executor.add_node(node)
    starting = [node for node in reversed(nodes) if node.params.read(SuiteParams).autostart]
    ready = [node for node in starting if node.trigger_configure() == SUCCESS]
    for node in ready:
        node.trigger_activate()
    while not stopping:
        try:
            executor.spin_once(timeout_sec=WAKE)
        except Exception:  # rclpy raises here what a client did wrong, as an impossible transition
            nodes[0].get_logger().error(f'a request failed\n{traceback.format_exc()}')
    executor.shutdown()


def refuse_second(names: Sequence[str]) -> None:
    """Exit with a message if a node of these names lives in the namespace of this process."""
    probe = Node(f'_{names[0]}_looks_around', start_parameter_services=False, enable_rosout=False)
    try:
        here = probe.get_namespace()
        until = time.monotonic() + DISCOVERY
        while time.monotonic() < until:
            known = probe.get_node_names_and_namespaces()
            taken = sorted(name for name, space in known if space == here and name in names)
            if taken:
                probe.get_logger().fatal(
                    f'{", ".join(taken)} runs in namespace {here} already: stop it, or give this '
                    'one a namespace of its own (--ros-args -r __ns:=/other)'
                )
                sys.exit(1)
            time.sleep(0.05)
    finally:
        probe.destroy_node()
