"""The parameters of the recorder."""

from __future__ import annotations

from dataclasses import dataclass

from embodied_kv.nodes.common.parameters import one_of, param
from embodied_kv.nodes.recording.topics import COMPRESSIONS


@dataclass(frozen=True)
class RecorderParams:
    """What is recorded, where, and how much."""

    record: bool = param(
        False, 'Record from activation on; else once the service `record` is asked'
    )
    folder: str = param(
        '~/.ros/embodied_kv/recordings',
        "Of the recordings; a suite with a namespace has a folder of that name in it; '' for none",
    )
    disk_mib: int = param(
        8192,
        'Most that all recordings of the folder take, MiB; a change counts from the next on',
        'live',
        range=(2, 2**30),
    )
    waiting_mib: int = param(
        64, 'Most that waits for the disk, MiB; what does not fit is dropped', range=(1, 2**20)
    )
    image_compression: str = param(
        'jpeg',
        'Of images that come without: jpeg, png (which loses nothing), or none',
        check=one_of(COMPRESSIONS),
    )
    jpeg_quality: int = param(90, 'Of JPEG', range=(1, 100))


@dataclass(frozen=True)
class ToldParams:
    """What all nodes of a suite that observe are told."""

    instruction: str = param('', "In force at the start, as perception's")
