"""The director gives one task after another and judges them correctly; the expert acts."""

from collections import Counter

import numpy as np
import pytest

from embodied_kv.demo.director import ASK_EVERY, HOLD, ORDER, REPORT, SECOND, Director
from embodied_kv.demo.domain import DONE
from embodied_kv.demo.nodes.truth import TrueMoment
from embodied_kv.demo.sim.language import SUBTASK
from embodied_kv.demo.sim.rollout import Rollout
from embodied_kv.demo.sim.tables import Orders, Tables
from embodied_kv.demo.sim.tabletop import Tabletop
from embodied_kv.demo.sim.tasks import SECONDS, hindrance, task_scene
from training.policy.expert import plan

SEED = 1_000_001
DT = 0.1  # s, the control period


class Stage:
    """A director, and a robot in simulated time that follows the expert or stands still."""

    def __init__(self, follows=True, reports=True, **options):
        self.instructions, self.resets = [], 0
        self.table = Tabletop(task_scene('put'), SEED)
        self._rollout, self._follows, self.time = Rollout(self.table), follows, 0.0
        self._reports = reports
        self.director = Director(
            SEED,
            tell=self.instructions.append,
            ask=lambda question: None,
            reset=self.reset,
            hindrance=self.hindrance,
            **options,
        )

    def reset(self):
        self.resets += 1
        self.table.reset()
        self._rollout.restart()

    def hindrance(self, task, moment):
        return hindrance(task, moment.truth, self.table.sees)

    def moment(self):
        stamp = round(self.time * SECOND)
        state, truth, poses = self.table.state(), self.table.truth(), self.table.poses()
        return TrueMoment(stamp, self.table.seed, state, truth, poses)

    def run(self, tasks, most=120.0):
        """Run until so many tasks are judged; return them."""
        while len(self.director.judged) < tasks:
            assert self.time < most, 'too few tasks were told'
            self.step()
        return self.director.judged

    def step(self):
        self.director.add_moment(self.moment())
        if self._reports and self.director.told and self.director.told[-1].done:
            self.director.add_text(round(self.time * SECOND), SUBTASK, DONE)
        told = self.director.current
        if told and self._follows:
            truth = self.table.truth()
            orders = Orders.of([told.task], [[thing.name for thing in truth.things]])
            actions, _ = plan(self.table.state()[None], Tables.of([truth]), orders, 3)
            self._rollout.follow(actions[0], self._rollout.time, DT)
        self._rollout.advance(DT)
        self.time += DT


@pytest.fixture
def stage():
    opened = []

    def open_one(**options):
        opened.append(Stage(**options))
        return opened[-1]

    yield open_one
    for each in opened:
        each.table.close()


def test_an_expert_does_the_four_families_in_turn(stage):
    told = stage().run(4)
    assert [each.task.family for each in told] == list(ORDER)
    assert all(each.done and not each.wrong for each in told)
    assert all(0 < each.seconds < SECONDS[each.task.family] for each in told)


def test_the_next_task_is_told_a_second_after_the_last_was_done(stage):
    first, second = (play := stage()).run(2)
    assert second.stamp - first.stamp - first.seconds * SECOND == pytest.approx(HOLD, abs=1.1e8)
    assert play.instructions == [first.instruction, second.instruction]


def test_a_task_whose_end_is_not_reported_stays_in_force_for_a_bounded_time(stage):
    first, second = stage(reports=False).run(2)
    waited = second.stamp - first.stamp - first.seconds * SECOND
    assert waited == pytest.approx(HOLD + REPORT, abs=1.1e8)
    assert not first.reported


def test_a_report_about_a_frame_of_the_task_before_does_not_count(stage):
    play = stage()
    first, second = play.run(2)
    second.reported = False
    play.director.add_text(second.stamp, SUBTASK, DONE)
    assert first.reported and not second.reported
    play.director.add_text(second.stamp + SECOND, SUBTASK, DONE)
    assert second.reported


def test_a_task_whose_time_is_up_is_not_done_and_the_next_one_is_told_at_once(stage):
    play = stage(follows=False)
    first, second = play.run(2)
    assert (first.done, first.wrong, second.done) == (False, False, False)
    assert first.seconds == pytest.approx(SECONDS[first.task.family], abs=0.01)
    assert (second.stamp - first.stamp) / SECOND == pytest.approx(first.seconds + DT, abs=0.01)


def test_every_task_has_a_scene_of_its_own_where_that_is_wanted(stage):
    play = stage(fresh=True)
    told = play.run(4)
    assert [each.task.family for each in told] == list(ORDER)
    scenes = [each.scene for each in told]
    assert scenes == sorted(set(scenes)) and scenes[0] > SEED
    assert play.resets == scenes[-1] - SEED
    assert all(each.done for each in told)


def test_a_scene_with_nothing_left_to_do_is_replaced(stage):
    play = stage()
    lost = play.moment()
    for thing in lost.truth.things:
        thing.position[:] += [5.0, 0, 0]
    play.director.add_moment(lost)
    assert play.resets == 1 and not play.director.told
    told = play.run(1)
    assert told[0].scene == SEED + 1


def test_things_are_put_where_there_is_room(stage):
    """A receptacle has room for two things."""
    play = stage()
    told = play.run(6)
    puts = Counter((each.scene, each.task.place) for each in told if each.task.family == 'put')
    assert sum(puts.values()) >= 2 and max(puts.values()) <= 2
    assert all(each.done for each in told if each.task.family == 'put')


def test_a_scene_that_changes_by_itself_ends_the_task_unjudged(stage):
    play = stage()
    play.director.add_moment(play.moment())
    play.reset()
    play.time += 1
    play.director.add_moment(play.moment())
    assert play.director.told[0].done is None and play.director.current is None


def test_the_same_seed_tells_the_same_tasks(stage):
    assert [t.task for t in stage(follows=False).run(2)] == [
        t.task for t in stage(follows=False).run(2)
    ]


def test_a_question_is_asked_every_few_seconds_with_its_true_answer(stage):
    director = (play := stage(follows=False)).director
    play.run(2)
    gaps = np.diff([question.stamp for question in director.questions])
    assert len(gaps) >= 3 and np.abs(gaps - ASK_EVERY).max() < 2.1e8
    question = director.questions[0]
    assert question.is_right(f' {question.truth}') and not question.is_right('a banana')


def test_the_task_in_force_is_unknown_just_after_it_was_told(stage):
    play = stage(follows=False)
    first = play.run(1)[0]
    at = {
        round(offset, 2): TrueMoment(first.stamp + round(offset * SECOND), SEED, None, None, None)
        for offset in (-0.1, 0.05, 0.2)
    }
    task_at = play.director.task_at
    assert [task_at(at[offset]) for offset in at] == [None, None, first.task]
    assert task_at(TrueMoment(at[0.2].stamp, SEED + 1, None, None, None)) is None


def test_a_closed_director_finishes_the_task_in_force_and_gives_no_other(stage):
    played = stage()
    played.run(1)
    while played.director.current is None:
        played.step()
    played.director.close()
    assert not played.director.is_finished
    played.run(2)
    assert played.director.judged[-1].done and not played.director.is_finished
    while not played.director.is_finished:
        assert played.time < 60.0
        played.step()
    assert len(played.director.told) == 2 and played.director.told[-1].reported
