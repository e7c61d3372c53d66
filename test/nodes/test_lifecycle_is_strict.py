"""configure allocates, activate starts, deactivate stops and cleanup frees, also repeatedly."""

import time

import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rclpy.qos import DurabilityPolicy, QoSProfile

from embodied_kv.msg import ActionChunk
from embodied_kv.nodes.action import Action
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.nodes.language import Language
from embodied_kv.nodes.perception import Perception
from embodied_kv.nodes.session import Session

SUITE = (Perception, Action, Language)


def settle(robot):
    """Wait until pending messages have arrived, and clear them."""
    robot.spin(0.3)
    for heard in (robot.handles, robot.chunks, robot.trajectories, robot.texts):
        heard.clear()


def silent(robot):
    return not (robot.handles or robot.chunks or robot.trajectories or robot.texts)


def test_before_activate_nothing_is_published(robot):
    nodes = [robot.bring(kind) for kind in SUITE]
    for node in nodes:
        assert node.trigger_configure().name == 'SUCCESS'
    for _ in range(5):
        robot.show()
        robot.spin(0.1)
    assert silent(robot)


def test_after_deactivate_nothing_is_published_and_activate_goes_on(robot):
    nodes = robot.up(*SUITE, prompt_interval_frames=1)
    heard = []
    robot.node.create_subscription(DiagnosticArray, '/diagnostics', heard.append, 10)
    robot.until(lambda: robot.chunks and robot.texts and heard)
    for node in nodes:
        assert node.trigger_deactivate().name == 'SUCCESS'
    settle(robot)
    heard.clear()
    for _ in range(12):
        robot.show()
        robot.spin(0.1)
    assert silent(robot) and not heard
    for node in nodes:
        assert node.trigger_activate().name == 'SUCCESS'
    robot.until(lambda: robot.chunks and robot.texts)


def test_deactivate_ends_what_was_running(robot):
    _, action, language = robot.up(
        *SUITE, prompt_interval_frames=1, max_tokens=32, publish_rate=50.0
    )
    robot.until(lambda: robot.chunks and any(not text.finished for text in robot.texts))
    robot.chunks.clear()
    language.trigger_deactivate()
    action.trigger_deactivate()
    robot.spin(0.2)
    assert robot.chunks[-1].source == ActionChunk.STOP
    assert not any(robot.trajectories[-1].points[-1].velocities)
    told = {text.stream for text in robot.texts}
    assert told == {text.stream for text in robot.texts if text.finished}
    stats = EngineHost._shared.engine.kv.stats()
    assert (stats.streams, stats.leases) == (0, 0)


def test_cleanup_frees_topics_and_services_and_configure_makes_them_anew(robot):
    perception = robot.up(Perception)
    for _ in range(3):
        robot.more(robot.handles)
        for step in ('deactivate', 'cleanup'):
            assert getattr(perception, f'trigger_{step}')().name == 'SUCCESS'
        # The stand-in also publishes on this topic.
        robot.until(lambda: perception.count_publishers('kv_handle') == 1, show=False)
        for step in ('configure', 'activate'):
            assert getattr(perception, f'trigger_{step}')().name == 'SUCCESS'


@pytest.mark.parametrize('kind', [*SUITE, Session])
def test_every_node_is_configured_again_after_it_was_active(robot, kind):
    node = robot.up(kind)
    for step in ('deactivate', 'cleanup', 'configure', 'activate'):
        assert getattr(node, f'trigger_{step}')().name == 'SUCCESS'


def test_a_node_ends_from_every_state(robot):
    for steps in (
        '',
        'configure',
        'configure activate',
        'configure activate deactivate',
        'shutdown',
    ):
        node = robot.bring(Perception)
        for step in steps.split():
            getattr(node, f'trigger_{step}')()
        robot.suite.remove(node)
        node.end()


def test_a_fault_in_setup_is_logged_with_its_traceback(robot, capfd, monkeypatch):
    node = robot.bring(Perception)
    monkeypatch.setattr(node, 'setup', lambda: 1 / 0)
    assert node.trigger_configure().name == 'FAILURE'
    said = capfd.readouterr().err
    assert 'configure failed' in said and 'ZeroDivisionError' in said and 'Traceback' in said
    monkeypatch.undo()
    assert node.trigger_configure().name == 'SUCCESS'


def test_a_fault_in_a_callback_is_logged_and_the_node_lives(robot, capfd, monkeypatch):
    perception = robot.up(Perception)
    monkeypatch.setattr(perception._frames._sync, 'image', lambda *_: 1 / 0)
    robot.show()
    robot.spin(0.3)
    assert 'ZeroDivisionError' in capfd.readouterr().err
    monkeypatch.undo()
    robot.more(robot.handles)


def test_a_failed_prefill_is_reported_and_the_next_frame_goes_on(robot, capfd, monkeypatch):
    perception = robot.up(Perception)
    engine = EngineHost._shared.engine
    with monkeypatch.context() as patch:
        patch.setattr(engine._prefiller, 'run', lambda *_: 1 / 0)
        robot.until(lambda: perception.warning_counts['prefill'])
    assert 'prefill failed: ZeroDivisionError' in capfd.readouterr().err
    robot.more(robot.handles)
    engine.kv.check_integrity()


def test_a_failed_denoising_is_reported_and_the_next_chunk_comes(robot, capfd, monkeypatch):
    _, action = robot.up(Perception, Action)
    engine = EngineHost._shared.engine
    with monkeypatch.context() as patch:
        patch.setattr(engine, '_denoiser', None)
        said = []  # another thread logs the line after the count
        robot.until(
            lambda: (
                said.append(capfd.readouterr().err)
                or 'denoising failed: AttributeError' in ''.join(said)
            )
        )
    assert action.warning_counts['denoise']
    robot.until(lambda: any(chunk.source == ActionChunk.FRESH for chunk in robot.chunks))
    assert engine.kv.stats().leases <= 1


def test_transitions_are_served_again_and_again(robot):
    robot.bring(Perception)
    up = Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE
    down = Transition.TRANSITION_DEACTIVATE, Transition.TRANSITION_CLEANUP
    for number in (*up, *down, *up, *down, *up):
        wish = Transition(id=number)
        response = robot.call(ChangeState, 'perception/change_state', transition=wish)
        assert response.success
        if number == up[-1]:
            robot.more(robot.handles)


def test_an_impossible_transition_is_refused_and_the_process_lives(robot):
    robot.up(Perception)
    configure = Transition(id=Transition.TRANSITION_CONFIGURE)
    response = robot.call(ChangeState, 'perception/change_state', transition=configure)
    assert not response.success
    robot.more(robot.handles)


@pytest.mark.parametrize('kind', SUITE)
def test_diagnostics_are_given_once_a_second_under_the_full_name(robot, kind):
    heard = []
    latched = QoSProfile(depth=10, durability=DurabilityPolicy.TRANSIENT_LOCAL)
    robot.node.create_subscription(
        DiagnosticArray, '/diagnostics', lambda m: heard.append((time.monotonic(), m)), latched
    )
    name = f'{robot.namespace[1:]}/{kind.__name__.lower()}'
    robot.up(*SUITE)

    def ours():
        return [(at, s) for at, m in heard for s in m.status if s.name == name]

    robot.until(lambda: len(ours()) >= 2 and ours()[-1][1].level == DiagnosticStatus.OK)
    status = ours()[-1][1]
    keys = {value.key for value in status.values}
    assert {'rows used', 'streams', 'tokens per second', 'memory (MiB)'} <= keys
    if kind is Action:
        assert {'period mean (ms)', 'period deviation (ms)', 'deadline misses'} <= keys
