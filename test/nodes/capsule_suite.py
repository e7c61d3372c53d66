"""A suite whose capsules lie in a folder of the test's own."""

from own_folder import loose_contract

from embodied_kv.msg import ActionChunk
from embodied_kv.nodes.action import Action
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.nodes.language import Language
from embodied_kv.nodes.perception import Perception
from embodied_kv.nodes.session import Session
from embodied_kv.srv import Ask

SUITE = (Perception, Action, Language, Session)


def begin(robot, folder, **parameters):
    """A suite that speaks only when asked, with its first chunk.

    It denoises however late it is, so that chunks come on a busy machine too.
    """
    parameters = {
        'prompt_interval_frames': 0,
        'capsule_directory': str(folder),
        'engine.time_budget': False,
    } | parameters
    robot.follows = False  # it is where it was when a capsule is restored
    nodes = robot.up(*SUITE, **{'contract': loose_contract()} | parameters)
    robot.until(lambda: any(chunk.source == ActionChunk.FRESH for chunk in robot.chunks))
    return nodes


def engine():
    return EngineHost._shared.engine


def ask(robot, seed=0, question='what is red?', **fields):
    response = robot.call(
        Ask, 'language/ask', question=question, temperature=1.0, seed=seed, **fields
    )
    assert response.success, response.message
    return response.stream


def silent():
    """Slow down language to nothing, so that streams stay."""
    engine().decode_fits = lambda now: False


def speaking():
    """And on again."""
    del engine().decode_fits


def said(robot, stream):
    """The text of a stream so far."""
    return ''.join(text.text for text in robot.texts if text.stream == stream)


def ended(robot, stream):
    """Why a stream ended, '' while it lives."""
    return next((t.reason for t in robot.texts if t.stream == stream and t.finished), '')
