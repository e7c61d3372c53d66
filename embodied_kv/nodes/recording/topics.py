"""Which topics of a robot are recorded, by its contract, and how their messages are kept.

Knows message types and quality of service. Does not know files. Messages are kept as they came;
images alone are compressed on their way, if they are not yet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module

import cv2
from rclpy.qos import QoSProfile
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import String

from embodied_kv.msg import ActionChunk, CapsuleEvent, ControlState, MissionState, TextDelta
from embodied_kv.nodes.common import images, qos
from embodied_kv.robots.channels import IMAGE, JOINT_STATE
from embodied_kv.robots.contract import Contract

COMPRESSIONS = ('jpeg', 'png', 'none')
INSTRUCTION = 'instruction'
Convert = Callable[[bytes], bytes]
IMAGES, OTHERS = 16, 256  # messages that wait with the middleware
OWN = {  # beside what the contract names
    INSTRUCTION: (String, qos.INSTRUCTION),
    'action_chunk': (ActionChunk, qos.HANDLE),
    'control/state': (ControlState, qos.STATUS),
    'language/text': (TextDelta, qos.TEXT),
    'mission/state': (MissionState, qos.STATUS),
    'capsule/events': (CapsuleEvent, qos.TEXT),
}


@dataclass(frozen=True)
class RecordedTopic:
    """topic, kind, profile: of the subscription. kept_as: the topic in the file, and its type.

    convert: from the CDR of one to that of the other; None where they are the same.
    """

    topic: str
    kind: type
    profile: QoSProfile
    kept_as: tuple[str, type]
    convert: Convert | None = None


def recorded(contract: Contract, compression: str, quality: int) -> tuple[RecordedTopic, ...]:
    """All topics. compression: of images, one of COMPRESSIONS; quality: of JPEG, 1 to 100."""
    found: dict[str, RecordedTopic] = {}

    def add(topic: str, kind: type, profile: QoSProfile) -> None:
        depth = IMAGES if profile is qos.SENSOR else OTHERS
        listening = qos.heard(profile, depth)
        convert = checked if kind is CompressedImage else None
        found.setdefault(topic, RecordedTopic(topic, kind, listening, (topic, kind), convert))

    for view in contract.views.values():
        topic = view.channel.topic
        if view.channel.type != IMAGE or compression == 'none':
            add(topic, message_type(view.channel.type), qos.SENSOR)
        else:
            found[topic] = RecordedTopic(
                topic,
                Image,
                qos.heard(qos.SENSOR, IMAGES),
                (f'{topic}/compressed', CompressedImage),
                partial(compressed, format=compression, quality=quality),
            )
    for source in contract.state:
        add(source.channel.topic, message_type(source.channel.type), qos.JOINT_STATES)
    for topic in contract.feedback:
        add(topic, message_type(JOINT_STATE), qos.JOINT_STATES)
    for source in contract.action:
        add(source.channel.topic, message_type(source.channel.type), qos.JOINT_STATES)
    for topic, (kind, profile) in OWN.items():
        add(topic, kind, profile)
    return tuple(found.values())


def message_type(name: str) -> type:
    """The class of a message, such as sensor_msgs/msg/Image."""
    package, _, kind = name.split('/')
    return getattr(import_module(f'{package}.msg'), kind)


def checked(data: bytes) -> bytes:
    """A CompressedImage as it came, as CDR. Raises ValueError where it is no whole picture."""
    images.check(deserialize_message(data, CompressedImage))
    return data


def compressed(data: bytes, format: str, quality: int) -> bytes:
    """An Image as a CompressedImage, both as CDR. Raises ValueError where it is no image."""
    image = deserialize_message(data, Image)
    pixels = cv2.cvtColor(images.rgb(image), cv2.COLOR_RGB2BGR)
    options = [cv2.IMWRITE_JPEG_QUALITY, quality] if format == 'jpeg' else []
    done, encoded = cv2.imencode('.jpg' if format == 'jpeg' else '.png', pixels, options)
    if not done:
        raise ValueError(f'an image of {pixels.shape[1]} x {pixels.shape[0]} pixels as {format}')
    message = CompressedImage(header=image.header, format=format, data=encoded.tobytes())
    return serialize_message(message)
