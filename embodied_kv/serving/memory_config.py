"""Whether a policy server keeps memories: ROS parameters, and options of the command."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class MemoryConfig:
    """`memory.NAME` of a policy server, beside those of a memory of a robot."""

    enabled: bool = field(
        default=False,
        metadata={
            'help': 'Keep the memory of robots without a model, and plan with it',
            'when': 'configure',
        },
    )
    planner_rows: int = field(
        default=8,
        metadata={
            'help': "Rows of the planner's KV: memories that are in use at a time",
            'when': 'configure',
            'range': (1, 4096),
        },
    )
