"""A chunk takes over after its latency, and only one is computed at a time, for any period."""

from contextlib import closing

import numpy as np
import pytest

from training.evaluate.cases import LONGEST, Case, Setting
from training.evaluate.worlds import World

CASE = Case('reach', 0, 0)
DT = 0.1


def world(**setting):
    return closing(World(28, Setting(dt=DT, **setting)))


def ramp(frame, slope=0.004):
    """Return a chunk that moves every joint by `slope` rad per period from its position."""
    return frame.observation.state + slope * np.arange(LONGEST)[:, None]


@pytest.mark.parametrize(
    ('latency', 'due', 'delay'),
    [
        (0.0, [0, 1, 2, 3, 4, 5, 6], 1),  # an action due at the takeover comes too late
        (0.04, [0, 1, 2, 3, 4, 5, 6], 1),
        (0.1, [0, 1, 2, 3, 4, 5, 6], 2),
        (0.11, [0, 2, 4, 6], 2),
        (0.3, [0, 3, 6], 4),
    ],
)
def test_a_frame_is_due_when_the_chunk_before_has_taken_over(latency, due, delay):
    with world(latency=latency) as table:
        table.begin(CASE)
        seen = []
        for period in range(7):
            if table.is_due:
                frame = table.look()
                seen.append(period)
                assert (frame.number, frame.delay) == (len(seen) - 1, delay)
                table.step(ramp(frame))
            else:
                table.step(None)
        assert seen == due


def test_until_its_chunk_comes_the_arm_does_what_it_did():
    with world(latency=0.25) as table:
        table.begin(CASE)
        frame = table.look()
        table.step(ramp(frame, 0.02))
        stood = table.outcome().joints
        assert np.abs(stood - stood[0]).max() < 2e-3  # it settles under its own weight
        for _ in range(4):
            table.step(None)
        assert np.abs(table.outcome().joints[-1] - stood[-1])[0] > 0.02


def test_an_outcome_says_when_each_chunk_took_over():
    with world(latency=0.25) as table:
        table.begin(CASE)
        for _ in range(7):
            table.step(ramp(table.look()) if table.is_due else None)
        assert table.outcome().moments == pytest.approx([0.25, 0.55])
        assert len(table.outcome().seams) == 2


def test_a_leftover_is_what_the_arm_is_going_to_do():
    with world(latency=0.15) as table:
        table.begin(CASE)
        first = table.look()
        assert np.isnan(first.leftover).all()
        chunk = ramp(first)
        table.step(chunk)
        table.step(None)
        frame = table.look()  # two periods later: actions 2 to 9 remain
        np.testing.assert_allclose(frame.leftover[:8], chunk[2:], atol=1e-9)
        assert np.isnan(frame.leftover[8:]).all()


def test_a_seam_is_how_far_the_new_chunk_sends_the_arm_from_the_old_one():
    with world(latency=0.15) as table:
        table.begin(CASE)
        chunk = ramp(table.look())

        def go_on(off=0.0):
            table.step(chunk + off)
            table.step(None)
            return table.outcome().seams

        go_on()
        chunk = np.concatenate([chunk[2:], chunk[-1:], chunk[-1:]])
        np.testing.assert_allclose(go_on()[1:], [0.0], atol=1e-9)
        chunk = np.concatenate([chunk[2:], chunk[-1:], chunk[-1:]])
        np.testing.assert_allclose(go_on(np.eye(7)[2] * 0.05)[2:], [0.05], atol=1e-9)


def test_a_chunk_that_is_over_when_it_comes_is_not_followed():
    with world(latency=0.5) as table:
        table.begin(CASE)
        table.step(ramp(table.look())[:3])
        for _ in range(5):
            table.step(None)
        assert len(table.outcome().seams) == 0 and table.is_due


def test_latencies_that_vary_are_those_of_the_episode():
    setting = Setting(DT, 0.2, spread=0.5)

    def drawn():
        latencies = setting.latencies(np.random.default_rng(4))
        return [next(latencies) for _ in range(400)]

    assert drawn() == drawn()
    common = [latency for latency in drawn() if latency <= 0.3]
    assert 0.1 <= min(common) < 0.12 and 0.28 < max(common) <= 0.3
    assert 0.01 < np.mean(np.array(drawn()) > 0.3) < 0.08
    steady = Setting(DT, 0.2).latencies(np.random.default_rng(4))
    assert {next(steady) for _ in range(9)} == {0.2}
