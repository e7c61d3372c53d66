"""Frames of a video by their time: what a data set keeps of a camera as MP4.

Knows OpenCV's reader, and so the codecs that it was built with.
"""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray


def read_frames(path: Path, start: float, count: int, fps: float) -> list[NDArray[np.uint8]]:
    """`count` frames from `start` s on: each [height, width, 3] RGB.

    Raises ValueError where the file, or one of the frames, cannot be decoded.
    """
    video = cv2.VideoCapture(str(path))
    try:
        if not video.isOpened():
            raise ValueError(f'{path} cannot be decoded: write it as H.264, or as pictures')
        if abs(video.get(cv2.CAP_PROP_FPS) - fps) > 0.01 * fps:
            raise ValueError(f'{path} has {video.get(cv2.CAP_PROP_FPS):g} fps, not {fps:g}')
        frames = []
        for _ in range(round(start * fps)):
            video.grab()  # sought by time, a codec may give another frame
        for i in range(count):
            there, pixels = video.read()
            if not there:
                raise ValueError(f'{path} ends before frame {i} of {count}')
            frames.append(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB))
        return frames
    finally:
        video.release()
