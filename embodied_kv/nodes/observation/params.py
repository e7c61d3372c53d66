"""How a node observes, and what: its parameters, and the inputs of its robot's contract."""

from __future__ import annotations

from dataclasses import dataclass

from embodied_kv.nodes.common.parameters import param
from embodied_kv.nodes.observation.description import InputDescription, JointInput, ViewInput
from embodied_kv.robots.channels import COMPRESSED, JOINT_STATE
from embodied_kv.robots.contract import Contract
from embodied_kv.robots.sources import limited


@dataclass(frozen=True)
class ObservationParams:
    """How observations are put together."""

    instruction: str = param(
        '',
        "What to do from the start on; '' for nothing. Of a message on `instruction` and a value "
        'set here the newer one is in force',
        'live',
    )
    # Of two 30 Hz cameras that run freely, an image of one lies at most 17 ms from the nearest of
    # the other, and 33 ms from that before, should the nearest be lost; 15 Hz: 33 ms. The rest is
    # jitter of their stamps.
    sync_tolerance: float = param(
        0.04,
        'Images of one observation lie at most so far apart by their stamps, s',
        range=(0.0, 10.0),
        old='tolerance',
    )
    camera_timeout: float = param(
        0.5, 'Without an image for so long, a view counts as missing, s', range=(0.01, 60.0)
    )
    max_image_age: float = param(
        1.0,
        'Images that were taken longer ago are not used, s; for a recording set use_sim_time',
        range=(0.01, 1e9),
    )
    # A gripper that says where it is ten times a second is known 100 ms late, and what it takes
    # to arrive.
    max_state_age: float = param(
        0.2,
        'Joint positions that lie further from the images by their stamps are not used, s',
        range=(0.001, 60.0),
    )


def described(contract: Contract) -> InputDescription:
    """What a robot's contract says that is observed, and where its joints are told."""
    views = [
        ViewInput(
            name,
            view.channel.topic,
            compressed=view.channel.type == COMPRESSED,
            required=view.required,
            crop=view.crop,
            rotate=view.rotate,
        )
        for name, view in contract.views.items()
    ]
    wanted: dict[tuple[str, str], dict[str, None]] = {}  # topic and type -> names
    for source in contract.state:
        channel = source.channel
        names = wanted.setdefault((channel.topic, channel.type), {})
        names |= dict.fromkeys(limited(selection) for selection in source.select)
    for joint, topic in contract.measured.items():
        wanted.setdefault((topic, JOINT_STATE), {})[joint] = None
    joints = [JointInput(topic, tuple(names), type) for (topic, type), names in wanted.items()]
    return InputDescription(tuple(views), tuple(joints))
