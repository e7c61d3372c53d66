"""All nodes of a process share one engine, which stays while nodes come and go."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from embodied_kv.config import TABLETOP
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model.checkpoints import own
from embodied_kv.model.policy import Policy
from embodied_kv.msg import ActionChunk
from embodied_kv.nodes.action import Action
from embodied_kv.nodes.common import engine_host, executable
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.nodes.common.parameters import SuiteParams
from embodied_kv.nodes.language import Language
from embodied_kv.nodes.perception import Perception
from embodied_kv.robots.reading import load

TINY = SuiteParams(contract='tabletop', preset='tiny', checkpoint='random')


@pytest.fixture
def share():
    said = []

    def share(suite=TINY, **engine):
        return EngineHost.share(suite, EngineConfig(**engine), said.append, said.append)

    share.said = said
    yield share
    EngineHost.close()


def test_the_same_parameters_share_one_engine(share):
    assert share() is share()


def test_weights_are_loaded_once_so_that_no_armed_robot_waits_for_a_download(share, monkeypatch):
    """A robot is armed only after its engine is built, and no node builds another one."""
    host = share()
    monkeypatch.setattr(engine_host, 'load_policy', lambda *given: pytest.fail('loaded again'))
    assert share() is host


@pytest.mark.parametrize(
    'other, name',
    [
        (
            dict(suite=SuiteParams(contract='tabletop', preset='tabletop', checkpoint='random')),
            "preset must be 'tiny', as the engine of this process was built (got 'tabletop')",
        ),
        (dict(suite=replace(TINY, control_frequency=5.0)), '(got 5.0)'),
        (
            dict(rows=17),
            'engine.rows must be 16, as the engine of this process was built',
        ),
        (dict(seed=3), 'engine.seed must be 0, as'),
    ],
)
def test_who_disagrees_is_refused_with_the_parameter(share, other, name):
    host = share()
    with pytest.raises(ValueError, match='.') as refused:
        share(**other)
    assert name in str(refused.value)
    assert share() is host


def test_random_weights_are_warned_of(share):
    share()
    assert share.said[0] == 'weights of tiny are random: the robot moves without purpose'
    assert share.said[-1].startswith('engine ready in')


@pytest.mark.parametrize('dtype', ['auto', 'bfloat16'])
def test_the_dtype_is_what_the_parameter_says_and_is_told(share, dtype):
    model = share(dtype=dtype).model
    assert model.dtype == {'auto': 'float32'}.get(dtype, dtype)
    assert any(line.startswith(f'tiny computes in {model.dtype}: ') for line in share.said)


def test_no_dtype_is_refused_with_the_parameter(share):
    with pytest.raises(ValueError, match='engine.dtype must be auto, float32 or bfloat16'):
        share(dtype='half')


def test_an_engine_that_cannot_be_built_leaves_none(share):
    with pytest.raises(ValueError, match='no bundled checkpoint'):
        share(SuiteParams(contract='tabletop', preset='tiny', checkpoint=''))
    assert share().model.name == 'tiny'


def test_a_listener_that_fails_does_not_stop_the_engine(share, caplog):
    host = share()
    heard = []

    def fail(_):
        raise RuntimeError('a listener')

    host.deltas.listen(fail)
    host.deltas.listen(heard.extend)
    host._on_deltas(['not a delta'][:0])
    host.flush()
    assert 'a listener of text deltas failed' in caplog.text
    assert host.device.is_alive()


def test_cleanup_of_a_node_leaves_the_engine_to_the_others(robot):
    perception, action, language = robot.up(Perception, Action, Language)
    host = EngineHost._shared
    robot.until(lambda: robot.chunks)
    for node in (language, action):
        assert node.trigger_deactivate().name == 'SUCCESS'
        assert node.trigger_cleanup().name == 'SUCCESS'
        assert host.device.is_alive()
        robot.more(robot.handles)
    stats = host.engine.kv.stats()
    assert (stats.streams, stats.leases) == (0, 0)
    host.engine.kv.check_integrity()


def test_two_suites_of_one_process_do_not_mix(robots):
    left, right = robots(), robots()
    left.up(Perception, Action)
    right.up(Perception, Action)
    left.until(lambda: left.chunks)
    right.spin(0.2)
    assert not right.chunks
    right.until(lambda: right.chunks)
    left.until(lambda: left.chunks[-1].source == ActionChunk.FRESH)


def test_a_checkpoint_of_other_dimensions_fails_configure_and_the_node_lives(
    robot, tmp_path, capfd
):
    policy = Policy.random(TABLETOP)
    relative = np.array(load('tabletop').action[0].relative + (False,))
    normalizer = replace(policy.processing.normalizer, relative=relative)
    parts = policy.model.state_dict(), TABLETOP, normalizer, policy.tokenizer
    own.save(tmp_path / 'weights', *parts)
    node = robot.bring(Perception, checkpoint=str(tmp_path / 'weights'))
    assert node.trigger_configure().name == 'FAILURE'
    said = capfd.readouterr().err
    assert 'configure failed:' in said and 'the model has' in said and 'Traceback' not in said
    good = robot.bring(Action, checkpoint=str(tmp_path / 'weights'), preset='')
    assert good.trigger_configure().name == 'SUCCESS'
    assert good.host.model == TABLETOP


def test_a_process_comes_up_as_far_as_its_parameters_allow(robot, capfd):
    sound, wrong, waiting = (
        robot.bring(Perception),
        robot.bring(Action, control_frequency=10),
        robot.bring(Language, autostart=False),
    )
    for node in robot.suite:
        robot.executor.remove_node(node)
    stopping = []
    thread = threading.Thread(target=executable.spin, args=(robot.suite, stopping))
    thread.start()
    robot.until(lambda: sound.active, show=False)  # the first node is activated last
    stopping.append('now')
    thread.join()
    assert (sound.active, wrong.active, waiting.active) == (True, False, False)
    reported = capfd.readouterr().err
    assert 'action]: configure failed: parameter control_frequency: Trying to set' in reported
