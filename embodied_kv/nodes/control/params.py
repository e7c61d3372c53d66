"""Parameters of the action node, with and without an engine in its process."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass

from embodied_kv.control import execution_horizon
from embodied_kv.nodes.common.parameters import param

MCL_CURRENT, MCL_FUTURE = 1, 2  # of mlockall on Linux


def _horizon(text: str) -> None:
    """Raises ValueError for what is no policy; '' leaves it to the contract."""
    if text:
        execution_horizon.parse(text)


@dataclass(frozen=True)
class ActionParams:
    """When commands leave. Joints, limits and controllers are the contract's."""

    armed: bool = param(
        False,
        'Arm at activation; else nothing moves until control/arm is called. Without effect after '
        'a stop, after a disarming, and in a process that was respawned',
    )
    shadow: bool = param(False, 'Compute and show everything, command nothing')
    robot_description: str = param(
        '',
        'URDF: it gives limits that the contract leaves to it, and none of the contract may be '
        "wider. '' reads the topic robot_description, relative to the namespace; a URDF here wins",
    )
    tool_frame: str = param(
        '',
        'Link of the URDF whose path during the predicted chunk is published on predicted_path, '
        "for RViz and Foxglove; '' publishes none",
    )
    max_measured_age: float = param(
        0.5, 'Maximum age (s) of a joint measurement used for control', range=(1e-3, 60.0)
    )
    max_chunk_age: float = param(
        1.0,
        'Maximum time (s) from an observation until its chunk takes over',
        range=(1e-3, 60.0),
    )
    max_open_loop: float = param(
        1.0,
        'Maximum time (s) for which anything that was sent to a controller lasts, braking '
        'included; the rest of a longer chunk is sent as time passes',
        range=(0.2, 10.0),
    )
    resume_within: float = param(
        3.0,
        'Maximum time (s) that an armed arm with an instruction may stand for want of a fresh '
        'chunk; after a longer interruption the arm is disarmed',
        range=(0.1, 3600.0),
    )
    standing_limit: float = param(
        5.0,
        'Maximum time (s) for which the arm may stand still while the policy answers the success '
        'question with no; then the goal of execute_instruction ends as not done. 0: unlimited',
        range=(0.0, 3600.0),
    )
    stop_after: int = param(
        5,
        'Control periods without a fresh chunk after which to stop',
        range=(1, 1000),
    )
    execution_horizon: str = param(
        '',
        'H, how many actions of a chunk may be executed, from its start; then the robot holds. '
        "whole, static:H, or confidence:T:H_MIN: as far as denoising has converged; '' is the "
        "contract's",
        'live',
        check=_horizon,
        old='horizon',
    )
    setpoint_rate: float = param(
        100.0, 'Set-points per second, for controllers that take them', range=(1.0, 2000.0)
    )
    lock_memory: bool = param(False, 'Keep the process in RAM (mlockall)')
    cpu_affinity: int = param(-1, 'Core of the control loop; -1 for any', range=(-1, 1023))
    thread_priority: int = param(
        0, 'SCHED_FIFO priority of the control loop; 0 for usual scheduling', range=(0, 99)
    )

    def apply_real_time(self) -> dict[str, str]:
        """Apply the last three parameters and return the outcome of each by its name.

        The memory lock concerns the process, the others the calling thread. The suite works
        without them: a request that the operating system refuses is only reported.
        """
        outcome = {'lock_memory': 'off', 'cpu_affinity': 'any', 'thread_priority': 'usual'}
        if self.lock_memory:
            outcome['lock_memory'] = _lock_memory()
        if self.cpu_affinity >= 0:
            outcome['cpu_affinity'] = _try(
                f'core {self.cpu_affinity}',
                lambda: os.sched_setaffinity(0, {self.cpu_affinity}),
            )
        if self.thread_priority > 0:
            fifo = os.sched_param(self.thread_priority)
            outcome['thread_priority'] = _try(
                f'SCHED_FIFO {self.thread_priority}',
                lambda: os.sched_setscheduler(0, os.SCHED_FIFO, fifo),
            )
        return outcome


def _lock_memory() -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(MCL_CURRENT | MCL_FUTURE) == 0:
        return 'locked'
    return f'refused: {os.strerror(ctypes.get_errno())}'


def _try(done: str, request: Callable[[], None]) -> str:
    try:
        request()
        return done
    except OSError as error:
        return f'refused: {error.strerror}'
