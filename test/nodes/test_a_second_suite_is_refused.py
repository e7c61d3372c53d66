"""Who starts looks around first: for locks on this machine, for nodes in the ROS graph."""

import subprocess
import sys

import pytest
import rclpy

from embodied_kv.nodes import process


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    monkeypatch.setattr(process, 'DISCOVERY', 0.1)
    monkeypatch.setattr(process.tempfile, 'gettempdir', lambda: str(tmp_path))


def test_nobody_there_gives_a_lock_for_each_name(ros):
    locks = process.refuse_second(['perception', 'action'])
    assert len(locks) == 2
    for lock in locks:
        lock.close()


def test_a_node_of_that_name_in_the_namespace_is_refused(ros, capfd):
    other = rclpy.create_node('action')
    with pytest.raises(SystemExit) as exit:
        process.refuse_second(['perception', 'action'])
    assert exit.value.code == 1
    assert 'namespace / has its action already' in capfd.readouterr().err
    other.destroy_node()


def test_a_node_of_that_name_in_another_namespace_is_not(ros):
    other = rclpy.create_node('action', namespace='/elsewhere')
    for lock in process.refuse_second(['perception', 'action']):
        lock.close()
    other.destroy_node()


def test_the_lock_of_another_process_is_refused_and_ends_with_it(ros, capfd, tmp_path):
    held = process._lock('7.left.action')
    code = (
        f'import tempfile; tempfile.tempdir = {str(tmp_path)!r}\n'
        'from embodied_kv.nodes import process\n'
        "print(process._lock('7.left.action'))"
    )
    run = [sys.executable, '-c', code]
    assert subprocess.run(run, capture_output=True, text=True).stdout.strip() == 'None'
    held.close()
    assert 'action.lock' in subprocess.run(run, capture_output=True, text=True).stdout
