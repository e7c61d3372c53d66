"""The faults that `benchmarks.safety` injects. Each returns the reason of a refusal, or ''."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.safety.world import JTC, KINDS, POSITIONS, Kind, Policy, World
from embodied_kv.robots.embodiment import Embodiment

REFUSAL = 5.0  # s in which arming is tried again
HELD = 2.0  # s that an arm is blocked, or its controller inactive
PAUSED = 1.5  # s of a pause, which is shorter than resume_within


@dataclass(frozen=True)
class Fault:
    """A fault, and how it is injected.

    Args:
        name: Name in the table.
        inject: Moves the arm where that is needed, then injects the fault.
        kinds: The arms that it applies to.
        observe: Time (s) for which the arm is observed.
        policy: The policy of a kind; default: one that moves steadily.
    """

    name: str
    inject: Callable[[World], str]
    kinds: tuple[Kind, ...] = KINDS
    observe: float = 3.0
    policy: Callable[[Kind, Embodiment], Policy] = Kind.steady


def stop(world: World) -> str:
    """Call control/stop while the arm moves."""
    world.act().call('stop')
    return ''


def takeover_then_stop(world: World) -> str:
    """Take over, and stop after 50 ms."""
    world.act().call('takeover')
    time.sleep(0.05)
    world.call('stop')
    return ''


def disarm(world: World) -> str:
    """Disarm while the arm moves."""
    world.act().call('arm', False)
    return ''


def deactivate(world: World) -> str:
    """Deactivate the action node while the arm moves."""
    world.act().change('deactivate')
    return ''


def signalled(number: int) -> Callable[[World], str]:
    """Return a fault that sends a signal to the process while the arm moves."""

    def inject(world: World) -> str:
        world.act().process.signal(number)
        return ''

    return inject


def cameras_lost(world: World) -> str:
    """End all images while the arm moves."""
    world.act().cameras = False
    return ''


def joint_states_lost(world: World) -> str:
    """End the joint states of the arm while it moves."""
    world.act().arm.silent = True
    return ''


def joint_states_in_degrees(world: World) -> str:
    """Publish degrees from the start."""
    world.arm.distort = np.degrees
    time.sleep(1.0)
    return _arming(world)


def two_publishers(world: World) -> str:
    """Let another node publish zeros as joint states from the start."""
    world.publish_zeros()
    time.sleep(1.0)
    return _arming(world)


def _arming(world: World) -> str:
    """Return why arming is refused; '' if it is granted."""
    world.mark()
    armed, message = world.arm_and_tell(REFUSAL)
    return '' if armed else message


def one_message_of_zeros(world: World) -> str:
    """Replace one joint state by zeros while the arm moves."""
    arm = world.act().arm
    correct = arm.distort

    def zeros(positions: np.ndarray) -> np.ndarray:
        arm.distort = correct
        return np.zeros_like(positions)

    arm.distort = zeros
    return ''


def blocked(world: World) -> str:
    """Block the arm while it moves, and release it."""
    arm = world.act().arm
    arm.blocked = True
    time.sleep(HELD)
    world.count()
    arm.blocked = False
    return ''


def inactive_controller(world: World) -> str:
    """Move the arm through an inactive controller, and activate it."""
    arm = world.arm
    arm.controller.active = False
    world.arm_and_tell()
    world.mark()
    time.sleep(HELD)
    world.count()
    arm.controller.activate(arm.position)
    return ''


def scaled(scale: float, published: bool, pause: float = 0.0) -> Callable[[World], str]:
    """Return a fault that changes the speed scaling of the controller while the arm moves.

    Args:
        scale: The speed scaling, 0 to 1.
        published: Whether the driver publishes it.
        pause: Time (s) after which the speed is full again; 0 for never.
    """

    def inject(world: World) -> str:
        world.plant.scaling = published
        controller = world.act().arm.controller
        controller.scale = scale
        if pause:
            time.sleep(pause)
            world.count()
            controller.scale = 1.0
        return ''

    return inject


def policy_in_degrees(world: World) -> str:
    """Execute a policy whose actions are in degrees."""
    world.mark()
    if not (refusal := _arming(world)):
        world.wait(lambda: 'refused' in world.state[1], REFUSAL)
        refusal = world.state[1] if 'refused' in world.state[1] else ''
    return refusal


FAULTS = (
    Fault('control/stop', stop),
    Fault('takeover, stop after 50 ms', takeover_then_stop),
    Fault('disarm', disarm),
    Fault('deactivate', deactivate),
    Fault('SIGTERM', signalled(signal.SIGTERM)),
    Fault('SIGKILL', signalled(signal.SIGKILL)),
    Fault('SIGSTOP', signalled(signal.SIGSTOP)),
    Fault('cameras lost', cameras_lost, observe=5.0),
    Fault('joint states lost', joint_states_lost, observe=5.0),
    Fault('joint states in degrees', joint_states_in_degrees, observe=1.0),
    Fault('one message of zeros', one_message_of_zeros, observe=1.5),
    Fault('second publisher of joint states', two_publishers, observe=1.0),
    Fault('arm blocked for 2 s, released', blocked, observe=2.0),
    Fault(
        'arm blocked for 2 s, released; policy by the clock',
        blocked,
        (JTC, POSITIONS),
        observe=2.0,
        policy=Kind.scheduled,
    ),
    Fault('controller inactive for 2 s', inactive_controller, (JTC,), observe=2.0),
    Fault(
        'controller inactive for 2 s; policy by the clock',
        inactive_controller,
        (JTC,),
        observe=2.0,
        policy=Kind.scheduled,
    ),
    Fault('speed scaling 10 %, with topic', scaled(0.1, True), (JTC,)),
    Fault('speed scaling 10 %, without topic', scaled(0.1, False), (JTC,)),
    Fault('pause of 1.5 s, with topic', scaled(0.0, True, PAUSED), (JTC,), observe=1.5),
    Fault('pause of 1.5 s, without topic', scaled(0.0, False, PAUSED), (JTC,), observe=1.5),
    Fault('policy in degrees', policy_in_degrees, observe=2.0, policy=Kind.degrees),
)
