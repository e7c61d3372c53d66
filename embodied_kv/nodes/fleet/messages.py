"""What robots and their fleet say to each other: topics, and messages to values and back.

Knows message fields. Whatever comes from outside is refused here, with a reason for the robot, if
the values could not hold it: what gets past can be put into a batch with the frames of others.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import numpy as np
from sensor_msgs.msg import Image, JointState

from embodied_kv.config import ModelConfig
from embodied_kv.control import execution_horizon
from embodied_kv.control.command import Leftover
from embodied_kv.fleet import protocol
from embodied_kv.fleet.protocol import LastExecution, Receipt, Request, Verdict
from embodied_kv.msg import ActionChunk as ActionChunkMsg
from embodied_kv.msg import FleetAnswer, FleetExecution, FleetObservation, FleetRequest
from embodied_kv.nodes.common import conversions, qos
from embodied_kv.nodes.common.conversions import Refused
from embodied_kv.nodes.common.images import rgb
from embodied_kv.robots.mapping import ActionMap, StateMap
from embodied_kv.serving.fleet_server import ServedChunk
from embodied_kv.text import listed
from embodied_kv.types import ActionChunk, Guide, Observation

REQUEST, ANSWER, FINISHED = 'fleet/request', 'fleet/answer', 'fleet/finished'
FREEZE, RESUME = 'fleet/freeze', 'fleet/resume'  # services of the robot
REQUESTS, ANSWERS = qos.INSTRUCTION, qos.TEXT  # of requests only the newest counts, of answers all

VERDICTS = {verdict: getattr(FleetAnswer, verdict.name) for verdict in Verdict}


# ---------------------------------------------------------------------- requests


def request(message: FleetRequest, robot: str, default_horizon: str) -> Request:
    """What a robot asks for. Raises ValueError.

    robot: the namespace that the message came from. default_horizon: where it names none.
    """
    seen, numbers = message.observation, len(message.leftover) + len(message.weights)
    text = message.execution_horizon or default_horizon
    protocol.name('execution_horizon', text)
    return Request(
        robot=robot,
        task=message.task,
        round=message.round,
        stamp=conversions.nanoseconds(seen.header.stamp) / 1e9,
        execution_horizon=execution_horizon.parse(text),
        observation_bytes=observation_bytes(seen) + 8 * numbers,
        execution=_execution(message.execution),
    )


def _execution(messages: Sequence[FleetExecution]) -> LastExecution | None:
    if not len(messages):
        return None
    told = messages[0]
    return LastExecution(told.round, told.start, told.end, told.remaining)


def observation_bytes(message: FleetObservation) -> int:
    """What of it weighs anything: pixels, joints, words; at least 1."""
    pixels = sum(len(image.data) for image in message.images)
    return max(1, pixels + 8 * len(message.joints.position) + len(message.instruction))


def observation(
    message: FleetRequest, robot: str, model: ModelConfig, states: StateMap
) -> Observation:
    """What the robot sees, as the model takes it. Raises Refused.

    Its number is the round's: the noise is a function of robot and round, whoever is in the batch.
    """
    if not message.observation.instruction.strip():
        raise Refused('the instruction is empty: say what to do')
    seen = message.observation
    return sight(seen, robot, message.round, model, states, seen.instruction)


def sight(
    seen: FleetObservation,
    robot: str,
    number: int,
    model: ModelConfig,
    states: StateMap,
    instruction: str,
) -> Observation:
    """What a robot sees, under this instruction, and number of a frame. Raises Refused."""
    shown = images(seen, model)
    return Observation(
        images=tuple(shown.get(view) for view in model.views),
        state=state(seen.joints, states),
        instruction=instruction,
        stamp=conversions.nanoseconds(seen.header.stamp),
        deadline=-math.inf,
        sequence=number,
        robot=robot,
    )


def guide(message: FleetRequest, model: ModelConfig, actions: ActionMap) -> Guide | None:
    """What the robot does meanwhile, in the policy's units; None where it tells nothing.

    Raises Refused for what is no leftover of this contract. What a delay and weights may be, the
    engine knows.
    """
    values, rows, axes = message.leftover, model.chunk_size, actions.axes
    if not len(values):
        return None
    if list(message.joint_names) != list(axes):
        raise Refused(
            f'the leftover moves other joints: {listed(message.joint_names)}; here they are: '
            f'{listed(axes)}'
        )
    if len(values) != rows * len(axes):
        raise Refused(
            f'the leftover has {len(values)} values: {rows} actions of {len(axes)} joints have '
            f'{rows * len(axes)}'
        )
    si = np.array(values, np.float64).reshape(rows, -1)
    if np.isinf(si).any():
        raise Refused('the leftover is infinite: write NaN from where nothing is planned')
    return Guide(actions.policy(si), message.delay, np.array(message.weights, np.float64))


def state(message: JointState, states: StateMap) -> np.ndarray:
    """The policy's, float64 [D]. Raises Refused."""
    names = message.name
    if len(message.position) < len(names) or len(message.velocity) not in (0, len(names)):
        raise Refused(
            f'{len(names)} joints have {len(message.position)} positions and '
            f'{len(message.velocity)} velocities'
        )
    positions = dict(zip(names, message.position, strict=False))
    velocities = dict(zip(names, message.velocity, strict=False))
    try:
        return states.policy(positions, velocities)
    except ValueError as error:
        raise Refused(f'{error}; there are: {listed(names)}') from error


def images(message: FleetObservation, model: ModelConfig) -> dict[str, np.ndarray]:
    """By view, those that there are: uint8 [height, width, 3]. Raises Refused."""
    views = list(message.views)
    if len(views) != len(message.images) or not views:
        raise Refused(f'{len(message.images)} images for {len(views)} views: send one for each')
    if unknown := [view for view in views if view not in model.views]:
        raise Refused(f'no view {unknown[0][:40]!r}: the model has {", ".join(model.views)}')
    if len(set(views)) < len(views):
        raise Refused(f'a view comes twice: {", ".join(views)}')
    return {view: rgb(image) for view, image in zip(views, message.images, strict=True)}


