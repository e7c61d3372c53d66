"""No robot of a fleet can see, restore or drop what another one keeps, whatever the name."""

import pytest
from fleet_suite import Fleets

from embodied_kv.srv import (
    CapsuleDrop,
    CapsuleList,
    CapsuleMove,
    CapsulePin,
    CapsuleRestore,
    CapsuleRollback,
    CapsuleSnapshot,
)

VERBS = {
    'restore': CapsuleRestore,
    'rollback': CapsuleRollback,
    'drop': CapsuleDrop,
    'pin': CapsulePin,
    'move': CapsuleMove,
}


@pytest.fixture
def fleet(robots, tmp_path):
    return Fleets(robots, tmp_path)


def listed(fleet, robot):
    return [c.name for c in fleet.call(robot, CapsuleList, 'capsule/list').capsules]


@pytest.mark.parametrize('tier', ['device', 'disk'])
def test_a_capsule_is_its_own_robots_alone(fleet, tmp_path, tier):
    fleet.up()
    a, b = fleet.act('/left'), fleet.act('/left/arm')
    fleet.live(lambda: a.chunks and b.chunks)
    answer = fleet.call(a, CapsuleSnapshot, 'capsule/snapshot', name='home', tier=tier)
    assert answer.success and answer.bytes, answer.message
    assert listed(fleet, a) == ['home'] and listed(fleet, b) == []
    foreign = ('home', 'left/home', '../home', '../left/home', '/left/home', '..', '../../etc')
    for name in foreign:
        for verb, kind in VERBS.items():
            fields = {'tier': 'host'} if verb == 'move' else {}
            answer = fleet.call(b, kind, f'capsule/{verb}', name=name, **fields)
            assert not answer.success and answer.message, (verb, name)
    for name in foreign[1:]:
        for tier_ in ('device', 'disk'):
            answer = fleet.call(b, CapsuleSnapshot, 'capsule/snapshot', name=name, tier=tier_)
            assert not answer.success and 'cannot name a capsule' in answer.message
    assert fleet.call(b, CapsuleSnapshot, 'capsule/snapshot', name='home', tier=tier).success
    assert fleet.call(b, CapsuleDrop, 'capsule/drop', name='home').success  # its own
    assert listed(fleet, a) == ['home'] and listed(fleet, b) == []
    files = sorted(str(f.relative_to(tmp_path)) for f in tmp_path.rglob('*.safetensors'))
    assert files == (['capsules/left/home.safetensors'] if tier == 'disk' else [])


def test_what_a_capsule_holds_is_of_its_own_robot(fleet):
    fleet.up()
    a, b = fleet.act(instruction='reach a'), fleet.act(instruction='reach b')
    fleet.live(lambda: a.chunks and b.chunks)
    for robot, word in ((a, 'reach a'), (b, 'reach b')):
        assert fleet.call(robot, CapsuleSnapshot, 'capsule/snapshot', name='home').success
        kept = fleet.node.host.session(robot.namespace).registry.get('home')
        assert kept.facts['perception']['instruction'] == word
        assert kept.facts['scene']['robot'] == robot.namespace
        assert kept.boundary.session.endswith(robot.namespace)
    rows = {
        robot.namespace: fleet.node.host.engine.kv.frames.current(robot.namespace).row
        for robot in (a, b)
    }
    assert len(set(rows.values())) == 2


def test_what_a_robot_kept_in_memory_and_its_row_go_with_it(fleet):
    node = fleet.up()
    a, b = fleet.act(), fleet.act()
    fleet.live(lambda: a.chunks and b.chunks)
    assert fleet.call(a, CapsuleSnapshot, 'capsule/snapshot', name='home').success
    fleet.live(lambda: node.host.engine.kv.stats().leases == 2)  # no stream just now
    a.suite.pop().end()
    fleet.acting.remove(a)
    fleet.live(lambda: a.namespace not in node._connections.robots)
    fleet.live(lambda: node.host.engine.kv.stats().leases == 1)
    fleet.live(lambda: a.namespace not in node._threads[0]._nodes)
    assert fleet.call(b, CapsuleSnapshot, 'capsule/snapshot', name='home').success


def test_without_capsules_no_row_is_kept_and_nobody_answers(fleet):
    node = fleet.up(capsules=False, language=False)
    robot = fleet.act()
    fleet.live(lambda: robot.chunks)
    assert node.host.engine.kv.stats().leases == 0
    names = dict(robot.node.get_service_names_and_types())
    assert f'{robot.namespace}/capsule/list' not in names
