"""A fleet and two robots, whole: each chunk goes on from what its own robot was doing."""

import numpy as np
from fleet_suite import Fleets

from embodied_kv.config import TINY


def test_the_chunks_of_two_robots_begin_as_their_arms_move(robots, tmp_path, monkeypatch):
    fleet = Fleets(robots, tmp_path)
    node = fleet.up(engine__rtc='trained', execution_horizon='whole')
    engine, made = node.host.engine, []
    denoise = engine.denoise

    def listening(leases, deadlines, noises=None, guides=()):
        chunks = denoise(leases, deadlines, noises, guides)
        made.extend(zip([lease.handle.robot for lease in leases], guides, chunks, strict=True))
        return chunks

    monkeypatch.setattr(engine, 'denoise', listening)
    acting = [
        fleet.act(
            shadow=True,
            rtc=True,
            execution_horizon='whole',
            request_ahead=ahead,
            max_chunk_age=60.0,  # however slow this machine is
        )
        for ahead in (3, 4)
    ]

    def guided(robot):
        return [(g, c) for name, g, c in made if name == robot.namespace and g is not None]

    fleet.live(lambda: all(len(guided(robot)) >= 3 for robot in acting))
    for robot in acting:
        for guide, chunk in guided(robot):
            assert 1 <= guide.delay < TINY.chunk_size
            given = guide.actions[: guide.delay]
            np.testing.assert_allclose(chunk.values[: guide.delay], given, atol=1e-4)
        assert not {'refused', 'answer', 'chunk'} & robot.suite[0].warning_counts.keys()
