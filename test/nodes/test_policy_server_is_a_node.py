"""The node `policy_server` listens while it is active, and reports what it serves."""

import sys
import urllib.request
from dataclasses import asdict

import pytest

rclpy = pytest.importorskip('rclpy', reason='no ROS 2 is sourced: run through tools/env')

from rclpy.context import Context  # noqa: E402
from rclpy.executors import SingleThreadedExecutor  # noqa: E402
from rclpy.parameter import Parameter  # noqa: E402

from embodied_kv.nodes.common import executable  # noqa: E402
from embodied_kv.nodes.common.engine_host import EngineHost  # noqa: E402
from embodied_kv.nodes.common.lifecycle_node import ERROR, FAILURE, OK, SUCCESS  # noqa: E402
from embodied_kv.nodes.policy_server import PolicyServerNode, main  # noqa: E402
from embodied_kv.serving.__main__ import command  # noqa: E402
from embodied_kv.serving.websocket.config import ServedEngineConfig  # noqa: E402
from embodied_kv.serving.websocket.sessions import Sessions  # noqa: E402
from embodied_kv.srv import KvStats  # noqa: E402

PARAMETERS = {
    'contract': 'tabletop',
    'preset': 'tiny',
    'checkpoint': 'random',
    'port': 0,
    'engine.max_batch_robots': 1,
    'engine.rows': 6,
    'engine.reserved_rows': 2,
    'engine.streams': 1,
    'engine.compressed_rows': 0,
}


@pytest.fixture
def make():
    context, nodes = Context(), []
    rclpy.init(context=context)

    def node(**more):
        given = [Parameter(name, value=value) for name, value in (PARAMETERS | more).items()]
        nodes.append(PolicyServerNode(context=context, parameter_overrides=given))
        return nodes[-1]

    yield node
    for one in nodes:
        one.end()
    EngineHost.close()
    rclpy.shutdown(context=context)


def healthy(port):
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(f'http://127.0.0.1:{port}/healthz', timeout=240) as page:
        return page.read() == b'OK\n'


def test_it_listens_while_it_is_active(make):
    node = make()
    assert node.trigger_configure() == SUCCESS
    for _ in range(2):
        assert node.trigger_activate() == SUCCESS
        assert healthy(node._server.port)
        level, message, values = node.report()
        assert (level, message, values['sessions']) == (OK, 'serving', 0)
        assert node.trigger_deactivate() == SUCCESS
        assert not node._server.is_alive()


def test_by_itself_it_serves_many_clients_as_the_command_does(make):
    alone = PolicyServerNode(context=make().context)
    by_parameter = alone.params.read(ServedEngineConfig)
    alone.end()
    said = vars(command().parse_args(['--contract', 'libero']))
    by_command = {name: said[f'engine.{name}'] for name in asdict(by_parameter)}
    assert asdict(by_parameter) == by_command and by_parameter.max_batch_robots == 8


def test_it_says_that_nobody_is_served(make, monkeypatch):
    node = make()
    assert node.trigger_configure() == SUCCESS and node.trigger_activate() == SUCCESS
    monkeypatch.setattr(node._server.sessions, 'fault', lambda: 'the thread has ended')
    assert node.report()[:2] == (ERROR, 'the thread has ended')
    assert node.trigger_deactivate() == SUCCESS


def test_a_start_without_its_planner_fails_without_a_traceback(make, capfd):
    node = make(**{'memory.enabled': True, 'memory.planner': '/nowhere'})
    assert node.trigger_configure() == SUCCESS
    pools = node.host.kv_budget.pools
    for _ in range(2):
        assert node.trigger_activate() == FAILURE
    said = capfd.readouterr().err
    assert '/nowhere' in said and 'Traceback' not in said
    assert node.host.kv_budget.pools == pools


def test_a_start_without_room_for_sessions_fails_and_may_be_repeated(make, monkeypatch, capfd):
    node = make()
    assert node.trigger_configure() == SUCCESS

    def refuse(sessions):
        raise ValueError('no room for sessions')

    with monkeypatch.context() as patch:
        patch.setattr(Sessions, 'start', refuse)
        assert node.trigger_activate() == FAILURE
    said = capfd.readouterr().err
    assert 'no room for sessions' in said and 'cannot join thread' not in said
    assert node.trigger_activate() == SUCCESS and healthy(node._server.port)
    assert node.trigger_deactivate() == SUCCESS


def test_executable_reserves_the_name_of_its_node(make, monkeypatch):
    reserved = {}
    monkeypatch.setattr(executable, 'run', lambda **kinds: reserved.update(kinds))
    main()
    assert [*reserved] == [make().get_name()]


def test_an_address_that_others_reach_needs_keys(make):
    assert make(host='0.0.0.0').trigger_configure() == FAILURE


@pytest.mark.parametrize('more', [{'api_keys_file': 'keys'}, {'certificate': 'certificate.pem'}])
def test_files_are_read_again_before_it_is_configured_too(make, more):
    assert make(**more).reload()
    assert not make().reload()


def test_it_says_what_its_kv_takes(make):
    node = make()
    assert node.trigger_configure() == SUCCESS and node.trigger_activate() == SUCCESS
    executor = SingleThreadedExecutor(context=node.context)
    executor.add_node(node)
    client = node.create_client(KvStats, 'kv/stats')
    asked = client.call_async(KvStats.Request())
    executor.spin_until_future_complete(asked, timeout_sec=60.0)
    executor.shutdown()
    response = asked.result()
    assert response.success and response.bytes == node.host.kv_budget.bytes > 0, response.message
    assert node.trigger_deactivate() == SUCCESS


@pytest.mark.parametrize(
    ('wrong', 'why'),
    [
        ({'profile': '/nowhere.yaml'}, '/nowhere.yaml'),
        ({'scheduler': 'luck'}, 'scheduler must be one of'),
        ({'cloud_address': 'local', 'cloud_device': 'cpu'}, 'pip install ray'),
    ],
)
def test_what_it_cannot_serve_with_fails_configure(make, monkeypatch, capfd, wrong, why):
    monkeypatch.setitem(sys.modules, 'ray', None)
    assert make(**wrong).trigger_configure() == FAILURE
    assert why in capfd.readouterr().err
