"""Fleets in virtual time: sessions, dispatcher and engine are real, durations are given."""

import math

import numpy as np
import pytest

from benchmarks.fleet import trace_reader
from benchmarks.fleet.serving.lockstep import Order, run
from benchmarks.fleet.serving.robot import SET_POINTS, Habits
from benchmarks.fleet.workload import recorded_jobs
from embodied_kv.config import TINY
from embodied_kv.engine_config import EngineConfig
from embodied_kv.fleet.profile import Profile
from embodied_kv.model.policy import Policy
from embodied_kv.serving.engine_runner import EngineRunner

H, DT, JUDGED = 4, 0.1, 10
HABITS = Habits(f'static:{H}', DT)
QUICK, SLOW = 0.05, 0.2  # s per chunk: ready before, and after, the H actions end


class Played:
    """A world in which task n is done once n of its chunks have been executed."""

    instruction = 'task {task}'

    def __init__(self):
        self.scenes, self.tasks = [], {}

    def begin(self, robot, task):
        self.scenes.append((robot, task))
        self.tasks[robot] = dict(left=task, ends=math.inf, task=task)
        return self.instruction.format(task=task)

    def look(self, robot):
        rng = np.random.default_rng(self.tasks[robot]['task'])
        size = TINY.vision.image_size
        images = {view: rng.integers(0, 256, (size, size, 3), np.uint8) for view in TINY.views}
        return images, np.full(TINY.state_dim, 0.1)

    def follow(self, robot, actions, began):
        state = self.tasks[robot]
        state['left'] -= 1
        if not state['left']:
            state['ends'] = began + len(actions) * round(DT * SET_POINTS)

    def advance(self, robot, moment):
        return moment % JUDGED == 0 and moment >= self.tasks[robot]['ends'], False


@pytest.fixture(scope='module')
def engine():
    config = EngineConfig(max_batch_robots=2, time_budget=False)
    with EngineRunner(Policy.random(TINY), config) as local:
        yield local


@pytest.fixture
def fleet(engine):
    """Return a function that runs a fleet.

    It takes the duration of a chunk (s), the tasks of each robot, and further fields of the order.
    """

    def run_fleet(seconds, tasks, **more):
        profile = Profile('e', (1, 2), (seconds, 1.2 * seconds), 9)
        starts = [0.013 * robot for robot in range(len(tasks))]
        world, ended = Played(), []
        order = Order(profile, HABITS, starts, tasks, **more)
        result = run(engine, order, world, lambda: ended.append(None))
        assert len(ended) == len(result['tasks'])
        engine.engine.kv.check_integrity()
        return result, world

    return run_fleet


def alone(seconds, chunks):
    """Return the latency of a task of so many chunks on an idle engine: the first, then cycles."""
    cycle = max((H - 1) * DT, (H - 2) * DT + seconds)  # requested DT before the H actions end
    ends = seconds + H * DT + (chunks - 1) * cycle
    return math.ceil(ends / DT - 1e-6) * DT  # judged every DT


@pytest.mark.parametrize('seconds', [QUICK, SLOW])
@pytest.mark.parametrize('chunks', [1, 3])
def test_latency_alone_is_the_first_chunk_then_its_cycles(fleet, seconds, chunks):
    result, _ = fleet(seconds, [[chunks]])
    (task,) = result['tasks']
    assert task['seconds'] == pytest.approx(alone(seconds, chunks))
    assert task['still'] == pytest.approx(seconds + (chunks - 1) * max(0.0, seconds - DT))
    assert task['success'] and task['horizons'][:chunks] == [H] * chunks
    assert result['charged'] == pytest.approx(seconds * result['batches'])
    assert result['batches'] == len(result['decisions'])


