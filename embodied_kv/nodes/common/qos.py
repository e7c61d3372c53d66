"""Quality of service of every topic, in one place."""

from __future__ import annotations

from rclpy.duration import Duration
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

# Only the newest message of cameras and joints matters; lost ones are not sent again.
SENSOR = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
JOINTS = QoSProfile(depth=32, reliability=ReliabilityPolicy.BEST_EFFORT)
# Messages stay queued until a state is requested: a quarter of a second at 1000 Hz.
JOINT_STATES = QoSProfile(depth=256, reliability=ReliabilityPolicy.BEST_EFFORT)
HANDLE = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE)
INSTRUCTION = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE)
MEMORY = QoSProfile(depth=256, reliability=ReliabilityPolicy.RELIABLE)
TEXT = QoSProfile(depth=64, reliability=ReliabilityPolicy.RELIABLE)
# Late subscribers receive the newest message.
STATUS = QoSProfile(
    depth=1,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)


def action(duration: float) -> QoSProfile:
    """Return the profile of commands, which expire after the duration (s) of a chunk."""
    return QoSProfile(
        depth=1, reliability=ReliabilityPolicy.RELIABLE, lifespan=Duration(seconds=duration)
    )


def heard(profile: QoSProfile, depth: int) -> QoSProfile:
    """Return a profile with the same reliability and durability, and a queue of `depth`."""
    return QoSProfile(depth=depth, reliability=profile.reliability, durability=profile.durability)
