"""Helpers for tests of capsules: a suite that stores its capsules in a folder of the test."""

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
    """Start a suite without prompts, wait for its first fresh chunk, and return its nodes.

    Chunks are denoised however late they are, so that they also arrive on a busy machine.
    """
    parameters = {
        'prompt_interval_frames': 0,
        'capsule_directory': str(folder),
        'engine.time_budget': False,
    } | parameters
    robot.follows = False  # the arm stays where it was at the snapshot
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
    """Suspend decoding, so that streams stay open."""
    engine().decode_fits = lambda now: False


def speaking():
    """Resume decoding."""
    del engine().decode_fits


def said(robot, stream):
    """Return the text of a stream so far."""
    return ''.join(text.text for text in robot.texts if text.stream == stream)


def ended(robot, stream):
    """Return why a stream ended, or '' while it is live."""
    return next((t.reason for t in robot.texts if t.stream == stream and t.finished), '')
