"""The topics of a contract that are recorded, and the conversion of their messages.

Messages are stored as received; raw images are compressed first. The schema of a topic is the text
of its message definition, so readers of MCAP need no ROS.

Source: https://mcap.dev/spec/registry, schema encoding `ros2msg`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import cv2
from ament_index_python.packages import get_package_share_directory
from rclpy.qos import QoSProfile
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import String

from embodied_kv.msg import ActionChunk, CapsuleEvent, ControlState, MissionState, TextDelta
from embodied_kv.nodes.common import images, qos
from embodied_kv.nodes.common.publishers import type_name, type_named
from embodied_kv.robots.channels import GOALS, JOINT_STATE
from embodied_kv.robots.contract import Contract

COMPRESSIONS = ('jpeg', 'png', 'none')
INSTRUCTION = 'instruction'
Convert = Callable[[bytes], bytes]
IMAGES, OTHERS = 16, 256  # queue depths of the subscriptions
OWN = {  # in addition to the topics of the contract
    INSTRUCTION: (String, qos.INSTRUCTION),
    'action_chunk': (ActionChunk, qos.HANDLE),
    'control/state': (ControlState, qos.STATUS),
    'language/text': (TextDelta, qos.TEXT),
    'mission/state': (MissionState, qos.STATUS),
    'capsule/events': (CapsuleEvent, qos.TEXT),
}
SEPARATOR = '=' * 80  # between the definitions of a schema
FIELD = re.compile(r'^\s*(?P<type>[A-Za-z][\w/]*)(<=\d+)?(\[[^\]]*\])?\s+[A-Za-z]\w*')
PRIMITIVES = {
    *('bool', 'byte', 'char', 'float32', 'float64', 'string', 'wstring'),
    *(f'{sign}int{bits}' for sign in ('', 'u') for bits in (8, 16, 32, 64)),
}


@dataclass(frozen=True)
class RecordedTopic:
    """A subscription of the recorder.

    kept_as: the topic in the file, and its type. convert: checks or converts a serialized message
    (CDR) before it is stored; None: it is stored as received.
    """

    topic: str
    kind: type
    profile: QoSProfile
    kept_as: tuple[str, type]
    convert: Convert | None = None


def recorded(contract: Contract, compression: str, quality: int) -> tuple[RecordedTopic, ...]:
    """Return all topics. compression: of images, one of COMPRESSIONS; quality: of JPEG, 1 to 100.

    Actions of controllers are not recorded; `action_chunk` contains their commands.
    """
    found: dict[str, RecordedTopic] = {}

    def add(topic: str, type_: str | type, profile: QoSProfile) -> None:
        kind = type_named(type_) if isinstance(type_, str) else type_
        listening = qos.heard(profile, IMAGES if profile is qos.SENSOR else OTHERS)
        kept_as, convert = (topic, kind), checked if kind is CompressedImage else None
        if kind is Image and compression != 'none':
            kept_as = f'{topic}/compressed', CompressedImage
            convert = partial(compressed, format=compression, quality=quality)
        found.setdefault(topic, RecordedTopic(topic, kind, listening, kept_as, convert))

    for view in contract.views.values():
        add(view.channel.topic, view.channel.type, qos.SENSOR)
    channels = [(source.channel.topic, source.channel.type) for source in contract.state]
    channels += [(topic, JOINT_STATE) for topic in contract.feedback]
    channels += [(source.channel.topic, source.channel.type) for source in contract.action]
    for topic, type_ in channels:
        if type_ not in GOALS:
            add(topic, type_, qos.JOINT_STATES)
    for topic, (kind, profile) in OWN.items():
        add(topic, kind, profile)
    return tuple(found.values())


def checked(data: bytes) -> bytes:
    """Return a CompressedImage as received (CDR). Raises ValueError if it is incomplete."""
    images.check(deserialize_message(data, CompressedImage))
    return data


def compressed(data: bytes, format: str, quality: int) -> bytes:
    """Return an Image as a CompressedImage, both as CDR. Raises ValueError if it is invalid."""
    image = deserialize_message(data, Image)
    pixels = cv2.cvtColor(images.rgb(image), cv2.COLOR_RGB2BGR)
    options = [cv2.IMWRITE_JPEG_QUALITY, quality] if format == 'jpeg' else []
    done, encoded = cv2.imencode('.jpg' if format == 'jpeg' else '.png', pixels, options)
    if not done:
        size = f'{pixels.shape[1]} x {pixels.shape[0]}'
        raise ValueError(f'an image of {size} pixels cannot be encoded as {format}')
    message = CompressedImage(header=image.header, format=format, data=encoded.tobytes())
    return serialize_message(message)


def definition(kind: type) -> str:
    """Return the definition of a message class and of all that it contains.

    Raises FileNotFoundError if a package has no .msg files.
    """
    package, _, name = type_name(kind).split('/')
    waiting, seen = [(package, name)], set()
    parts: list[str] = []
    while waiting:
        part = waiting.pop(0)
        if part in seen:
            continue
        seen.add(part)
        share = Path(get_package_share_directory(part[0]))
        text = (share / 'msg' / f'{part[1]}.msg').read_text(encoding='utf-8')
        parts.append(f'{SEPARATOR}\nMSG: {"/".join(part)}\n{text}' if parts else text)
        fields = (FIELD.match(line) for line in text.splitlines())
        types = [match['type'] for match in fields if match and match['type'] not in PRIMITIVES]
        named = [(type_ if '/' in type_ else f'{part[0]}/{type_}').split('/') for type_ in types]
        waiting += [(names[0], names[-1]) for names in named]
    return '\n'.join(parts)
