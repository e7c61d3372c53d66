"""Each stage that measures times, misses or actions reports the target that its figures miss."""

import pytest

from benchmarks.gpu import targets
from benchmarks.gpu.stages import STAGES


def frame(ms, way='captured'):
    return dict(way=way, phase='frame', ms=ms, of_floor=0.5)


def decode(of_floor):
    return dict(way='captured', phase='decode step x4', ms=3.0, of_floor=of_floor)


@pytest.mark.parametrize(
    'rows, missed',
    [
        ([frame(19.0), decode(0.7)], ''),
        ([frame(21.0), decode(0.7)], 'a frame takes 21 ms (target 20)'),
        ([frame(19.0), decode(0.5)], 'decode step x4 takes 2 times its floor (target 1.5)'),
        ([frame(30.0), frame(13.0, 'compiled')], ''),
        ([frame(19.0), frame(15.0, 'compiled')], 'a frame takes 15 ms (target 14)'),
    ],
)
def test_frames_and_decode_steps_have_targets(rows, missed):
    assert targets.frames(dict(rows=rows)) == missed


@pytest.mark.parametrize(
    'judge, row, missed',
    [
        (targets.in_time, dict(misses=0, deadlines=9), ''),
        (targets.in_time, dict(misses=2, deadlines=9), '2 of 9 chunks came too late'),
        (targets.in_time_compiled, dict(misses=0, deadlines=9, compiled=3), ''),
        (targets.in_time_compiled, dict(misses=1, deadlines=9, compiled=3), '1 of 9 chunks'),
        (
            targets.in_time_compiled,
            dict(misses=0, deadlines=9, compiled=0),
            'nothing was compiled',
        ),
        (targets.equal_actions, dict(actions_equal=True), ''),
        (targets.equal_actions, dict(actions_equal=False), 'differ at 1 of 1 points'),
    ],
)
def test_misses_and_actions_have_targets(judge, row, missed):
    said = judge(dict(rows=[row]))
    assert missed in said and bool(said) == bool(missed)


def test_the_stages_that_have_a_target_of_figures_are_judged():
    judged = {stage.name for stage in STAGES if stage.judge is not None}
    assert judged == {
        'pi05',
        'pi05_compiled',
        'all_compiled',
        'deadline',
        'deadline_compiled',
        'frame',
    }
