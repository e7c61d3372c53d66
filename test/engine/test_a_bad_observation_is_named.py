"""An invalid observation is refused before it takes a row, with an error that names its robot."""

from dataclasses import replace

import numpy as np
import pytest

from embodied_kv.engine.prefill import BadObservationError
from embodied_kv.serving.batch import serve

BAD = {
    'has no image': lambda o: replace(o, images=(None, None)),
    'has 1 images for the 2 views front, wrist': lambda o: replace(o, images=o.images[:1]),
    'image of view wrist': lambda o: replace(o, images=(o.images[0], np.zeros((4, 4), np.uint8))),
    'image of view front': lambda o: replace(
        o, images=(o.images[0].astype(np.float32), o.images[1])
    ),
    r'state of shape \(2,\), not \(7,\)': lambda o: replace(o, state=o.state[:2]),
    'state that is not finite': lambda o: replace(o, state=np.full_like(o.state, np.inf)),
}


class Other:
    """A type that no field of an observation accepts."""


NO_STATES = {
    'list': [0.0] * 7,
    'Other': Other(),
    'NoneType': None,
    'object': np.array([None] * 7, object),
    '<U1': np.array(['a'] * 7),
    'complex128': np.full(7, 1 + 1j),
    'bool': np.ones(7, bool),
}
TOO_FAR = [np.full(7, 1e308), np.full(7, 3e38, np.float32), np.full(7, -2e6), np.full(7, 2**62)]
WRONG = {
    'instruction': (b'abc', None, 7, 'a\ud800b', Other()),
    'robot': (b'abc', None, 7, 'a\ud800b', []),
    'stamp': (None, 1.5, '1', 2**63, 10**5000, True, float('nan')),
    'sequence': (None, 1.5, '1', 2**70, 10**5000, True),
    'deadline': (None, '1', float('nan'), np.float32('nan'), 1j, True),
    'images': (None, 'ab', np.zeros((2, 28, 28, 3), np.uint8), Other()),
    'guide': ([], 'a', Other()),
}
NO_IMAGES = ([[0]], 'image', 7, Other(), np.array(None), np.full((28, 28, 3), np.nan, np.float32))


@pytest.mark.parametrize('why', BAD)
def test_its_robot_and_frame_are_said_and_nothing_is_held(make_engine, observe, why):
    engine = make_engine(max_batch_robots=2)
    good, bad = observe(0, robot='good'), BAD[why](observe(4, robot='bad'))
    with pytest.raises(BadObservationError, match=f"frame 4 of robot 'bad'.*{why}") as caught:
        engine.prefill([good, bad])
    assert caught.value.robot == 'bad'
    stats = engine.kv.stats()
    assert (stats.rows_free, stats.prefills) == (stats.rows, 0)


def refuse(engine, observation, match):
    with pytest.raises(BadObservationError, match=match):
        engine.prefill([observation])
    assert engine.kv.stats().prefills == 0


@pytest.mark.parametrize('kind', NO_STATES)
def test_a_state_of_another_type_is_refused_with_the_rule(make_engine, observe, kind):
    bad = replace(observe(1), state=NO_STATES[kind])
    refuse(make_engine(), bad, rf'state of {kind}: it must be a numpy array of real numbers \[7\]')


def test_a_finite_state_that_no_robot_has_is_refused(make_engine, observe):
    engine = make_engine()
    for state in TOO_FAR:
        refuse(engine, replace(observe(1), state=state), 'state of .*: it must be from -1e')


def test_the_farthest_state_gives_a_finite_chunk(make_engine, observe):
    engine = make_engine()
    for state in (np.full(7, 1e6), np.full(7, -(10**6)), np.zeros(7, np.float16)):
        (handle,) = engine.prefill([replace(observe(1), state=state)])
        with engine.kv.frames.acquire(handle) as lease:
            (chunk,) = engine.denoise([lease], [float('inf')])
        assert np.isfinite(chunk.values).all()


@pytest.mark.parametrize('name', WRONG)
def test_any_other_input_of_another_kind_is_refused(make_engine, observe, name):
    engine = make_engine()
    for value in WRONG[name]:
        refuse(engine, replace(observe(1), **{name: value}), f'{name}.* it must be')


def test_an_image_of_another_type_is_refused(make_engine, observe):
    engine, good = make_engine(), observe(1)
    for image in NO_IMAGES:
        bad = replace(good, images=(image, *good.images[1:]))
        refuse(engine, bad, 'image of view front .*it must be')


def test_a_state_that_its_owner_overwrites_changes_no_chunk(make_engine, observe):
    chunks = []
    for written in (False, True):
        engine, frame = make_engine(), observe(1)
        frame = replace(frame, state=frame.state.copy())
        (handle,) = engine.prefill([frame])
        if written:
            frame.state[:] = 1.0
        with engine.kv.frames.acquire(handle) as lease:
            (chunk,) = engine.denoise([lease], [float('inf')])
        chunks.append(chunk.values)
    np.testing.assert_array_equal(*chunks)


def test_a_robot_twice_in_a_batch_is_refused(make_engine, observe):
    with pytest.raises(BadObservationError, match="frame 2 of robot 'a'.*twice"):
        make_engine().prefill([observe(1, robot='a'), observe(2, robot='a')])


def test_no_observation_at_all_is_refused(make_engine):
    with pytest.raises(ValueError, match='at least one observation'):
        make_engine().prefill([])


def test_the_other_robots_of_its_batch_get_their_chunks(make_engine, observe):
    engine = make_engine(max_batch_robots=3)
    frames = [observe(n, robot=f'r{n}', missing=(0, 1) if n == 1 else ()) for n in range(3)]
    first, bad, last = serve(engine, frames, deadline=1e9)
    assert isinstance(bad, BadObservationError)
    assert (first.sequence, last.sequence) == (0, 2)
