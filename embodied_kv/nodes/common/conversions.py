"""Messages to values and back; nowhere else, but pixels: see `images`.

Knows message fields and byte order. Refuses, with a reason for the user, what the
values could not hold.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import numpy as np
from builtin_interfaces.msg import Duration, Time
from sensor_msgs.msg import JointState
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from embodied_kv.capsule.record import CapsuleRecord
from embodied_kv.capsule.reentry import Depth
from embodied_kv.control.command import Command
from embodied_kv.control.trajectory_executor import PREVIOUS, SOURCES
from embodied_kv.kv.handle import KvHandle
from embodied_kv.kv.manager import KvStats
from embodied_kv.memory.segment import Segment
from embodied_kv.msg import ActionChunk as ActionChunkMsg
from embodied_kv.msg import CapsuleInfo, MemorySegment
from embodied_kv.msg import KvHandle as KvHandleMsg
from embodied_kv.msg import TextDelta as TextDeltaMsg
from embodied_kv.planning.plan import MemoryStats, Plan
from embodied_kv.text import listed
from embodied_kv.types import ActionChunk, TextDelta

# Fields that Command, ActionChunk and its message name alike.
_OF_CHUNKS = ('dt', 'execution_horizon', 'sequence', 'steps', 'prefill_ms', 'denoise_ms')


class Refused(ValueError):
    """A message that cannot be used; says why and what would do."""


def nanoseconds(stamp: Time) -> int:
    """Of a stamp."""
    return stamp.sec * 1_000_000_000 + stamp.nanosec


def stamp(nanoseconds: int) -> Time:
    """Of ns on the ROS clock."""
    sec, nanosec = divmod(nanoseconds, 1_000_000_000)
    return Time(sec=sec, nanosec=nanosec)


# ---------------------------------------------------------------------- observations


def positions(message: JointState, names: Sequence[str]) -> np.ndarray:
    """float32 [joints], by name; other joints of the message do not matter. Raises Refused."""
    if len(message.position) < len(message.name):
        raise Refused(f'{len(message.name)} joints have {len(message.position)} positions')
    by_name = dict(zip(message.name, message.position, strict=False))
    if missing := [name for name in names if name not in by_name]:
        raise Refused(f'no joint {", ".join(missing)}; there are: {listed(message.name)}')
    if wrong := [name for name in names if not math.isfinite(by_name[name])]:
        raise Refused(f'joint {wrong[0]} is {by_name[wrong[0]]}')
    return np.array([by_name[name] for name in names], np.float32)


def handle_message(handle: KvHandle) -> KvHandleMsg:
    """The handle as it travels; its robot is the namespace that it travels in."""
    message = KvHandleMsg(
        process_id=np.frombuffer(bytes.fromhex(handle.process_id), np.uint8),
        row=handle.row,
        generation=handle.generation,
        sequence=handle.sequence,
        length=handle.length,
        layout=int(handle.layout, 16),
        deadline=handle.deadline,
        prefill_ms=handle.prefill_ms,
    )
    message.header.stamp = stamp(handle.stamp)
    return message


def handle(message: KvHandleMsg, robot: str) -> KvHandle:
    """The inverse of `handle_message`."""
    return KvHandle(
        process_id=bytes(message.process_id).hex(),
        row=message.row,
        generation=message.generation,
        sequence=message.sequence,
        length=message.length,
        layout=f'{message.layout:016x}',
        stamp=nanoseconds(message.header.stamp),
        deadline=message.deadline,
        prefill_ms=message.prefill_ms,
        robot=robot,
    )


# ---------------------------------------------------------------------- actions


def chunk_message(command: Command, joint_names: Sequence[str], now: Time) -> ActionChunkMsg:
    """A command as our own message. now: of a command that answers no observation."""
    message = ActionChunkMsg(
        joint_names=joint_names,
        chunk_size=len(command.values),
        values=array('d', command.values.tobytes()),
        first=command.first,
        confidence=array('f', command.confidence.tobytes()),
        age=command.age,
        delay=command.delay,
        latency=command.latency,
        source=SOURCES.index(command.source),  # numbered as in ActionChunk.msg
        deadline_met=command.deadline_met,
        **{name: getattr(command, name) for name in _OF_CHUNKS},
    )
    message.header.stamp = now if command.stamp is None else stamp(command.stamp)
    return message


def action_chunk(message: ActionChunkMsg, deadline: float) -> ActionChunk:
    """The chunk of a message, which a control loop can execute. Raises Refused.

    deadline: on the steady clock of this process, of which no message tells.
    """
    rows, columns, sure = message.chunk_size, len(message.joint_names), len(message.confidence)
    if message.source > SOURCES.index(PREVIOUS):
        raise Refused(f'a message of source {message.source} is no chunk, but holds or stops')
    if not rows or len(message.values) != rows * columns or sure not in (0, rows):
        raise Refused(
            f'{len(message.values)} values and {sure} confidences are not {rows} actions of '
            f'{columns} joints'
        )
    if not 1 <= message.execution_horizon <= rows:
        raise Refused(
            f'execution_horizon must lie from 1 to {rows} (got {message.execution_horizon})'
        )
    return ActionChunk(
        values=np.array(message.values, np.float32).reshape(rows, columns),
        stamp=nanoseconds(message.header.stamp),
        deadline=deadline,
        confidence=np.array(message.confidence, np.float32) if sure else None,
        **{name: getattr(message, name) for name in _OF_CHUNKS},
    )


def trajectory_message(
    points: np.ndarray,
    velocities: np.ndarray,
    times: np.ndarray,
    joint_names: Sequence[str],
    start: Time | None = None,
) -> JointTrajectory:
    """Return a motion as a message.

    Args:
        points: Positions [n, joints].
        velocities: Velocities [n, joints].
        times: Times [n], s from the start.
        joint_names: Names of the joints.
        start: The moment of the start on the controller's clock, so that a late receipt does not
            accelerate the arm. None where that clock is not known to agree: the stamp is 0, which
            a joint_trajectory_controller takes as the moment of receipt.
    """
    message = JointTrajectory(joint_names=joint_names)
    if start is not None:
        message.header.stamp = start
    for after, point, velocity in zip(times, points, velocities, strict=True):
        sec, nanosec = divmod(round(after * 1e9), 1_000_000_000)
        message.points.append(
            JointTrajectoryPoint(
                positions=array('d', point.tobytes()),
                velocities=array('d', velocity.tobytes()),
                time_from_start=Duration(sec=sec, nanosec=nanosec),
            )
        )
    return message


# ---------------------------------------------------------------------- words and numbers


def text_message(delta: TextDelta) -> TextDeltaMsg:
    """A delta as it travels; a string of ROS ends at a zero, so another character stands there."""
    message = TextDeltaMsg(
        stream=delta.stream,
        sequence=delta.sequence,
        query=delta.query,
        text=delta.text.replace('\0', '\N{REPLACEMENT CHARACTER}'),
        tokens=delta.tokens,
        finished=delta.finished,
        reason=delta.reason,
    )
    message.header.stamp = stamp(delta.stamp)
    return message


def fill_stats(stats: KvStats, response: object) -> None:
    """Copies every number of the statistics into the field of its name."""
    for name in stats.__dataclass_fields__:
        setattr(response, name, getattr(stats, name))


# ---------------------------------------------------------------------- capsules


def capsule_message(record: CapsuleRecord) -> CapsuleInfo:
    """A capsule as it is listed."""
    return CapsuleInfo(
        name=record.name,
        bytes=record.bytes,
        tier=str(record.tier),
        saved=record.saved,
        pinned=record.pinned,
        age=record.age,
        boundary=record.boundary.number,
        session=record.boundary.session,
        fingerprint=record.fingerprint,
        fits=record.fits,
    )


def fill_capsule(
    response: object, record: CapsuleRecord, seconds: float = 0.0, depth: Depth | None = None
) -> None:
    """What the answers of all verbs say of a capsule. seconds: of the engine's thread."""
    response.name, response.bytes, response.tier = record.name, record.bytes, str(record.tier)
    response.boundary, response.ms = record.boundary.number, seconds * 1e3
    response.depth = '' if depth is None else str(depth)


# ---------------------------------------------------------------------- memory


def segment_message(segment: Segment) -> MemorySegment:
    """A segment as it is known."""
    fields = {name: getattr(segment, name) for name in segment.__dataclass_fields__}
    return MemorySegment(**fields)


def fill_plan(plan: Plan, response: object) -> None:
    """What came of a plan, and what it took."""
    same = 'text whole method segments tokens computed loaded fresh retries'
    for name in same.split():
        setattr(response, name, getattr(plan, name))
    response.first_token_ms, response.ms = plan.seconds_first_token * 1e3, plan.seconds * 1e3


def fill_memory_stats(stats: MemoryStats, response: object) -> None:
    """The statistics under the names of the message."""
    for name in ('step', 'segments', 'units', 'bytes', 'hits', 'misses', 'plans', 'fresh'):
        setattr(response, name, getattr(stats, name))
    response.groups_static, response.groups_dynamic = stats.static, stats.dynamic
    response.units_kept, response.bytes_cached = stats.kept, stats.cached_bytes
    response.turned_static = stats.transitions['static']
    response.turned_dynamic = stats.transitions['dynamic']
    response.ways = list(stats.invalidated)
    response.invalidated = list(stats.invalidated.values())
