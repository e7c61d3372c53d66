"""Under a full KV budget, plans, capsules and questions are evicted; no frame is refused."""

import math

import pytest
from capsule_suite import engine, silent
from memory_suite import QUESTION, TABLE, done, parameters, segments

from embodied_kv.kv.eviction import PATH
from embodied_kv.nodes.action import Action
from embodied_kv.nodes.language import Language
from embodied_kv.nodes.memory import Memory
from embodied_kv.nodes.perception import Perception
from embodied_kv.nodes.session import Session
from embodied_kv.srv import Ask, CapsuleSnapshot, KvStats

ROUNDS = 6


def test_all_go_on_under_a_mib(robot, tmp_path):
    given = {
        'prompt_interval_frames': 0,
        'engine.time_budget': False,
        'engine.kv_budget_mib': 1,
        'engine.decode_tokens': 1200,
        **parameters(tmp_path),
    }
    perception, *_ = robot.up(Perception, Action, Language, Session, Memory, **given)
    robot.until(lambda: robot.chunks)
    silent()  # each question keeps its KV
    kv_budget = engine().kv.budget
    done(robot, 'upsert', segments=segments(*TABLE))
    for number in range(ROUNDS):
        asked = robot.call(Ask, 'language/ask', question='what is red?', max_tokens=1100)
        assert asked.success, asked.message
        done(robot, 'plan', question=QUESTION)
        taken = robot.call(CapsuleSnapshot, 'capsule/snapshot', name=f'after_{number}')
        assert taken.success, taken.message
        robot.more(robot.handles)
        engine().kv.check_integrity()
    assert kv_budget.evictions['streams'] > 0
    assert not perception.warning_counts['prefill']  # for any reason
    said = robot.call(KvStats, 'kv/stats').message
    assert 'of 1.00 MiB in use' in said and 'capsules' in said and 'planner row' in said


def test_a_policy_of_ones_own_is_in_force(robot, tmp_path):
    path = tmp_path / 'policy.yaml'
    path.write_text(PATH.read_text().replace('streams: 0.5', 'streams: 3.0'))
    robot.up(Perception, **{'engine.kv_eviction_file': str(path)})
    kv_budget = engine().kv.budget
    assert kv_budget.capacity == math.inf
    assert kv_budget.worth(engine().kv.streams, 2**20, 0.0) == pytest.approx(3.0 / 2**20)


def test_a_policy_that_is_none_is_refused_at_configure(robot, tmp_path, capfd):
    path = tmp_path / 'policy.yaml'
    path.write_text(PATH.read_text().replace('[action]', '[actions]'))
    node = robot.bring(Perception, **{'engine.kv_eviction_file': str(path)})
    assert node.trigger_configure().name == 'FAILURE'
    complaint = capfd.readouterr().err
    assert f'configure failed: {path} states no order of eviction' in complaint
    assert 'consumers, of action, language' in complaint and 'Traceback' not in complaint
