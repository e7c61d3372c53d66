"""What a contract's vectors are made of: channels, cameras, and the sources of numbers.

Knows what may be written of each, and checks it where it is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from pydantic import (
    AllowInfNan,
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    field_validator,
    model_validator,
)

from embodied_kv.robots.channels import (
    COMMANDED,
    COMPRESSED,
    GRIPPERS,
    IMAGE,
    OBSERVED,
    TWIST,
    check_selection,
)
from embodied_kv.robots.units import UNITS, is_velocity

Number = Annotated[float, Strict(), AllowInfNan(False)]
Positive = Annotated[float, Strict(), AllowInfNan(False), Field(gt=0)]
Pair = tuple[Number, Number]
Text = Annotated[str, Strict(), Field(min_length=1)]
if TYPE_CHECKING:
    Unit = str
else:
    Unit = Literal[UNITS]  # which a type checker does not evaluate


class Part(BaseModel):
    """A section: frozen, and no key that nobody knows."""

    model_config = ConfigDict(extra='forbid', frozen=True)


class Channel(Part):
    """A topic, relative to the robot's namespace unless it begins with a slash."""

    topic: Text = Field(description='the name of a topic')
    type: Text = Field(description='its message type, such as sensor_msgs/msg/JointState')


class View(Part):
    """A camera. The pixels are cropped first, then turned."""

    channel: Channel = Field(description='{topic: …, type: sensor_msgs/msg/Image}')
    required: bool = Field(
        True, description='whether the robot must not act without it: true or false'
    )
    crop: tuple[int, int, int, int] | None = Field(
        None, description='[left, top, width, height] in pixels'
    )
    rotate: Literal[0, 90, 180, 270] = Field(0, description='degrees, clockwise')

    @field_validator('channel')
    @classmethod
    def _is_image(cls, channel: Channel) -> Channel:
        if channel.type not in (IMAGE, COMPRESSED):
            raise ValueError(f'type {channel.type}: a camera is {IMAGE} or {COMPRESSED}')
        return channel

    @field_validator('crop')
    @classmethod
    def _is_inside(cls, crop: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if crop is not None and (min(crop[:2]) < 0 or min(crop[2:]) < 1):
            raise ValueError(f'{list(crop)}: write [left, top, width, height], in pixels')
        return crop


class Source(Part):
    """Some of a vector's numbers, all of one channel: policy = scale * number in `unit` + offset.

    select: what of the message, one entry for each number. names: the checkpoint's. index: places
    in the vector; without any, they follow the source before.
    """

    channel: Channel = Field(description='{topic: …, type: …}')
    select: tuple[Text, ...] = Field(
        min_length=1, description='what of the message: [position.JOINT, …]'
    )
    unit: Unit = Field(description=f'what the policy counts in: one of {", ".join(UNITS)}')
    names: tuple[Text, ...] | None = Field(None, description="the checkpoint's names of them")
    index: tuple[Annotated[int, Strict(), Field(ge=0)], ...] | None = Field(
        None, description='their places in the vector, from 0'
    )
    scale: Number | tuple[Number, ...] = Field(1.0, description='one number, or one each')
    offset: Number | tuple[Number, ...] = Field(0.0, description='one number, or one each')

    @model_validator(mode='after')
    def _one_each(self) -> Source:
        count = len(self.select)
        for name in ('names', 'index', 'scale', 'offset', 'clamp', 'relative', 'binary'):
            value = getattr(self, name, None)
            if isinstance(value, tuple) and len(value) != count:
                raise ValueError(f'{name} has {len(value)} entries for the {count} of select')
        if len(set(self.select)) < count:
            raise ValueError(f'select names one thing twice: {", ".join(self.select)}')
        if 0.0 in self.each('scale'):
            raise ValueError('scale is 0: nothing of the number would be left')
        if self.unit.startswith('1') and 'scale' not in self.model_fields_set:
            raise ValueError(f'scale is missing: what one {self.unit} is in SI, nobody else knows')
        return self

    def each(self, name: str) -> tuple:
        """A field's values, one for each number."""
        value = getattr(self, name)
        return value if isinstance(value, tuple) else (value,) * len(self.select)


class StateSource(Source):
    """Numbers of the state."""

    @model_validator(mode='after')
    def _can_be_selected(self) -> StateSource:
        check_selection(self.channel.type, self.select, self.unit, OBSERVED)
        return self


class ActionSource(Source):
    """Numbers of an action, and what they move.

    relative: the number is added to that of the same place in the state that the chunk answers.
    clamp: bounds [lower, upper] in the policy's unit. binary: only the bounds of clamp are
    commanded, whichever is nearer. frame: of a twist. max_effort: largest force (N) or torque (Nm)
    of a gripper's action; 0 keeps the default of its driver.
    """

    relative: bool | tuple[bool, ...] = Field(description='true, false, or one each')
    clamp: tuple[Pair, ...] | None = Field(None, description='[[lower, upper], …], one each')
    binary: bool | tuple[bool, ...] = Field(False, description='true, false, or one each')
    frame: str = Field('', description='of a twist: the frame that it is in')
    max_effort: Annotated[float, Strict(), AllowInfNan(False), Field(ge=0)] = Field(
        0.0, description="N or Nm: the largest effort of a gripper; 0: its driver's default"
    )

    @model_validator(mode='after')
    def _can_be_commanded(self) -> ActionSource:
        check_selection(self.channel.type, self.select, self.unit, COMMANDED)
        if self.channel.type in GRIPPERS and len(self.select) > 1:
            raise ValueError(
                f'select must name one joint for {self.channel.type} (got {len(self.select)})'
            )
        if self.max_effort and self.channel.type not in GRIPPERS:
            raise ValueError(
                f'max_effort must be absent for {self.channel.type} (got {self.max_effort:g}); '
                'only the actions of grippers have it'
            )
        if self.channel.type == TWIST and not self.frame:
            raise ValueError('frame is missing: name the frame that the twist is in')
        if any(self.each('relative')) and is_velocity(self.unit):
            raise ValueError(f'relative and {self.unit}: a velocity is relative to nothing')
        if any(lower >= upper for lower, upper in self.clamp or ()):
            raise ValueError('clamp: each is [lower, upper], with lower below upper')
        if any(self.each('binary')) and self.clamp is None:
            raise ValueError('binary needs clamp: the two numbers that are commanded')
        return self


AnySource = TypeVar('AnySource', bound=Source)


def placed(sources: tuple[AnySource, ...]) -> Iterator[tuple[int, tuple[AnySource, int]]]:
    """The place of every number, with its source and its number in that."""
    numbers = [(source, i) for source in sources for i in range(len(source.select))]
    for count, (source, i) in enumerate(numbers):
        yield (count if source.index is None else source.index[i]), (source, i)


def in_order(sources: tuple[AnySource, ...]) -> list[tuple[AnySource, int]]:
    """Every number's source and its number in that, by its place in the vector."""
    return [number for _, number in sorted(placed(sources), key=lambda entry: entry[0])]


def limited(selection: str) -> str:
    """The joint of a selection, or all of it where it is of no joint: as `limits` names it."""
    field, _, rest = selection.partition('.')
    return rest if field in ('position', 'velocity') else selection


def is_joint(selection: str) -> bool:
    """Whether it is of a joint, and not of a hand's twist."""
    return not selection.startswith('twist.')
