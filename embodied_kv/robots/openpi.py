"""What openpi's websocket clients call a robot's cameras and joints.

Knows names and counts. Does not know pixels: as such a client sends them, the policy sees them,
neither cropped nor turned by the contract, whose cameras are ROS topics.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, Strict

from embodied_kv.robots.sources import Number, Part, Text

Count = Annotated[int, Strict(), Field(ge=1)]


class Openpi(Part):
    """Nested maps of a request are named by their path: `images/cam_high`."""

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
        description='whether its pictures have their channels first, where it is a client',
    )
    horizon: Count | None = Field(
        default=None, description='actions of a chunk that are sent, at most; absent: all'
    )
    metadata: dict[Text, Number | Text | tuple[Number, ...]] = Field(
        default={}, description='what a client is told when it connects, such as {reset_pose: […]}'
    )
