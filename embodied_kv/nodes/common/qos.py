"""Quality of service of every topic, in one place."""

from __future__ import annotations

from rclpy.duration import Duration
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

# Of cameras and joints only the newest counts; a lost one is not worth waiting for.
SENSOR = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
JOINTS = QoSProfile(depth=32, reliability=ReliabilityPolicy.BEST_EFFORT)
# They wait until somebody asks: a fifth of a second at 1000 a second.
JOINT_STATES = QoSProfile(depth=256, reliability=ReliabilityPolicy.BEST_EFFORT)
HANDLE = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE)
INSTRUCTION = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE)
MEMORY = QoSProfile(depth=256, reliability=ReliabilityPolicy.RELIABLE)
TEXT = QoSProfile(depth=64, reliability=ReliabilityPolicy.RELIABLE)
# Who joins late still learns how things stand.
STATUS = QoSProfile(
    depth=1,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)


def action(duration: float) -> QoSProfile:
    """Of commands: none outlives its chunk (s). An arm that stands is sent none."""
    return QoSProfile(
        depth=1, reliability=ReliabilityPolicy.RELIABLE, lifespan=Duration(seconds=duration)
    )


def heard(profile: QoSProfile, depth: int) -> QoSProfile:
    """Of a listener that wants every message of a topic: as reliable, with a deeper queue."""
    return QoSProfile(depth=depth, reliability=profile.reliability, durability=profile.durability)
