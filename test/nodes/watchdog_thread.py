"""The command watchdog in the process of a test, on its own thread."""

import threading
from contextlib import contextmanager

from rclpy.parameter import Parameter

from embodied_kv.nodes.watchdog import WatchdogNode, serve


@contextmanager
def watchdog(namespace, contract):
    """Run the command watchdog of a robot in the block; at the end it stops any motion."""
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
