"""Without a planner in the package the suite runs without memory, and memory logs the reason."""

import pytest
from memory_suite import parameters

from embodied_kv.nodes.memory import Memory
from embodied_kv.planning import planning


@pytest.fixture
def bare(monkeypatch):
    def missing(name):
        raise ValueError(f"no planner '{name}' comes with this package: train one")

    monkeypatch.setattr(planning, 'bundled_planner', missing)


def test_it_is_not_brought_up(robot, bare, capfd):
    node = robot.bring(Memory)
    assert not node.autostart
    said = capfd.readouterr().err
    assert "memory stays unconfigured: no planner 'planner_missions' comes with" in said


def test_configured_by_hand_it_refuses(robot, bare, capfd, tmp_path):
    node = robot.bring(Memory, storage_directory=str(tmp_path))
    assert node.trigger_configure().name == 'FAILURE'
    said = capfd.readouterr().err
    assert 'configure failed: no planner' in said and 'Traceback' not in said
    assert not any(tmp_path.iterdir())


def test_with_a_planner_of_its_own_it_is(robot, bare, tmp_path):
    assert robot.bring(Memory, **parameters(tmp_path)).autostart


def test_it_is_where_the_package_has_one(robot, monkeypatch):
    monkeypatch.setattr(planning, 'bundled_planner', lambda name: name)
    assert robot.bring(Memory).autostart
    assert not robot.bring(Memory, autostart=False).autostart
