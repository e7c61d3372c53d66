"""A second suite in a namespace is refused: lock files and the ROS graph reveal the first one."""

import pytest
import rclpy

from embodied_kv.nodes.common import executable


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    monkeypatch.setattr(executable, 'DISCOVERY', 0.1)
    monkeypatch.setenv('XDG_RUNTIME_DIR', str(tmp_path))


def test_nobody_there_gives_a_lock_for_each_name(ros, tmp_path):
    with executable.unique_in_namespace(['perception', 'action']):
        assert len(list(tmp_path.iterdir())) == 2


def test_a_node_of_that_name_in_the_namespace_is_refused(ros, capfd):
    other = rclpy.create_node('action')
    refused(['perception', 'action'], capfd)
    other.destroy_node()


def test_a_node_of_that_name_in_another_namespace_is_not(ros):
    other = rclpy.create_node('action', namespace='/elsewhere')
    with executable.unique_in_namespace(['perception', 'action']):
        pass
    other.destroy_node()


def test_a_lock_is_refused_while_another_holds_it(ros, capfd):
    with executable.unique_in_namespace(['perception', 'action']):
        refused(['action'], capfd)
    with executable.unique_in_namespace(['action']):
        pass


def refused(names, capfd):
    with pytest.raises(SystemExit) as exit, executable.unique_in_namespace(names):
        pass
    assert exit.value.code == 1
    assert 'namespace / must have one action (got a second)' in capfd.readouterr().err


def test_a_link_in_place_of_the_lock_is_refused(ros, tmp_path, capfd):
    with executable.unique_in_namespace(['action']):
        (lock,) = tmp_path.iterdir()
    lock.unlink()
    lock.symlink_to(tmp_path / 'elsewhere')
    with pytest.raises(SystemExit) as exit, executable.unique_in_namespace(['action']):
        pass
    assert exit.value.code == 1 and not (tmp_path / 'elsewhere').exists()
    assert 'it is a link, which is never followed' in capfd.readouterr().err
