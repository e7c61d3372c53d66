"""Sections of a contract that describe observations and actions: channels, cameras, sources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
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
    """A frozen section of a contract that refuses unknown keys."""

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
            raise ValueError(
                f'type of a camera must be {IMAGE} or {COMPRESSED} (got {channel.type})'
            )
        return channel

    @field_validator('crop')
    @classmethod
    def _is_inside(cls, crop: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if crop is not None and (min(crop[:2]) < 0 or min(crop[2:]) < 1):
            raise ValueError(f'must be [left, top, width, height] in pixels (got {list(crop)})')
        return crop

    def framed(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the part of an image [height, width, 3] that the policy sees, without a copy.

        Raises ValueError if the crop does not lie in the image.
        """
        if self.crop is not None:
            left, top, width, height = self.crop
            if top + height > pixels.shape[0] or left + width > pixels.shape[1]:
                raise ValueError(
                    f'crop must lie in an image of {pixels.shape[1]} x {pixels.shape[0]} pixels '
                    f'(got {list(self.crop)})'
                )
            pixels = pixels[top : top + height, left : left + width]
        return np.rot90(pixels, -self.rotate // 90)


class Source(Part):
    """Numbers of a vector that belong to one channel: policy = scale * number in `unit` + offset.

    select: fields of the message, one for each number. names: names in the checkpoint. index:
    places in the vector; without it, the numbers follow those of the source before.
    """

    channel: Channel = Field(description='{topic: …, type: …}')
    select: tuple[Text, ...] = Field(
        min_length=1, description='fields of the message: [position.JOINT, …]'
    )
    unit: Unit = Field(description=f'unit of the policy: one of {", ".join(UNITS)}')
    names: tuple[Text, ...] | None = Field(None, description='names in the checkpoint')
    index: tuple[Annotated[int, Strict(), Field(ge=0)], ...] | None = Field(
        None, description='places in the vector, from 0'
    )
    scale: Number | tuple[Number, ...] = Field(1.0, description='one number, or one each')
    offset: Number | tuple[Number, ...] = Field(0.0, description='one number, or one each')

    @model_validator(mode='after')
    def _one_each(self) -> Source:
        count = len(self.select)
        for name in ('names', 'index', 'scale', 'offset', 'clamp', 'relative', 'binary'):
            value = getattr(self, name, None)
            if isinstance(value, tuple) and len(value) != count:
                raise ValueError(
                    f'{name} must have one entry for each of select (got {len(value)} for {count})'
                )
        if len(set(self.select)) < count:
            raise ValueError(f'select must name each number once (got {", ".join(self.select)})')
        if 0.0 in self.each('scale'):
            raise ValueError('scale must not be 0 (got 0)')
        if self.unit.startswith('1') and 'scale' not in self.model_fields_set:
            raise ValueError(
                f'scale is missing; write the scale of a number in {self.unit} to SI units'
            )
        return self

    def each(self, name: str) -> tuple:
        """Return the values of a field, one for each number."""
        value = getattr(self, name)
        return value if isinstance(value, tuple) else (value,) * len(self.select)


class StateSource(Source):
    """Numbers of the state."""

    @model_validator(mode='after')
    def _can_be_selected(self) -> StateSource:
        check_selection(self.channel.type, self.select, self.unit, OBSERVED)
        return self


class ActionSource(Source):
    """Numbers of an action, and the joints or axes that they move.

    relative: the number is an offset from the number at the same place of the observed state.
    clamp: bounds [lower, upper] in the policy's unit. binary: the nearer bound of clamp is
    commanded. frame: frame of a twist. max_effort: largest force (N) or torque (Nm) of a gripper's
    action; 0 keeps the default of its driver.
    """

    relative: bool | tuple[bool, ...] = Field(description='true, false, or one each')
    clamp: tuple[Pair, ...] | None = Field(None, description='[[lower, upper], …], one each')
    binary: bool | tuple[bool, ...] = Field(False, description='true, false, or one each')
    frame: str = Field('', description='frame of a twist')
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
            raise ValueError('frame is missing; write the frame of the twist')
        if any(self.each('relative')) and is_velocity(self.unit):
            raise ValueError(f'relative must be false for a velocity (got {self.unit})')
        if any(lower >= upper for lower, upper in self.clamp or ()):
            raise ValueError(
                f'clamp must be pairs [lower, upper] with lower < upper (got {self.clamp})'
            )
        if any(self.each('binary')) and self.clamp is None:
            raise ValueError('clamp is missing; a binary number requires its two values')
        return self


AnySource = TypeVar('AnySource', bound=Source)


def placed(sources: tuple[AnySource, ...]) -> Iterator[tuple[int, tuple[AnySource, int]]]:
    """Yield the place of every number, with its source and its position in that source."""
    numbers = [(source, i) for source in sources for i in range(len(source.select))]
    for count, (source, i) in enumerate(numbers):
        yield (count if source.index is None else source.index[i]), (source, i)


def in_order(sources: tuple[AnySource, ...]) -> list[tuple[AnySource, int]]:
    """Return the source of every number and its position there, by its place in the vector."""
    return [number for _, number in sorted(placed(sources), key=lambda entry: entry[0])]


def limited(selection: str) -> str:
    """Return the key in `limits` of a selection: its joint, or all of it without a joint."""
    field, _, rest = selection.partition('.')
    return rest if field in ('position', 'velocity') else selection


def is_joint(selection: str) -> bool:
    """Return whether a selection belongs to a joint and not to a twist."""
    return not selection.startswith('twist.')