def test_two_runs_are_equal_to_the_digit_and_nobody_is_faster_than_alone(fleet):
    tasks = [[2, 5], [3, 4], [6, 1], [7]]
    results = {}
    for scheduler in ('fifo', 'kairos', 'kairos'):
        result, world = fleet(SLOW, tasks, scheduler=scheduler)
        # The schedule does not change which scenes each robot meets.
        for robot, own in enumerate(tasks):
            met = [task for number, task in world.scenes if number == robot]
            assert met == [own[i % len(own)] for i in range(len(met))]
        if scheduler in results:
            for key in ('tasks', 'charged', 'span', 'batches', 'served'):
                assert result[key] == results[scheduler][key]
        results[scheduler] = result
    for result in results.values():
        floors = [alone(SLOW, task['task']) for task in result['tasks']]
        latencies = [task['seconds'] for task in result['tasks']]
        assert result['served'] > result['batches']
        assert all(own > floor - 1e-9 for own, floor in zip(latencies, floors, strict=True))
        assert sum(latencies) > 1.1 * sum(floors)


def test_a_robot_goes_on_until_all_have_done_their_tasks(fleet):
    result, world = fleet(QUICK, [[1], [9]])
    assert sorted(task['task'] for task in result['tasks']) == [1, 9]
    first = [task for robot, task in world.scenes if robot == 0]
    assert len(first) > 4 and set(first) == {1}


def test_one_robot_is_served_alike_by_all_schedulers(fleet):
    found = [fleet(SLOW, [[2, 3]], scheduler=name)[0] for name in ('fifo', 'autellix', 'kairos')]
    assert found[0]['tasks'] == found[1]['tasks'] == found[2]['tasks']


def test_what_is_executed_can_be_replayed(fleet, tmp_path):
    path = tmp_path / 'trace.jsonl'
    fleet(QUICK, [[3], [4]], trace=str(path))
    period, rounds = trace_reader.read(path)
    jobs = recorded_jobs(period, rounds)
    assert (period, len(jobs)) == (TINY.action_dt, 2)
    assert all(0.99 * QUICK < record.inference < 1.21 * QUICK for record in rounds)
    assert {horizon for job in jobs for horizon in job.horizons} == {H - 1, H}


def test_tasks_that_arrive_wait_for_their_robot_and_are_done_once(fleet):
    """Task 3 finds its robot busy, task 1 finds it idle; both latencies count from arrival."""
    result, world = fleet(QUICK, [[2, 3, 1], [4]], arrivals=[[0.5, 0.6, 30.0], [1.0]])
    seconds = {task['task']: task['seconds'] for task in result['tasks']}
    assert seconds[2] == pytest.approx(alone(QUICK, 2), abs=0.011)
    assert seconds[3] == pytest.approx(seconds[2] - 0.1 + alone(QUICK, 3), abs=0.011)
    assert seconds[1] == pytest.approx(alone(QUICK, 1), abs=0.011)
    assert sorted(world.scenes) == [(0, 1), (0, 2), (0, 3), (1, 4)]


def test_a_task_may_have_a_horizon_of_its_own(fleet):
    result, _ = fleet(QUICK, [[2, 3]], horizons={3: 'static:2'})
    horizons = {task['task']: set(task['horizons']) for task in result['tasks']}
    assert horizons == {2: {H}, 3: {2}}


def test_tasks_with_the_same_instruction_are_different_tasks(fleet, monkeypatch, tmp_path):
    monkeypatch.setattr(Played, 'instruction', 'go on')
    result, _ = fleet(QUICK, [[3, 3]], trace=str(tmp_path / 'trace.jsonl'))
    first, second = result['tasks']
    assert second['seconds'] == pytest.approx(first['seconds'])
    assert len(recorded_jobs(*trace_reader.read(tmp_path / 'trace.jsonl'))) == 2


def test_an_error_of_the_engine_ends_the_run(fleet, engine, monkeypatch):
    def fail(*_):
        raise ValueError('the engine is broken')

    monkeypatch.setattr(engine.engine, 'prefill', fail)
    with pytest.raises(RuntimeError, match='engine errors|faults'):
        fleet(QUICK, [[1]])
