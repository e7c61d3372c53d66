"""Parameters of a node that observes, and the description of its inputs that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from embodied_kv.nodes.common.parameters import param
from embodied_kv.nodes.observation.description import InputDescription, JointInput, ViewInput

COMPRESSED = '/compressed'  # image_transport's name for them


@dataclass(frozen=True)
class ObservationParams:
    """Where observations come from."""

    views: tuple[str, ...] = param(
        ('front', 'wrist'), "Views of the model that have a camera; the model's others stay empty"
    )
    image_topics: tuple[str, ...] = param(
        ('camera/front/image', 'camera/wrist/image'),
        'sensor_msgs/Image of each of the views; sensor_msgs/CompressedImage where the name ends '
        'in /compressed',
    )
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

    def __post_init__(self) -> None:
        if len(self.views) != len(self.image_topics):
            raise ValueError(
                f'parameter image_topics names {len(self.image_topics)} topics for '
                f'{len(self.views)} views'
            )
        if not self.views:
            raise ValueError('parameter views names none: a frame needs at least one camera')
        if len(set(self.views)) < len(self.views):
            raise ValueError(f'parameter views names a view twice: {", ".join(self.views)}')


def described(params: ObservationParams, joint_names: Sequence[str]) -> InputDescription:
    """What the parameters describe: no view is required, all joints come on `joint_states`."""
    views = [
        ViewInput(view, topic, compressed=topic.endswith(COMPRESSED), required=False)
        for view, topic in zip(params.views, params.image_topics, strict=True)
    ]
    return InputDescription(tuple(views), (JointInput('joint_states', tuple(joint_names)),))
