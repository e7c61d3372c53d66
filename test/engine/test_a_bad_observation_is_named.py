"""An observation that no prefix can be made of is refused with whose it is, before any row."""

from dataclasses import replace

import numpy as np
import pytest

from embodied_kv.engine.prefill import BadObservation
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


@pytest.mark.parametrize('why', BAD)
def test_its_robot_and_frame_are_said_and_nothing_is_held(make_engine, observe, why):
    engine = make_engine(robots=2)
    good, bad = observe(0, robot='good'), BAD[why](observe(4, robot='bad'))
    with pytest.raises(BadObservation, match=f"frame 4 of robot 'bad'.*{why}") as caught:
        engine.prefill([good, bad])
    assert caught.value.robot == 'bad'
    stats = engine.kv.stats()
    assert (stats.rows_free, stats.prefills) == (stats.rows, 0)


def test_a_robot_twice_in_a_batch_is_refused(make_engine, observe):
    with pytest.raises(BadObservation, match="frame 2 of robot 'a'.*twice"):
        make_engine().prefill([observe(1, robot='a'), observe(2, robot='a')])


def test_no_observation_at_all_is_refused(make_engine):
    with pytest.raises(ValueError, match='no observation'):
        make_engine().prefill([])


def test_the_other_robots_of_its_batch_get_their_chunks(make_engine, observe):
    engine = make_engine(robots=3)
    frames = [observe(n, robot=f'r{n}', missing=(0, 1) if n == 1 else ()) for n in range(3)]
    first, bad, last = serve(engine, frames, deadline=1e9)
    assert isinstance(bad, BadObservation)
    assert (first.sequence, last.sequence) == (0, 2)
