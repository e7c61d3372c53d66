"""Watches a suite from outside, by its topics and services only, and counts.

Knows messages and numbers. Does not know the engine, processes or pictures. One thread's.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.node import Node
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String

from embodied_kv.engine.timeline import SOURCES
from embodied_kv.msg import ActionChunk, KvHandle, TextDelta
from embodied_kv.nodes import qos
from embodied_kv.nodes.storyboard import Moment
from embodied_kv.srv import Ask, KvStats

CAMERAS = ('front', 'wrist')
RECENT = 30  # stamps whose images are kept; commands that the rates of the moment look at


@dataclass
class Words:
    """A stream, as its deltas told it. reason: '' while it lives."""

    query: str
    text: str = ''
    tokens: int = 0
    reason: str = ''


class Witness(Node):
    """Subscribes to what the suite and the robot publish, tells, asks and polls. Counts from `began`."""

    def __init__(self, namespace: str = '') -> None:
        super().__init__('demo', namespace=namespace)
        self.began: float | None = None  # s, steady clock: the first fresh command
        self.instruction, self.instructions = '', []
        self.commands: list[ActionChunk] = []
        self.arrivals: deque[float] = deque(maxlen=RECENT)
        self.frames = self.deltas = 0
        self.streams: dict[int, Words] = {}
        self.asked: dict[str, int | str] = {}  # question -> its stream, or why there is none
        self.stats: KvStats.Response | None = None
        self.diagnostics: dict[str, str] = {}
        self.seen: dict[str, dict[int, np.ndarray]] = {name: {} for name in (*CAMERAS, 'joints')}
