"""A worker resizes the image of a client before it waits for the engine's thread.

The result equals that of the engine bit for bit.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from server_cases import PATIENCE, libero, picture, running_server

from embodied_kv.model.processing import images
from embodied_kv.serving.batch import serve
from embodied_kv.serving.websocket.calls import Call, observation
from embodied_kv.serving.websocket.observation_parser import ObservationParser

WAYS = images.BILINEAR, images.BILINEAR_BEFORE_0_5, images.PILLOW, images.OWN_RESIZE


def large(n=0):
    random = np.random.default_rng(n)
    return libero(n) | {'observation/image': picture(random, 700, 900, 3)}


@pytest.mark.parametrize('way', WAYS, ids=lambda way: way.name + f' {way.black}')
def test_padded_image_is_unchanged(way):
    for height, width in ((57, 31), (28, 28), (5, 90)):
        once = way.pad(picture(np.random.default_rng(0), height, width, 3), 28)
        np.testing.assert_array_equal(way.pad(once, 28), once)
        assert once.dtype == way.dtype and way.is_padded(once, 28)


def test_image_of_another_kind_is_refused():
    for dtype, size in ((np.float64, 28), (np.float32, 29)):
        with pytest.raises(ValueError, match='expected uint8'):
            images.BILINEAR.pad(np.zeros((size, size, 3), dtype), 28)


@pytest.mark.parametrize('way', WAYS, ids=lambda way: way.name + f' {way.black}')
def test_the_engine_gets_small_pictures_and_makes_of_them_what_it_makes_of_large_ones(
    way, monkeypatch
):
    with running_server(resize=way) as opened, opened.client() as client:
        seen, infer = [], opened.sessions.infer

        def looked_at(session, frame):
            seen.append(frame)
            return infer(session, frame)

        monkeypatch.setattr(opened.sessions, 'infer', looked_at)
        actions = client.infer(large() | {'session_id': 'me'})['actions']
        size = opened.engine.policy.config.vision.image_size
        assert {image.shape for image in seen[0].images} == {(size, size, 3)}

        read = ObservationParser(opened.robot.contract).read(large())
        assert read.images.keys() and max(i.shape[0] for i in read.images.values()) == 700
        frame = observation(opened.engine, read, Call(), 'me', 0, 0.0, '')
        work = opened.device.call(lambda: serve(opened.engine, [replace(frame)], math.inf))
        (chunk,) = work.result(PATIENCE)
        np.testing.assert_array_equal(actions, chunk.values[: len(actions)])
