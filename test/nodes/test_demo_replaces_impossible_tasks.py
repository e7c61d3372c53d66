"""A task that became impossible is replaced and counted as such; one that takes long fails."""

from types import SimpleNamespace

import pytest

from embodied_kv.demo.director import ORDER, SECOND, Director
from embodied_kv.demo.nodes.truth import TrueMoment
from embodied_kv.demo.sim.scene import RECEPTACLES
from embodied_kv.demo.sim.tabletop import Tabletop
from embodied_kv.demo.sim.tasks import SECONDS, STEADY, hindrance, task_scene

SEED = 1_000_001
DT = 0.1  # s, the control period


@pytest.fixture(scope='module')
def tables():
    """Return the initial states of two scenes."""
    with Tabletop(task_scene('put')) as table:

        def still(seed):
            table.reset(seed)
            return seed, table.state(), table.truth(), table.poses()

        return [still(SEED + i) for i in range(2)]


@pytest.fixture
def play(tables):
    """Return a director that observes static tables.

    A task whose target or family is in `lost` is impossible.
    """
    stage = SimpleNamespace(lost=set(), scene=0, time=0.0, resets=0)

    def reset():
        stage.resets += 1
        stage.scene, stage.lost = 1, set()

    def hindrance(task, moment):
        gone = {task.target, task.family} & stage.lost
        return f'the {task.target} is out of reach' if gone else ''

    def look(times=1):
        for _ in range(times):
            stage.director.add_moment(TrueMoment(round(stage.time * SECOND), *tables[stage.scene]))
            stage.time += DT

    stage.director = Director(
        SEED, tell=lambda _: None, ask=lambda _: None, reset=reset, hindrance=hindrance
    )
    stage.look = look
    look()
    return stage


def test_a_task_that_nobody_can_do_is_replaced_by_another_of_its_family(play):
    first = play.director.current
    play.lost.add(first.task.target)
    play.look(STEADY + 1)
    second = play.director.current
    assert (first.done, first.failed) == (False, False)
    assert first.replaced == f'the {first.task.target} is out of reach'
    assert second.task.family == first.task.family and second.scene == first.scene
    assert second.task.target != first.task.target
    assert play.director.judged == [first] and play.resets == 0


def test_single_moment_of_an_impossible_task_replaces_nothing(play):
    first = play.director.current
    for _ in range(3):
        play.lost = {first.task.target}
        play.look(STEADY - 1)
        play.lost = set()
        play.look()
    assert play.director.current is first and not first.replaced


def test_a_task_that_could_have_been_done_fails(play):
    first = play.director.current
    play.look(round(SECONDS[first.task.family] / DT) + 2)
    assert first.failed and not first.replaced and play.director.told[1:]


def test_where_its_family_has_none_another_family_comes(play):
    play.lost.add('pick')
    play.look(STEADY + 1)
    assert [told.task.family for told in play.director.told] == list(ORDER[:2])
    assert play.resets == 0


def test_where_nothing_can_be_done_there_is_another_scene(play, tables):
    play.lost.update(t.name for t in tables[0][2].things if t.shape not in RECEPTACLES)
    play.look(round(1 / DT) + STEADY)
    first, second = play.director.told
    assert play.resets == 1 and first.replaced
    assert (second.scene, second.task.family) == (SEED + 1, first.task.family)


def test_what_has_fallen_off_the_table_is_replaced():
    with Tabletop(task_scene('put'), SEED) as table:
        director = Director(
            SEED,
            tell=lambda _: None,
            ask=lambda _: None,
            reset=lambda: None,
            hindrance=lambda task, moment: hindrance(task, moment.truth, table.sees),
        )
        for i in range(STEADY + 2):
            moment = table.state(), table.truth(), table.poses()
            director.add_moment(TrueMoment(round(i * DT * SECOND), SEED, *moment))
            fallen = [thing.name == director.told[0].task.target for thing in table.objects()]
            moment[2][fallen, :3] = 0.4, 0.6, -0.7
            table.restore(moment[0], moment[2])
    first, second = director.told
    assert first.replaced == f'the {first.task.target} fell off the table'
    assert second.task.target != first.task.target
