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
    """Check a policy of the execution horizon, '' for the contract's. Raises ValueError."""
    if text:
        execution_horizon.parse(text)


@dataclass(frozen=True)
class ActionParams:
    """Parameters of arming, timing and output. The contract has joints, limits and controllers."""

    armed: bool = param(
        False,
        'Arm at activation; if false, nothing moves until control/arm is called. Without effect '
        'after a stop, after a disarming, and in a process that was respawned',
    )
    shadow: bool = param(False, 'Compute and publish everything, but command no controller')
    robot_description: str = param(
        '',
        'URDF that provides limits missing in the contract; limits of the contract must not be '
        "wider. '': read from the topic robot_description, relative to the namespace",
    )
    tool_frame: str = param(
        '',
        'Link of the URDF whose predicted path during a chunk is published on predicted_path, for '
        "RViz and Foxglove. '': no path is published",
    )
    max_joint_state_age: float = param(
        0.5,
        'Maximum age (s) of a joint measurement used for control',
        range=(1e-3, 60.0),
        old=('max_measured_age',),
    )
    max_chunk_age: float = param(
        1.0,
        'Maximum time (s) from an observation until its chunk takes over',
        range=(1e-3, 60.0),
    )
    max_open_loop: float = param(
        1.0,
        'Maximum duration (s) of a trajectory sent to a controller, including braking; the rest '
        'of a longer chunk is sent as time passes',
        range=(0.2, 10.0),
    )
    resume_within: float = param(
        3.0,
        'Maximum time (s) that an armed arm with an instruction may stand without a fresh chunk; '
        'after a longer interruption the arm is disarmed',
        range=(0.1, 3600.0),
    )
    standstill_timeout: float = param(
        5.0,
        'Maximum time (s) for which the arm may stand still while the policy answers the success '
        'question with no; then the goal of execute_instruction ends as NOT_DONE. 0: unlimited',
        range=(0.0, 3600.0),
        old=('standing_limit',),
    )
    missed_chunk_limit: int = param(
        5,
        'Number of consecutive control periods without a fresh chunk after which the arm stops',
        range=(1, 1000),
        old=('stop_after',),
    )
    execution_horizon: str = param(
        '',
        'Policy of H, the number of actions of a chunk that are executed before the arm holds: '
        'whole, static:H, or confidence:T:H_MIN (as far as denoising has converged, if that '
        'predicts the revisions of the next chunk). '
        "'': the value of the contract",
        'live',
        check=_horizon,
        old=('horizon',),
    )
    setpoint_rate: float = param(
        100.0, 'Set-points per second, for set-point controllers', range=(1.0, 2000.0)
    )
    lock_memory: bool = param(False, 'Lock the memory of the process in RAM (mlockall)')
    cpu_affinity: int = param(-1, 'CPU core of the control loop; -1: any', range=(-1, 1023))
    thread_priority: int = param(
        0, 'SCHED_FIFO priority of the control loop; 0: default scheduling', range=(0, 99)
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
