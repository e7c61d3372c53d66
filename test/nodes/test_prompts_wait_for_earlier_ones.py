"""A prompt is continued on few frames at a time, so that its text is recent."""

import pytest
from capsule_suite import begin, engine, silent, speaking
from rclpy.parameter import Parameter


def live(text='Subtask:'):
    return [s for s in engine().kv.streams.live() if s.query.text == text]


@pytest.mark.parametrize('most', [1, 2])
def test_a_prompt_waits_while_as_many_frames_are_described(robot, tmp_path, most):
    begin(robot, tmp_path, prompt_interval_frames=0, max_streams_per_prompt=most)
    silent()
    robot.suite[2].set_parameters([Parameter('prompt_interval_frames', value=1)])
    robot.until(lambda: len(live()) == most)
    before = {stream.id for stream in live()}
    robot.more(robot.handles)
    assert {stream.id for stream in live()} == before
    speaking()
    robot.until(lambda: any(text.stream not in before for text in robot.texts))


def test_without_a_bound_each_frame_is_described(robot, tmp_path):
    begin(robot, tmp_path, prompt_interval_frames=0, max_streams_per_prompt=0)
    silent()
    robot.suite[2].set_parameters([Parameter('prompt_interval_frames', value=1)])
    robot.until(lambda: len(live()) > 2)
    speaking()
