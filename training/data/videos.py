"""Read frames of a video file by their timestamps, with PyAV.

The cost depends on the number of frames that are read and on the distance to the keyframe before
them, not on their position in the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.container import InputContainer
from numpy.typing import NDArray

from embodied_kv.text import reason

Convert = Callable[[NDArray[np.uint8]], NDArray[np.uint8]]  # of an image [height, width, channels]
FORMATS = {1: 'gray', 3: 'rgb24'}  # of PyAV, by the number of channels
BACK = (0.0, 2.0, float('inf'))  # s: seek this much earlier if the keyframe is too late
ROUNDING = 1e-4  # s: timestamps of videos and of tables are rounded
REMEDY = (
    're-encode the videos, for example with: lerobot-edit-dataset --operation.type '
    'reencode_videos --operation.rgb_encoder.vcodec h264'
)


def read_frames(
    path: Path,
    times: Sequence[float],
    fps: float,
    channels: int = 3,
    codec: str = 'unknown',
    convert: Convert = lambda image: image,
) -> list[NDArray[np.uint8]]:
    """Return the frame nearest to each time, [height, width, channels].

    Args:
        path: Video file.
        times: Ascending times (s) in the file.
        fps: Frame rate (Hz) of the data set. A frame must lie within half of its period.
        channels: 3 for RGB, 1 for grey.
        codec: Name of the codec by the data set, named in the error if PyAV does not know it.
        convert: Applied to each frame before the next one is decoded.

    Raises:
        ValueError: The file cannot be decoded, or no frame lies near enough to a time.
    """
    if not path.is_file():
        raise ValueError(f'{path} must be a video file (got no such file); download it again')
    try:
        with av.open(str(path)) as video:
            known = [s.codec_context for s in video.streams.video if s.codec_context is not None]
            codec = known[0].codec.canonical_name if known else codec
            return [convert(frame) for frame in _nearest(video, path, times, fps, channels)]
    except av.error.DecoderNotFoundError as error:
        raise ValueError(
            f'codec of {path} must be one that PyAV decodes (got {codec}); {REMEDY}'
        ) from error
    except av.FFmpegError as error:
        raise ValueError(
            f'{path} must be a video that PyAV decodes (got {reason(error)} for codec {codec}); '
            f'download it again, or {REMEDY}'
        ) from error


def _nearest(
    video: InputContainer, path: Path, times: Sequence[float], fps: float, channels: int
) -> Iterator[NDArray[np.uint8]]:
    """Yield the frame nearest to each time."""
    if not video.streams.video:
        raise ValueError(f'{path} must contain a video stream (got none); download it again')
    limit = 0.5 / fps - ROUNDING
    frames = _from(video, times[0] - limit)
    past, coming = None, next(frames, None)
    for i, wanted in enumerate(times):
        while coming is not None and coming[0] <= wanted:
            past, coming = coming, next(frames, None)
        near = min(
            (f for f in (past, coming) if f), key=lambda f: abs(f[0] - wanted), default=None
        )
        if near is None:
            raise ValueError(f'{path} must contain frames with timestamps (got none)')
        if abs(near[0] - wanted) >= limit:
            raise ValueError(
                f'frame {i} must lie within {0.5 / fps:.4f} s of its timestamp, {wanted:.4f} s '
                f'(got an offset of {near[0] - wanted:+.4f} s in {path}); write the data set '
                'again, or remove the episode'
            )
        pixels = near[1].to_ndarray(format=FORMATS[channels])
        yield pixels.reshape(*pixels.shape[:2], channels)


def _from(video: InputContainer, start: float) -> Iterator[tuple[float, Any]]:
    """Yield times (s) and frames, of which the first is not later than `start` if possible."""
    stream = video.streams.video[0]
    if stream.codec_context is not None:
        stream.thread_type = 'AUTO'
    for back in BACK:
        at = max(0.0, start - back)
        if stream.time_base:
            video.seek(int(at / stream.time_base), stream=stream)
        frames = (
            (float(frame.pts * frame.time_base), frame)
            for frame in video.decode(stream)
            if frame.pts is not None
        )
        first = next(frames, None)
        if first is not None and (first[0] <= start or not at):
            yield first
            yield from frames
            return
