"""The contract of a robot: a YAML file that defines what the numbers of a policy mean on it.

This module imports neither ROS nor the model; `model.checkpoints` compares a contract with a
checkpoint. The sections follow rosetta's contract (channel, select), and add what an arm needs:
units, limits and groups of outputs.

A contract is checked when it is read. An error names the file, the field and the remedy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Final, Literal

from pydantic import Discriminator, Field, Strict, Tag, field_validator, model_validator

from embodied_kv.robots.channels import GRIPPERS, JOINT_STATE
from embodied_kv.robots.sources import (
    ActionSource,
    Number,
    Pair,
    Part,
    Positive,
    Source,
    StateSource,
    Text,
    View,
    is_joint,
    limited,
    placed,
)
from embodied_kv.robots.units import LINEAR, is_velocity

STATE = 'observation.state'
ACTION: Final = 'action'

BOOL = 'std_msgs/msg/Bool'
Count = Annotated[int, Strict(), Field(ge=1)]
Scalar = Annotated[bool, Strict()] | Annotated[int, Strict()] | Annotated[str, Strict()]

Observed = Annotated[
    Annotated[View, Tag('view')] | Annotated[tuple[StateSource, ...], Tag('sources')],
    Discriminator(lambda entry: 'sources' if isinstance(entry, list | tuple) else 'view'),
]


class JointLimits(Part):
    """Limits of a joint, or of an axis of a twist. The robot_description gives absent values.

    continuous: the joint turns without end, so it has no position limits, and its driver may
    publish the angle wrapped. A joint that the URDF declares continuous needs no such entry; if it
    has position limits here, they hold in unwrapped radians.
    """

    position: Pair | None = Field(None, description='[lower, upper] in rad or m')
    velocity: Positive | None = Field(None, description='rad/s or m/s')
    acceleration: Positive = Field(description='rad/s² or m/s²: robot_description has none')
    tracking_error: Positive | None = Field(
        None,
        description='largest distance (rad or m) from the reference; absent: derived for an arm, '
        'unlimited for a gripper',
    )
    continuous: Annotated[bool, Strict()] = Field(
        False, description='whether the joint turns without end: true or false'
    )
    role: Literal['arm', 'gripper'] = Field('arm', description='arm or gripper')

    @field_validator('position')
    @classmethod
    def _is_range(cls, position: Pair | None) -> Pair | None:
        if position is not None and position[0] >= position[1]:
            raise ValueError(f'must be [lower, upper] with lower < upper (got {list(position)})')
        return position

    @model_validator(mode='after')
    def _is_endless_or_bounded(self) -> JointLimits:
        if self.continuous and self.position is not None:
            raise ValueError(
                f'position must be absent for a continuous joint (got {list(self.position)}); '
                'remove position, or write continuous: false'
            )
        return self


class Workspace(Part):
    """A box in the root frame of the robot_description that a frame must not leave."""

    frame: Text = Field(description='the link that must stay in the box, such as tool0')
    x: Pair = Field(description='[lower, upper] in m')
    y: Pair = Field(description='[lower, upper] in m')
    z: Pair = Field(description='[lower, upper] in m')


class Language(Part):
    """The language that the checkpoint was trained for; absent: no language."""

    prompts: tuple[Text, ...] = Field(
        default=(), description='prompts that the policy answers repeatedly while it acts'
    )
    questions: bool = Field(
        default=False, description='whether the policy answers questions: true or false'
    )
    success: str = Field(
        default='', description='a question whose answer is yes once a task is done'
    )
    planner: str = Field(default='', description='the planner of the memory; empty: none')
    domain: str = Field(
        default='open',
        description='the vocabulary of missions and memory: open, or that of a package',
    )

    @model_validator(mode='after')
    def _planner_has_a_domain(self) -> Language:
        if self.planner and 'domain' not in self.model_fields_set:
            raise ValueError(
                'domain must be written where there is a planner (got none); write tabletop for '
                'the bundled planner, or open to send each step of the planner to the policy'
            )
        return self


class Estop(Part):
    """A topic whose value decides whether the arm may move.

    Every value that is not listed as safe stops the arm, and so does a topic without a message
    within `timeout`. timeout null: the topic is latched and publishes changes only.
    """

    topic: Text = Field(description='the name of a topic')
    type: Annotated[str, Strict(), Field(pattern=r'^[a-zA-Z]\w*/msg/[A-Z]\w*$')] = Field(
        description='its message type, such as std_msgs/msg/Bool'
    )
    field: Annotated[str, Strict(), Field(pattern=r'^[a-z]\w*(\.[a-z]\w*)*$')] = Field(
        'data', description='the dotted path of a bool, integer or string, such as robot_mode'
    )
    safe: tuple[Scalar, ...] = Field(
        description='the value, or a list of the values, that is safe'
    )
    timeout: Positive | None = Field(
        1.0, description='seconds without a message that stop the arm; null for a latched topic'
    )

    @field_validator('safe', mode='before')
    @classmethod
    def _is_values(cls, safe: object) -> object:
        values = safe if isinstance(safe, list | tuple) else (safe,)
        kinds = {type(value) for value in values}
        if not values or len(kinds) > 1 or not kinds <= {bool, int, str}:
            raise ValueError(
                f'safe must be booleans, integers or strings, all of one kind (got {safe!r})'
            )
        return tuple(values)

    @model_validator(mode='after')
    def _is_of_its_type(self) -> Estop:
        if self.type == BOOL and (self.field != 'data' or type(self.safe[0]) is not bool):
            raise ValueError(
                f'{BOOL} has the boolean field data only (got field {self.field}, '
                f'safe {list(self.safe)}); write safe: true or safe: false'
            )
        return self

    def is_safe(self, value: object) -> bool:
        """Return whether a value of the field allows motion; True and 1 are different values."""
        return any(type(value) is type(safe) and value == safe for safe in self.safe)


class CheckpointFacts(Part):
    """Facts that the files of a checkpoint may omit. Facts that both contain must agree."""

    state_in_prompt: bool | None = Field(
        default=None,
        description="openpi's discrete_state_input, of pi0.5 alone: the others have a state token",
    )
    normalization: Mapping[Literal['state', 'action'], Literal['quantiles', 'mean_std']] | None = (
        Field(default=None, description='{state: quantiles, action: quantiles}, or mean_std')
    )
    resize: Literal['bilinear', 'pillow'] | None = Field(
        default=None, description="bilinear (LeRobot's) or pillow (openpi's)"
    )
    conversion: Literal['none', 'aloha'] | None = Field(
        default=None, description="aloha (openpi's adapt_to_pi) or none"
    )
    lerobot_before_0_5: bool | None = Field(
        default=None,
        description='whether LeRobot before 0.5.0 trained it: it padded the state first',
    )


class Openpi(Part):
    """The observation format of openpi's websocket clients.

    Keys of nested maps are paths: `images/cam_high`. The contract's crop and rotation, which
    belong to ROS cameras, are not applied to images of clients.
    """

    views: dict[Text, Text] = Field(description='{VIEW: KEY}, the key of each camera')
    optional: tuple[Text, ...] = Field(
        default=(), description='[VIEW, …], those that may be missing'
    )
    state: dict[Text, Count] = Field(
        description='{KEY: COUNT}, whose numbers, one after another, are the state'
    )
    nested: tuple[Text, ...] = Field(
        default=(),
        description='[images, …], maps of keys before a slash, where this robot is a client',
    )
    channels_first: bool = Field(
        default=False,
        description='whether its images have their channels first, where it is a client',
    )
    horizon: Count | None = Field(
        default=None, description='largest number of actions of a chunk that are sent; absent: all'
    )
    metadata: dict[Text, Number | Text | tuple[Number, ...]] = Field(
        default={}, description='values sent when a client connects, such as {reset_pose: […]}'
    )


class Contract(Part):
    """A robot. `views`, `state` and `action` are its observations and actions, in order."""

    robot_type: Text = Field(description='the name of the robot')
    fps: Positive = Field(description='actions per second')
    chunk_size: Count | None = Field(
        None, description="actions of a chunk; absent: the checkpoint's"
    )
    execution_horizon: Count | None = Field(
        None, description='actions of a chunk that are executed; absent: all'
    )
    observations: dict[str, Observed] = Field(
        description=f'cameras by name, and {STATE}: a list of sources'
    )
    actions: dict[Literal['action'], tuple[ActionSource, ...]] = Field(
        description='action: a list of sources'
    )
    feedback: dict[str, tuple[Text, ...]] = Field(
        {}, description='TOPIC: [JOINT, …], joints that are moved and are not part of the state'
    )
    limits: dict[str, JointLimits] = Field(
        description='JOINT: {position: [lower, upper], velocity: …, acceleration: …}'
    )
    max_relative_target: Positive | dict[Text, Positive] | None = Field(
        None,
        description="largest distance (rad or m) of a chunk's first action from the measured "
        'position: one number, or {JOINT: number}; absent: derived',
    )
    estop: tuple[Estop, ...] = Field(
        (), description='[{topic: …, type: …, field: …, safe: …, timeout: …}, …]'
    )
    workspace: Workspace | None = None
    language: Language = Language()
    checkpoint: CheckpointFacts = CheckpointFacts()
    openpi: Openpi | None = None

    @property
    def dt(self) -> float:
        """Return the time (s) between two actions."""
        return 1 / self.fps

    @cached_property
    def views(self) -> dict[str, View]:
        """Return the cameras by the names of the checkpoint, in order."""
        return {name: v for name, v in self.observations.items() if isinstance(v, View)}

    @property
    def state(self) -> tuple[StateSource, ...]:
        """Return the sources of the state."""
        sources = self.observations[STATE]
        assert isinstance(sources, tuple)  # `_contradictions` refuses a camera
        return sources

    @property
    def action(self) -> tuple[ActionSource, ...]:
        """Return the destinations of an action."""
        return self.actions[ACTION]

    @property
    def clients(self) -> Openpi:
        """Return the observation format of websocket clients; default: the contract's names."""
        count = sum(len(source.select) for source in self.state)
        return self.openpi or Openpi(
            views={name: name for name in self.views}, state={STATE: count}
        )

    @property
    def observed_topics(self) -> set[str]:
        """Return the topics of the cameras, of the state and of the feedback."""
        channels = [view.channel for view in self.views.values()]
        channels += [source.channel for source in self.state]
        return {channel.topic for channel in channels} | self.feedback.keys()

    @property
    def measured(self) -> dict[str, str]:
        """Return, for each joint, the topic of joint states with its position."""
        of_state = {
            limited(select): source.channel.topic
            for source in self.state
            for select in source.select
            if source.channel.type == JOINT_STATE and select.startswith('position.')
        }
        return of_state | {
            joint: topic for topic, joints in self.feedback.items() for joint in joints
        }

    @field_validator('max_relative_target', mode='before')
    @classmethod
    def _is_distance(cls, given: object) -> object:
        numbers = list(given.values()) if isinstance(given, dict) else [given]
        valid = [
            isinstance(n, int | float) and type(n) is not bool and 0 < n < math.inf
            for n in numbers
        ]
        if given is not None and not (valid and all(valid)):
            raise ValueError(
                'must be one number, or one number for each named joint, finite and > 0 '
                f'(got {given!r})'
            )
        return given

    @model_validator(mode='after')
    def _agrees(self) -> Contract:
        for problem in self._contradictions():
            raise ValueError(problem)
        return self

    def _contradictions(self) -> Iterator[str]:
        if not isinstance(self.observations.get(STATE), tuple) or not self.state:
            yield f'observations.{STATE} is missing; write a list of sources'
        if not self.views:
            yield 'observations must have a camera (got none)'
        if odd := [n for n, v in self.observations.items() if n != STATE and isinstance(v, tuple)]:
            yield f'observations.{odd[0]} must be a camera; only {STATE} is a list of sources'
        if ACTION not in self.actions or not self.action:
            yield f'actions.{ACTION} is missing; write a list of sources'
        yield from _misplaced(f'observations.{STATE}', self.state)
        yield from _misplaced(f'actions.{ACTION}', self.action)
        yield from self._unlimited()
        yield from self._misdeclared()
        yield from self._mixed()
        yield from self._unmeasured()
        yield from self._unanchored()
        yield from self._unlike_clients()
        size, horizon = self.chunk_size, self.execution_horizon
        if size and horizon and size < horizon:
            yield f'execution_horizon must be <= chunk_size {size} (got {horizon})'

    def _unlimited(self) -> Iterator[str]:
        moved = [name for source in self.action for name in source.select]
        if twice := sorted({name for name in moved if moved.count(name) > 1}):
            yield f'actions.{ACTION} must command {", ".join(twice)} once (got twice)'
        axes = [limited(name) for name in moved]
        if missing := [axis for axis in axes if axis not in self.limits]:
            yield f'limits of {", ".join(missing)} are missing; write limits for each moved axis'
        if unknown := [axis for axis in self.limits if axis not in axes]:
            yield f'limits must name moved axes only (got {", ".join(unknown)}); remove them'

    def _misdeclared(self) -> Iterator[str]:
        """Yield impossible declarations of joints and stop topics."""
        positions = []
        for source in self.action:
            for select in source.select:
                axis, joint = limited(select), is_joint(select)
                declared = self.limits.get(axis)
                if declared and not joint and (declared.continuous or declared.role != 'arm'):
                    yield (
                        f'limits.{axis} must not have continuous or role: it is an axis of a '
                        'twist, and only joints have them'
                    )
                if declared and declared.continuous and source.unit.partition('/')[0] in LINEAR:
                    yield (
                        f'limits.{axis}.continuous must be false for a joint in {source.unit} '
                        '(got true); only a rotary joint is continuous'
                    )
                if joint and not is_velocity(source.unit):
                    positions.append(axis)
        named = self.max_relative_target if isinstance(self.max_relative_target, dict) else {}
        if unknown := [joint for joint in named if joint not in positions]:
            yield (
                f'max_relative_target must name joints that are commanded by position (got '
                f'{", ".join(unknown)}); there are {", ".join(positions) or "none"}'
            )
        kinds: dict[str, str] = {}
        for entry in self.estop:
            if kinds.setdefault(entry.topic, entry.type) != entry.type:
                yield (
                    f'estop must give {entry.topic} one type (got {kinds[entry.topic]} and '
                    f'{entry.type})'
                )

    def _mixed(self) -> Iterator[str]:
        kinds: dict[str, tuple] = {}
        for source in self.action:
            field = source.select[0].partition('.')[0]
            kind = source.channel.type, field, source.frame
            if kinds.setdefault(source.channel.topic, kind) != kind:
                yield (
                    f'{source.channel.topic} must have one message type, frame and kind of '
                    'numbers (got two)'
                )
        grippers = [s.channel.topic for s in self.action if s.channel.type in GRIPPERS]
        if twice := sorted({topic for topic in grippers if grippers.count(topic) > 1}):
            yield f'actions.{ACTION}: {twice[0]} must move one joint (got two sources)'

    def _unmeasured(self) -> Iterator[str]:
        topics: dict[str, str] = {}
        for source in self.state:
            for select in source.select:
                if topics.setdefault(select, source.channel.topic) != source.channel.topic:
                    yield (
                        f'{select} must come on one topic (got {topics[select]} and '
                        f'{source.channel.topic}); give each joint of the robot its own name'
                    )
        for joint in (limited(s) for a in self.action for s in a.select if is_joint(s)):
            if joint not in self.measured:
                yield (
                    f'feedback of {joint} is missing; write the topic of joint states with its '
                    f'position, feedback: {{TOPIC: [{joint}]}}'
                )

    def _unanchored(self) -> Iterator[str]:
        """Yield relative actions without a state of the same place, name and unit."""
        state = dict(placed(self.state))
        for place, (source, i) in placed(self.action):
            if not source.each('relative')[i]:
                continue
            name = source.names[i] if source.names else source.select[i]
            if place not in state:
                yield (
                    f'actions.{ACTION}: relative of {name} must be false without a state at index '
                    f'{place} (got true)'
                )
                continue
            other, j = state[place]
            theirs = other.names[j] if other.names else other.select[j]
            if (name, source.unit) != (theirs, other.unit):
                yield (
                    f'actions.{ACTION}: {name} ({source.unit}) at index {place} must be relative '
                    f'to the same state (got {theirs} ({other.unit}))'
                )

    def _unlike_clients(self) -> Iterator[str]:
        """Yield differences between the format of websocket clients and the contract."""
        sent = self.clients
        if sent.views.keys() != self.views.keys():
            yield (f'openpi.views must name {", ".join(self.views)} (got {", ".join(sent.views)})')
        keys = [*sent.views.values(), *sent.state, 'prompt']
        if twice := sorted({key for key in keys if keys.count(key) > 1}):
            yield f'openpi must name the key {twice[0]} once (got twice)'
        if unknown := [view for view in sent.optional if view not in self.views]:
            yield (
                f'openpi.optional must name views of {", ".join(self.views)} (got {unknown[0]})'
            )
        heads = {key.partition('/')[0] for key in keys if '/' in key}
        if unknown := [name for name in sent.nested if name not in heads]:
            yield (
                f'openpi.nested must name maps of keys (got {unknown[0]}, but no key begins with '
                f'{unknown[0]}/)'
            )
        numbers = sum(len(source.select) for source in self.state)
        if (count := sum(sent.state.values())) != numbers:
            yield (
                f'openpi.state must have the {numbers} numbers of observations.{STATE} (got '
                f'{count})'
            )
        if sent.horizon and self.chunk_size and sent.horizon > self.chunk_size:
            yield (f'openpi.horizon must be <= chunk_size {self.chunk_size} (got {sent.horizon})')


def _misplaced(where: str, sources: tuple[Source, ...]) -> Iterator[str]:
    """Yield places of a vector that are missing or taken twice."""
    given = [source.index is not None for source in sources]
    if any(given) and not all(given):
        yield f'{where}: index must be given for all sources or none (got some)'
    elif all(given):
        places = [place for place, _ in placed(sources)]
        if twice := sorted({place for place in places if places.count(place) > 1}):
            both = [s.select[i] for place, (s, i) in placed(sources) if place == twice[0]]
            yield f'{where}: index {twice[0]} must have one number (got {", ".join(both)})'
        elif gaps := sorted(set(range(max(places))) - set(places)):
            yield f'{where}: index {gaps[0]} must have a number (got none)'
    named = [source.names is not None for source in sources]
    if any(named) and not all(named):
        yield f'{where}: names must be given for all sources or none (got some)'
    names = [name for source in sources for name in source.names or ()]
    if double := sorted({name for name in names if names.count(name) > 1}):
        yield f'{where}: names must have {double[0]} once (got twice)'
