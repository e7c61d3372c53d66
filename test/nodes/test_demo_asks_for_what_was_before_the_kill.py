"""After a kill the demo asks the robot to undo its mission, and judges it by the true state."""

from dataclasses import replace

import numpy as np
import pytest
from demo_play import SEED
from rclpy.task import Future

from embodied_kv.demo.after_kill import AGAIN, LOST, CapsuleClient, Recall, task_of
from embodied_kv.demo.director import SECOND
from embodied_kv.demo.last_mission import Errand, LastMission
from embodied_kv.demo.nodes.truth import TrueMoment
from embodied_kv.demo.sim.tabletop import Tabletop
from embodied_kv.demo.sim.tasks import task_scene
from embodied_kv.srv import CapsuleRestore


@pytest.fixture(scope='module')
def moment():
    with Tabletop(task_scene('put'), SEED) as table:
        return TrueMoment(SECOND, SEED, table.state(), table.truth(), table.poses())


def moved(moment, name, spot, seconds):
    """Return a later moment with a thing at another position x, y (m)."""
    things = tuple(
        replace(thing, position=np.array([*spot, thing.position[2]]))
        if thing.name == name
        else thing
        for thing in moment.truth.things
    )
    truth = replace(moment.truth, things=things)
    return replace(moment, stamp=moment.stamp + seconds * SECOND, truth=truth)


def carried_out(moment, family='put', done=True):
    name = next(thing.name for thing in moment.truth.things if thing.shape == 'cube')
    place = next(t.name for t in moment.truth.things if t.shape in ('plate', 'bin'))
    mission = LastMission(Errand(family, (name,), place), moment)
    mission.done = done
    return mission


def test_the_request_is_to_undo_the_first_move_of_the_mission(moment):
    task = task_of(carried_out(moment))
    start = next(t.position for t in moment.truth.things if t.name == task.target)
    assert task.family == 'return' and task.spot == pytest.approx(start[:2])
    assert task.phrase(0) == f'put the {task.target} back where it was'


@pytest.mark.parametrize('how', [dict(family='take'), dict(done=False)])
def test_there_is_no_request_without_a_move_from_the_table(moment, how):
    assert task_of(carried_out(moment, **how)) is None


def test_the_request_is_done_once_the_thing_is_back(moment):
    task = task_of(carried_out(moment))
    (x, y), away = task.spot, (task.spot[0], task.spot[1] + 0.2)
    recall = Recall(task, killed=0, restored=6 * SECOND)
    recall.give(moved(moment, task.target, away, 7), task.phrase(0))
    recall.add_moment(moved(moment, task.target, away, 8))
    assert not recall.is_done
    recall.add_moment(moved(moment, task.target, (x + 0.01, y), 9))
    assert recall.is_done
    recall.end()
    found = recall.report()
    assert found['done'] and not found['wrong'] and found['stopped'] == 6.0
    assert found['seconds'] == pytest.approx(2.0)


def test_a_request_that_is_not_done_has_failed(moment):
    task = task_of(carried_out(moment))
    recall = Recall(task)
    away = moved(moment, task.target, (task.spot[0], task.spot[1] + 0.2), 1)
    recall.give(away, task.phrase(0))
    recall.end()
    assert recall.given.failed and recall.report()['done'] is False


class Restore:
    """A client of capsule/restore that keeps the requests, whose responses are set later."""

    def __init__(self):
        self.requests = []

    def service_is_ready(self):
        return True

    def call_async(self, request):
        self.requests.append(Future())
        return self.requests[-1]


class Listener:
    """A node with such clients, and a clock that is set."""

    def __init__(self):
        self.nanoseconds, self.clients = 100 * SECOND, {}

    def create_client(self, _, name):
        return self.clients.setdefault(name, Restore())

    def get_clock(self):
        return self

    def now(self):
        return self


@pytest.fixture
def restoring():
    """Return a client of capsules, its node, and a function that advances the clock (s)."""
    node = Listener()
    client = CapsuleClient(node)

    def go_on(seconds=0.0):
        node.nanoseconds += round(seconds * SECOND)
        client.restore()
        return node.clients['capsule/restore'].requests

    return client, go_on


def test_a_restore_is_requested_again_after_a_refusal_and_without_memory_rows(restoring):
    client, go_on = restoring
    (first,) = go_on()
    first.set_result(CapsuleRestore.Response(success=False, message='not found'))
    _, second = go_on(AGAIN)
    second.set_result(CapsuleRestore.Response(success=True, depth='hold'))
    assert not client.is_restored
    *_, third = go_on(AGAIN)
    third.set_result(CapsuleRestore.Response(success=True, depth='actor'))
    assert client.is_restored


def test_a_restore_that_is_not_answered_yet_is_requested_again_late(restoring):
    _, go_on = restoring
    assert len(go_on()) == len(go_on(AGAIN)) == 1
    assert len(go_on(LOST)) == 2
