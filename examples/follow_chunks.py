"""Follow the action chunks of a suite, as a controller of your own would do.

Run it while the suite runs: `tools/env python examples/follow_chunks.py`, or with a ROS 2 sourced
`python3 examples/follow_chunks.py --ros-args -r __ns:=/left_arm`.
"""

from __future__ import annotations

import numpy as np
import rclpy
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node
from rclpy.qos import QoSProfile

from embodied_kv.msg import ActionChunk

SOURCES = {
    ActionChunk.FRESH: 'fresh',
    ActionChunk.PREVIOUS: 'late: rest of the previous chunk',
    ActionChunk.HOLD: 'hold',
    ActionChunk.STOP: 'stop',
}


class FollowChunks(Node):
    """Logs the current set-point, and the source of its chunk."""

    def __init__(self) -> None:
        super().__init__('follow_chunks')
        self.create_subscription(ActionChunk, 'action_chunk', self.on_chunk, QoSProfile(depth=1))

    def on_chunk(self, chunk: ActionChunk) -> None:
        actions = np.reshape(chunk.values, (chunk.chunk_size, len(chunk.joint_names)))
        ahead = actions[chunk.first : chunk.execution_horizon]  # actions to execute now
        if len(ahead) == 0:
            return
        now = ', '.join(
            f'{name} {value:+.2f}' for name, value in zip(chunk.joint_names, ahead[0], strict=True)
        )
        self.get_logger().info(
            f'frame {chunk.sequence} ({SOURCES[chunk.source]}), {len(ahead)} actions ahead, '
            f'{chunk.age * 1e3:.0f} ms old, {chunk.steps} Euler steps: {now}'
        )


def main() -> None:
    rclpy.init()
    node = FollowChunks()
    try:
        rclpy.spin(node)
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


if __name__ == '__main__':
    main()
