"""Convert an excerpt of a film to an animated WebP, which a browser plays inside a page.

python -m embodied_kv.demo.moving_picture out/demo/demo.mp4 docs/images/demo.webp --begin 1
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import cv2
from PIL import Image

from embodied_kv.demo.video import FilmError


def write(
    film: Path,
    out: Path,
    begin: float = 0.0,
    end: float = math.inf,
    rate: float = 6.0,
    width: int = 800,
    quality: int = 55,
) -> int:
    """Write a moving picture that repeats, and return its number of frames.

    Args:
        film: A file that OpenCV reads.
        out: The file to write, WebP.
        begin, end: The excerpt, s of the film.
        rate: Frames per second of the picture.
        width: Pixels; the height follows.
        quality: Of the frames, 0 to 100.

    Raises:
        FilmError: The film cannot be read, or has no frame in the excerpt.
    """
    frames = list(_frames(film, begin, end, rate, width))
    if not frames:
        raise FilmError(f'{film} must have a frame from {begin:g} to {end:g} s (got none)')
    frames[0].save(
        out,
        format='WEBP',
        save_all=True,
        append_images=frames[1:],
        duration=round(1000 / rate),  # ms
        loop=0,
        quality=quality,
        method=4,  # of 0 to 6: slower and smaller
        minimize_size=True,
    )
    return len(frames)


def _frames(
    film: Path, begin: float, end: float, rate: float, width: int
) -> Iterator[Image.Image]:
    capture = cv2.VideoCapture(str(film))
    try:
        if not capture.isOpened():
            raise FilmError(f'{film} must be a film that OpenCV reads')
        film_rate, number, due = capture.get(cv2.CAP_PROP_FPS), 0, begin
        while number / film_rate < end and capture.grab():
            if number / film_rate >= due - 0.5 / film_rate:
                _, frame = capture.retrieve()
                height = round(frame.shape[0] * width / frame.shape[1])
                frame = cv2.resize(frame, (width, height), interpolation=cv2.INTER_AREA)
                yield Image.fromarray(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB))
                due += 1 / rate
            number += 1
    finally:
        capture.release()


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('film', type=Path)
    parser.add_argument('out', type=Path)
    parser.add_argument('--begin', type=float, default=0.0, help='s of the film')
    parser.add_argument('--end', type=float, default=math.inf, help='s of the film')
    parser.add_argument('--rate', type=float, default=6.0, help='frames per second')
    parser.add_argument('--width', type=int, default=800, help='pixels')
    parser.add_argument('--quality', type=int, default=55, help='0 to 100')
    args = parser.parse_args(given)
    for name, least, most in (('rate', 0.1, 60), ('width', 16, 4096), ('quality', 0, 100)):
        value = getattr(args, name)
        if not least <= value <= most:
            parser.error(f'--{name} must be from {least} to {most} (got {value})')
    try:
        count = write(**vars(args))
    except (FilmError, OSError) as error:
        sys.exit(f'moving_picture: {error}')
    print(f'{args.out}: {count} frames, {args.out.stat().st_size / 2**20:.2f} MiB')


if __name__ == '__main__':
    main()
