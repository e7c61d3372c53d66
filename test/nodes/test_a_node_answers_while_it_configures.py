"""While a node loads its engine, the process serves all nodes, reports progress and can end."""

import os
import signal
import subprocess
import sys
import threading

import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetAvailableStates, GetAvailableTransitions, GetState
from rcl_interfaces.srv import GetParameters

from embodied_kv import storage
from embodied_kv.engine_config import EngineConfig
from embodied_kv.nodes.action import Action
from embodied_kv.nodes.common import executable, qos
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.nodes.common.parameters import SuiteParams
from embodied_kv.nodes.perception import Perception
from embodied_kv.nodes.session import Session
from embodied_kv.serving import engine_runner

CONFIGURE, ACTIVATE = Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_ACTIVATE
WAIT = 120.0  # s
CODE = """
import threading
from embodied_kv.nodes.common import executable
from embodied_kv.nodes.common.engine_host import EngineHost
from embodied_kv.nodes.perception import Perception

class Endless(Perception):
    def find_host(self):
        with EngineHost._lock:
            threading.Event().wait()

executable.run(endless=Endless)
"""


class SlowPerception(Perception):
    """Loads when the test permits it, and fails if the test has set `fault`."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.permitted, self.fault = threading.Event(), ''

    def find_host(self):
        assert self.permitted.wait(WAIT)
        if self.fault:
            raise ValueError(self.fault)
        return super().find_host()


def request(robot, transition):
    """Return the future of the response to a transition of the perception node."""
    client = robot.node.create_client(ChangeState, 'perception/change_state')
    assert client.wait_for_service(60.0)
    return client.call_async(ChangeState.Request(transition=transition))


def state(robot, name='perception'):
    return robot.ask(GetState, f'{name}/get_state').current_state.label


def is_accepted(robot, number, name='perception'):
    wanted = Transition(id=number)
    return robot.call(ChangeState, f'{name}/change_state', transition=wanted).success


def until_state(robot, wanted):
    robot.until(lambda: state(robot) == wanted, show=False)


@pytest.fixture
def slow(robot):
    node = robot.bring(SlowPerception)
    yield node
    node.permitted.set()


@pytest.mark.parametrize('transition', [Transition(id=CONFIGURE), Transition(label='configure')])
def test_services_answer_during_configure(robot, slow, transition, capfd):
    configured = request(robot, transition)
    until_state(robot, 'configuring')
    assert not is_accepted(robot, CONFIGURE)
    assert 'transition refused: perception is configuring' in capfd.readouterr().err
    (value,) = robot.call(
        GetParameters, 'perception/get_parameters', names=['control_frequency']
    ).values
    assert value.double_value == slow.get_parameter('control_frequency').value
    offered = robot.call(GetAvailableTransitions, 'perception/get_available_transitions')
    labels = {each.transition.label for each in offered.available_transitions}
    assert labels and 'configure' not in labels
    assert robot.call(GetAvailableStates, 'perception/get_available_states').available_states
    assert not configured.done()
    slow.permitted.set()
    robot.until(configured.done, show=False)
    assert configured.result().success and state(robot) == 'inactive'
    assert is_accepted(robot, ACTIVATE)
    robot.more(robot.handles)


def test_diagnostics_and_log_report_progress_during_configure(robot, slow, capfd, monkeypatch):
    monkeypatch.setattr('embodied_kv.nodes.common.lifecycle_node.LOG_EVERY', 1)
    heard = []
    robot.node.create_subscription(
        DiagnosticArray, '/diagnostics', lambda m: heard.extend(m.status), qos.STATUS
    )
    configured = request(robot, Transition(id=CONFIGURE))
    robot.until(lambda: len(heard) >= 2, show=False)
    assert {(s.level, s.name) for s in heard} == {
        (DiagnosticStatus.OK, f'{robot.namespace[1:]}/perception')
    }
    assert all(s.message.startswith('configuring: loading, ') for s in heard)
    monkeypatch.setattr(EngineHost, '_doing', ('compiling denoise 1x0, 2 of 5', 0.0))
    step = 'configuring: compiling denoise 1x0, 2 of 5, '
    robot.until(lambda: heard[-1].message.startswith(step), show=False)
    assert 'perception]: configuring: loading, ' in capfd.readouterr().err
    slow.permitted.set()
    robot.until(configured.done, show=False)
    heard.clear()
    assert is_accepted(robot, ACTIVATE)
    robot.until(lambda: heard, show=False)
    assert not any('configuring' in s.message for s in heard)


def test_failed_load_leaves_the_node_unconfigured_and_configurable(robot, slow, capfd):
    slow.fault = 'the disk is gone'
    slow.permitted.set()
    assert not is_accepted(robot, CONFIGURE)
    assert 'configure failed: the disk is gone' in capfd.readouterr().err
    assert state(robot) == 'unconfigured'
    slow.fault = ''
    assert is_accepted(robot, CONFIGURE) and is_accepted(robot, ACTIVATE)
    robot.more(robot.handles)


def test_node_that_ends_while_it_loads_fails_the_configure(robot, slow):
    configured = request(robot, Transition(id=CONFIGURE))
    until_state(robot, 'configuring')
    robot.executor.remove_node(slow)
    robot.suite.remove(slow)
    slow.end()
    robot.until(configured.done, show=False)
    assert not configured.result().success
    slow.permitted.set()
    slow._loader.join(WAIT)
    assert not slow.is_loading


def test_process_serves_its_nodes_during_the_automatic_start(robot, slow):
    action, session = robot.bring(Action), robot.bring(Session)
    for node in robot.suite:
        robot.executor.remove_node(node)
    stopping, ready = [], []
    thread = threading.Thread(
        target=lambda: ready.append(executable.spin([slow, action, session], stopping))
    )
    thread.start()
    try:
        until_state(robot, 'configuring')
        assert state(robot, 'session') == state(robot, 'action') == 'inactive'
        for name in ('perception', 'action', 'session'):  # only the process activates them
            assert not is_accepted(robot, ACTIVATE, name)
        slow.permitted.set()
        robot.more(robot.chunks)
        assert state(robot) == state(robot, 'session') == state(robot, 'action') == 'active'
        assert is_accepted(robot, Transition.TRANSITION_DEACTIVATE)
    finally:
        stopping.append(1)
        thread.join(WAIT)
    assert ready == [True]


def test_process_ends_by_itself_if_nothing_can_be_configured(robot, slow):
    robot.executor.remove_node(slow)
    slow.fault = 'the disk is gone'
    slow.permitted.set()
    assert not executable.spin([slow], [])


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_a_process_while_it_loads(robot, tmp_path, number):
    log = tmp_path / 'log'
    with log.open('w') as file:
        process = subprocess.Popen(
            [sys.executable, '-c', CODE, '--ros-args', '-r', f'__ns:={robot.namespace}']
            + ['-p', 'contract:=tabletop'],
            stdout=file,
            stderr=file,
            env={**os.environ, 'OMP_NUM_THREADS': '1'},
        )
    try:
        until_state(robot, 'configuring')
        process.send_signal(number)
        assert process.wait(WAIT) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
    said = log.read_text()
    assert 'the process ends before an engine was ready' in said and 'Traceback' not in said
    marks = storage.runtime_folder().glob(f'*{robot.namespace[1:]}.*.running')
    assert not list(marks)  # else the next process would count as respawned


def test_engine_host_reports_the_step_of_its_build(monkeypatch):
    steps = []

    def record(line):
        steps.append((line, EngineHost.doing()))

    def engine(*arguments, say, **options):
        say('compiling denoise 1x0, 2 of 5, once: it takes about half a minute')
        say('compiled denoise 1x0 in 30 s: some file')
        return made(*arguments, say=say, **options)

    made = engine_runner.Engine
    monkeypatch.setattr(engine_runner, 'Engine', engine)
    try:
        suite = SuiteParams(contract='tabletop', preset='tiny', checkpoint='random')
        EngineHost.share(suite, EngineConfig(), record, record)
        assert EngineHost.doing() == ''
    finally:
        EngineHost.close()
    found = {line.split(':')[0]: step for line, step in steps}
    assert found['weights of tiny are random'].startswith('loading the weights, ')
    compiling = 'compiling denoise 1x0, 2 of 5'
    assert found[f'{compiling}, once'].startswith(f'{compiling}, ')
    assert found['compiled denoise 1x0 in 30 s'].startswith('warming up the engine, ')
