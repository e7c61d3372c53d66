"""Convert ROS messages to values and back; `images` converts pixels."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from builtin_interfaces.msg import Duration, Time
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from embodied_kv.capsule.copies import CapsuleRecord
from embodied_kv.capsule.reentry import Depth
from embodied_kv.control.command import SOURCES, Command
from embodied_kv.kv.handle import KvHandle
from embodied_kv.memory.segment import Segment
from embodied_kv.msg import ActionChunk as ActionChunkMsg
from embodied_kv.msg import CapsuleInfo, MemorySegment
from embodied_kv.msg import KvHandle as KvHandleMsg
from embodied_kv.msg import TextDelta as TextDeltaMsg
from embodied_kv.planning.plan import MemoryStats, Plan
from embodied_kv.robots.embodiment import Embodiment
from embodied_kv.types import ActionChunk, TextDelta

# Fields of the same name in Command and the message.
_OF_CHUNKS = ('dt', 'execution_horizon', 'sequence', 'steps', 'prefill_ms', 'denoise_ms')


def nanoseconds(stamp: Time) -> int:
    """Return the time of a stamp (ns)."""
    return stamp.sec * 1_000_000_000 + stamp.nanosec


def stamp(nanoseconds: int) -> Time:
    """Return the stamp of a time on the ROS clock (ns)."""
    sec, nanosec = divmod(nanoseconds, 1_000_000_000)
    return Time(sec=sec, nanosec=nanosec)


# ---------------------------------------------------------------------- observations


def handle_message(handle: KvHandle) -> KvHandleMsg:
    """Return a handle as a message; the namespace of its topic is the robot."""
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
    """Return the handle of a message, as the inverse of `handle_message`."""
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
    """Return a command as a message. now: stamp of a command without an observation."""
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
        start: Time of the start on the controller's clock, so that a late receipt does not
            accelerate the arm. None if that clock is not known to agree: the stamp is 0, which a
            joint_trajectory_controller takes as the time of receipt.
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


# ---------------------------------------------------------------------- text


def text_message(delta: TextDelta) -> TextDeltaMsg:
    """Return a delta as a message, with NUL characters replaced, because they end a ROS string."""
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


# ---------------------------------------------------------------------- capsules


def capsule_message(record: CapsuleRecord) -> CapsuleInfo:
    """Return a capsule as a message."""
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
    response: Any, record: CapsuleRecord, seconds: float = 0.0, depth: Depth | None = None
) -> None:
    """Fill in the fields that all capsule services have. seconds: time on the engine thread."""
    response.name, response.bytes, response.tier = record.name, record.bytes, str(record.tier)
    response.boundary, response.ms = record.boundary.number, seconds * 1e3
    response.depth = '' if depth is None else str(depth)


def fill_candidates(chunks: Sequence[ActionChunk], robot: Embodiment, response: Any) -> None:
    """Fill in chunks of one frame, at least one, in SI units."""
    si = np.stack([robot.actions.si(chunk.values) for chunk in chunks])
    response.joint_names, response.values = robot.axes, array('d', si.tobytes())
    response.chunk_size, response.dt = si.shape[1], chunks[0].dt
    response.sequence = chunks[0].sequence


# ---------------------------------------------------------------------- memory


def segment_message(segment: Segment) -> MemorySegment:
    """Return a memory segment as a message."""
    fields = {name: getattr(segment, name) for name in segment.__dataclass_fields__}
    return MemorySegment(**fields)


def fill_plan(plan: Plan, response: Any) -> None:
    """Fill in the outcome of a plan and its cost."""
    for name in 'text method segments tokens computed loaded retries'.split():
        setattr(response, name, getattr(plan, name))
    response.complete, response.units_computed = plan.whole, plan.fresh
    response.first_token_ms, response.ms = plan.seconds_first_token * 1e3, plan.seconds * 1e3


def fill_memory_stats(stats: MemoryStats, response: Any) -> None:
    """Fill in the statistics of the memory."""
    for name in ('step', 'segments', 'units', 'bytes', 'hits', 'misses', 'plans'):
        setattr(response, name, getattr(stats, name))
    response.units_computed = stats.fresh
    response.groups_static, response.groups_dynamic = stats.static, stats.dynamic
    response.units_kept, response.bytes_cached = stats.kept, stats.cached_bytes
    response.turned_static = stats.transitions['static']
    response.turned_dynamic = stats.transitions['dynamic']
    response.constructions = list(stats.invalidated)
    response.invalidated = list(stats.invalidated.values())
    response.plans_keep, response.plans_full = stats.chosen['keep'], stats.chosen['full']
    response.seconds_saved = stats.seconds_saved
