"""An animated image shows an excerpt of a film at its own frame rate and width."""

import cv2
import numpy as np
import pytest
from PIL import Image, ImageSequence

from embodied_kv.demo.moving_picture import main, write
from embodied_kv.demo.video import FilmError

RATE, SECONDS = 10, 4


@pytest.fixture
def film(tmp_path):
    """Return the path of a film of 64 x 36 pixels with another grey in each second."""
    path = tmp_path / 'film.mp4'
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*'mp4v'), RATE, (64, 36))
    for number in range(RATE * SECONDS):
        writer.write(np.full((36, 64, 3), 50 * (number // RATE + 1), np.uint8))
    writer.release()
    return path


def greys(path):
    """Return the mean of each frame, its size, and how long it is shown (ms)."""
    with Image.open(path) as picture:
        frames = [
            (np.asarray(frame.convert('RGB')).mean(), frame.size, frame.info['duration'])
            for frame in ImageSequence.Iterator(picture)
        ]
    return frames


def test_it_has_the_frames_of_the_excerpt(film, tmp_path):
    out = tmp_path / 'out.webp'
    assert write(film, out, begin=1.0, end=3.0, rate=2.0, width=32) == 4
    found = greys(out)
    assert [size for _, size, _ in found] == [(32, 18)] * len(found)
    assert sum(duration for *_, duration in found) == 2000
    np.testing.assert_allclose([found[0][0], found[-1][0]], [100, 150], atol=6)


def test_a_film_that_cannot_be_shown_is_refused(film, tmp_path):
    out = tmp_path / 'out.webp'
    with pytest.raises(FilmError, match='must be a film'):
        write(tmp_path / 'none.mp4', out)
    with pytest.raises(FilmError, match='must have a frame from 9 to'):
        write(film, out, begin=9.0)
    assert not out.exists()


def test_the_command_states_what_it_wrote_or_what_is_wrong(film, tmp_path, capsys):
    out = tmp_path / 'out.webp'
    main([str(film), str(out), '--end', '1', '--width', '32'])
    assert '6 frames' in capsys.readouterr().out and out.stat().st_size
    with pytest.raises(SystemExit):
        main([str(film), str(out), '--rate', '0'])
    assert '--rate must be from 0.1 to 60 (got 0.0)' in capsys.readouterr().err
    with pytest.raises(SystemExit, match=r'none\.mp4 must be a film'):
        main([str(tmp_path / 'none.mp4'), str(out)])
