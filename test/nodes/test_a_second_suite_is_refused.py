"""Who starts looks around first: for locks on this machine, for nodes in the ROS graph."""

import pytest
import rclpy

from embodied_kv.nodes.common import executable


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    monkeypatch.setattr(executable, 'DISCOVERY', 0.1)
    monkeypatch.setattr(executable.tempfile, 'gettempdir', lambda: str(tmp_path))


def test_nobody_there_gives_a_lock_for_each_name(ros):
    locks = executable.refuse_second(['perception', 'action'])
    assert len(locks) == 2
    for lock in locks:
        lock.close()


def test_a_node_of_that_name_in_the_namespace_is_refused(ros, capfd):
    other = rclpy.create_node('action')
    with pytest.raises(SystemExit) as exit:
        executable.refuse_second(['perception', 'action'])
    assert exit.value.code == 1
    assert 'namespace / has its action already' in capfd.readouterr().err
    other.destroy_node()


def test_a_node_of_that_name_in_another_namespace_is_not(ros):
    other = rclpy.create_node('action', namespace='/elsewhere')
    for lock in executable.refuse_second(['perception', 'action']):
        lock.close()
    other.destroy_node()


def test_a_lock_is_refused_while_another_holds_it(ros, capfd):
    mine = executable.refuse_second(['perception', 'action'])
    with pytest.raises(SystemExit) as exit:
        executable.refuse_second(['action'])
    assert exit.value.code == 1
    assert 'namespace / has its action already' in capfd.readouterr().err
    for lock in mine:
        lock.close()
    (again,) = executable.refuse_second(['action'])
    again.close()
