"""action or language in a process without perception: it prefills for itself."""

import numpy as np

from embodied_kv.msg import ActionChunk, KvHandle
from embodied_kv.nodes.action import Action
from embodied_kv.nodes.language import Language
from embodied_kv.srv import Ask


def foreign(robot):
    """A handle of a process that is not ours."""
    return robot.stamped(KvHandle(process_id=np.arange(16, dtype=np.uint8), row=1, sequence=77))


def test_standalone_action_acts_from_images(robot, capfd):
    action = robot.up(Action, standalone=True)
    robot.until(lambda: any(chunk.source == ActionChunk.FRESH for chunk in robot.chunks))
    assert not robot.handles  # they are nobody else's business
    robot.handle.publish(foreign(robot))
    robot.until(lambda: action.warning_counts['foreign handle'])
    assert 'frame 77 lies in another process' in capfd.readouterr().err
    assert all(chunk.sequence != 77 for chunk in robot.more(robot.chunks, 3))


def test_standalone_language_speaks_from_images(robot):
    language = robot.up(Language, standalone=True, prompt_interval=1)
    robot.until(lambda: any(text.finished for text in robot.texts))
    response = robot.call(Ask, 'language/ask', question='what?')
    assert response.success, response.message
    robot.handle.publish(foreign(robot))
    robot.until(lambda: language.warning_counts['foreign handle'])
    robot.more(robot.texts)
