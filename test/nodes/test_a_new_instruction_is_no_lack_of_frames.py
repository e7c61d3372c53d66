"""A new instruction to an idle robot causes no warning about missing frames.

No frame was due before, so the time limit begins with the instruction.
"""

from embodied_kv.nodes.common.lifecycle_node import OK, WARN
from embodied_kv.nodes.perception import Perception


def test_the_reason_why_there_are_no_frames_is_reported(robot, monkeypatch):
    perception = robot.up(Perception)
    robot.until(lambda: robot.handles)
    assert perception.report()[0] == OK

    def refuse(message):
        raise ValueError('the image is damaged')

    monkeypatch.setattr('embodied_kv.nodes.common.images.rgb', refuse)
    robot.until(lambda: perception.report()[0] == WARN)
    assert 'the image is damaged' in perception.report()[1]
    monkeypatch.undo()
    robot.until(lambda: perception.report()[0] == OK)


def test_a_robot_that_stood_is_not_warned_of(robot):
    perception = robot.up(Perception)
    robot.until(lambda: robot.handles)
    frames, warned = perception._frames, perception.warning_counts
    frames.set_instruction('')
    frames._last -= 60.0  # it has been idle for 60 s
    before = warned['no frame']
    frames.set_instruction('reach')
    frames._check_cameras()
    assert warned['no frame'] == before
    frames.set_instruction('push')
    frames._last -= 60.0
    frames._check_cameras()
    assert warned['no frame'] == before + 1