def observation_message(
    images: dict[str, Image], joints: JointState, instruction: str, stamp: int
) -> FleetObservation:
    """What a robot sees. images: by view, those that there are. stamp: ns on its ROS clock."""
    message = FleetObservation(
        views=list(images), images=list(images.values()), joints=joints, instruction=instruction
    )
    message.header.stamp = conversions.stamp(stamp)
    return message


def request_message(
    task: str,
    round: int,
    horizon: str,
    execution: LastExecution | None,
    images: dict[str, Image],
    joints: JointState,
    instruction: str,
    stamp: int,
    guide: Guide | None = None,
    joint_names: Sequence[str] = (),
) -> FleetRequest:
    """A robot asks. images, joints, instruction, stamp: as of `observation_message`.

    guide: what it does meanwhile, in SI, of joints of these names.
    """
    seen = observation_message(images, joints, instruction, stamp)
    message = FleetRequest(task=task, round=round, execution_horizon=horizon, observation=seen)
    if guide is not None:
        message.joint_names, message.delay = joint_names, guide.delay
        message.leftover = array('d', guide.actions.astype(np.float64).tobytes())
        message.weights = array('f', guide.weights.astype(np.float32).tobytes())
    if execution is not None:
        message.execution = [
            FleetExecution(
                round=execution.round,
                start=execution.start,
                end=execution.end,
                remaining=execution.remaining,
            )
        ]
    return message


# ---------------------------------------------------------------------- answers


def answer_message(task: str, round: int, receipt: Receipt, actions: ActionMap) -> FleetAnswer:
    """A receipt as it travels, with the chunk if there is one, in SI."""
    message = FleetAnswer(
        task=task, round=round, verdict=VERDICTS[receipt.verdict], message=receipt.message
    )
    served: ServedChunk | None = receipt.answer.chunk if receipt.answer else None
    if served is not None and served.chunk is not None:
        chunk = served.chunk
        message.header.stamp = conversions.stamp(chunk.stamp)
        message.execution_horizon, message.dt, message.joint_names = (
            chunk.execution_horizon,
            chunk.dt,
            actions.axes,
        )
        message.values = array('f', actions.si(chunk.values).astype(np.float32).tobytes())
        message.confidence = array('f', chunk.confidence.astype(np.float32).tobytes())
        message.steps, message.queued_ms = chunk.steps, served.queued * 1e3
        message.prefill_ms, message.denoise_ms = chunk.prefill_ms, chunk.denoise_ms
    return message


def chunk(message: FleetAnswer, joint_names: Sequence[str], deadline: float) -> ActionChunk:
    """The chunk of an answer. deadline: s, steady clock. Raises Refused."""
    columns, actions = len(joint_names), len(message.confidence)
    if list(message.joint_names) != list(joint_names):
        raise Refused(f'the joints that the fleet moves are: {listed(message.joint_names)}')
    if not actions or len(message.values) != actions * columns:
        raise Refused(f'{len(message.values)} values are not {actions} actions of {columns}')
    if not 1 <= message.execution_horizon <= actions:
        raise Refused(
            f'execution_horizon must lie from 1 to {actions} (got {message.execution_horizon})'
        )
    return ActionChunk(
        values=np.array(message.values, np.float32).reshape(actions, columns),
        dt=message.dt,
        stamp=conversions.nanoseconds(message.header.stamp),
        deadline=deadline,
        sequence=message.round,
        steps=message.steps,
        prefill_ms=message.prefill_ms,
        denoise_ms=message.denoise_ms,
        execution_horizon=message.execution_horizon,
        confidence=np.array(message.confidence, np.float32),
    )


# ---------------------------------------------------------------------- what is left of a chunk


def left_message(left: Leftover, dt: float, joint_names: Sequence[str]) -> ActionChunkMsg:
    """What is still to come of a chunk, between a robot and the capsules at its fleet."""
    message = ActionChunkMsg(
        joint_names=joint_names,
        dt=dt,
        chunk_size=len(left.values),
        execution_horizon=len(left.values),
        values=array('d', left.values.astype(np.float64).tobytes()),
        sequence=left.sequence,
        age=left.age,
        latency=math.nan,
        steps=left.steps,
        source=ActionChunkMsg.PREVIOUS,
    )
    message.header.stamp = conversions.stamp(left.stamp)
    return message


def left(
    messages: Sequence[ActionChunkMsg], model: ModelConfig, joint_names: Sequence[str]
) -> Leftover | None:
    """What is still to come of a chunk; None where nothing is. Raises Refused."""
    if not len(messages):
        return None
    message, columns = messages[0], len(joint_names)
    if list(message.joint_names) != list(joint_names):
        raise Refused(f'the rest of a chunk moves other joints: {listed(message.joint_names)}')
    if not 1 <= message.chunk_size <= model.chunk_size:
        raise Refused(f'{message.chunk_size} actions are left of a chunk of {model.chunk_size}')
    if len(message.values) != message.chunk_size * columns:
        raise Refused(
            f'{len(message.values)} values are not {message.chunk_size} actions of {columns}'
        )
    values = np.array(message.values, np.float64).reshape(-1, columns)
    if not np.isfinite(values).all() or not math.isclose(message.dt, model.action_dt):
        raise Refused(f'the rest of a chunk has dt {message.dt} s, or is not finite')
    stamp = conversions.nanoseconds(message.header.stamp)
    return Leftover(values, stamp, message.age, message.sequence, message.steps)
