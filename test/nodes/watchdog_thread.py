"""The command watchdog inside the process of a test, with a thread of its own."""

import threading
from contextlib import contextmanager

from rclpy.parameter import Parameter

from embodied_kv.nodes.watchdog import WatchdogNode, serve


@contextmanager
def watchdog(namespace, contract):
    """The command watchdog of a robot, until the end; it ends a motion that is left."""
    overrides = [Parameter('contract', value=contract)]
    node = WatchdogNode(namespace=namespace, parameter_overrides=overrides)
    stopping = []
    thread = threading.Thread(target=serve, args=(node, stopping), daemon=True)
    thread.start()
    try:
        yield node
    finally:
        stopping.append('the test is over')
        thread.join()
        node.destroy_node()
