"""After SIGKILL during a mission, a capsule resumes streams, plan and mission.

Memory is stored on disk and keeps its present content.
"""

import signal

import pytest
from kill_suite import (
    LYING,
    PATIENCE,
    STEP,
    TRUTH,
    Caller,
    Starter,
    Truth,
    said,
    snapshot_amid_speech,
)
from memory_suite import done, parameters, segments, texts
from rclpy.action import ActionClient

from embodied_kv.action import Mission
from embodied_kv.capsule.disk import Disk
from embodied_kv.model.planner_prompts import mission_question
from embodied_kv.srv import Ask, CapsuleRestore, CapsuleSnapshot, MemoryPlan

QUESTION = 'when is tea drunk?'
NOTES = (
    ('tea', 'note', 'tea is drunk at five'),
    ('cup', 'note', 'a cup breaks easily'),
)
BLUE = 'put everything blue into the green bin, then say where the red cube is'
PUT_BLUE = 'put the blue cylinder into the green bin'


@pytest.fixture
def start(robot, tmp_path):
    """Return a starter of the suite, whose planner has random weights.

    A stand-in plans the mission.
    """
    starter = Starter(robot, tmp_path, parameters(tmp_path))
    yield starter
    starter.close()


@pytest.fixture
def start_planning(robot, tmp_path):
    """Return a starter of the suite with the planner of the package."""
    memory = dict(
        storage_directory=str(tmp_path / 'memory'), world_step_seconds=0.0, precompute=False
    ) | dict(reuse_method='keep')  # with 'full' the planner does not answer this mission
    starter = Starter(robot, tmp_path, memory, asked=TRUTH[1:])
    yield starter
    starter.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_of_a_robot_goes_on_after_a_kill(robot, start, tmp_path):
    truth, process = Truth(robot), start()
    folder = tmp_path / 'capsules' / robot.namespace.strip('/')
    client = ActionClient(robot.node, Mission, 'mission')
    robot.until(client.server_is_ready, timeout=PATIENCE)
    client.send_goal_async(Mission.Goal(mission='tidy up'))
    robot.until(lambda: truth.heard and truth.heard[-1].step == STEP, timeout=PATIENCE)
    call = Caller(
        robot,
        (MemoryPlan, 'memory/plan'),
        (Ask, 'language/ask'),
        (CapsuleSnapshot, 'capsule/snapshot'),
        (CapsuleRestore, 'capsule/restore'),
    )
    call.ready()
    call(MemoryPlan, question='what was done?')
    done(robot, 'upsert', segments=segments(*NOTES))
    planned = done(robot, 'plan', question=QUESTION)
    name, words = snapshot_amid_speech(robot, call, folder)
    known = texts(robot)
    done(robot, 'upsert', segments=segments(('mug', 'object', 'mug: on the plate')))
    process.send_signal(signal.SIGKILL)
    process.wait()
    truth.heard.clear()
    robot.texts.clear()

    start()
    call.ready()
    back = call(CapsuleRestore, name=name)
    assert back.depth in ('actor', 'planner') and len(back.streams) >= 2, back.message
    assert "'mug: on the plate' is new" in back.message
    robot.until(lambda: truth.heard and truth.heard[-1].step == STEP, timeout=PATIENCE)
    assert truth.heard[-1].running and truth.heard[-1].mission == 'tidy up'
    spoken = said(robot, set(back.streams))  # includes an open question of the arm
    for query, (before, *ending) in words.items():
        text, tokens, reason = spoken[query]
        assert before.endswith(text) and [tokens, reason] == ending
    now = texts(robot)
    assert known.items() <= now.items() and 'mug' in now, 'memory is that of now'
    for id in now.keys() - known.keys():
        done(robot, 'remove', id=id)
    again = done(robot, 'plan', question=QUESTION)
    assert (again.text, again.tokens, again.units_computed) == (planned.text, planned.tokens, 0)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_step_is_told_again_after_a_kill_though_nobody_took_a_capsule(robot, start, tmp_path):
    truth, process = Truth(robot), start()
    folder = tmp_path / 'capsules' / robot.namespace.strip('/')
    client = ActionClient(robot.node, Mission, 'mission')
    robot.until(client.server_is_ready, timeout=PATIENCE)
    client.send_goal_async(Mission.Goal(mission='tidy up'))
    robot.until(lambda: Disk(folder).names(), timeout=PATIENCE)
    process.send_signal(signal.SIGKILL)
    process.wait()
    truth.heard.clear()

    start()
    call = Caller(robot, (CapsuleRestore, 'capsule/restore'))
    call.ready()
    (name,) = Disk(folder).names()
    back = call(CapsuleRestore, name=name)
    assert name == 'mission-boundary-1' and back.depth in ('actor', 'planner'), back.message
    robot.until(lambda: truth.heard and truth.heard[-1].step == STEP, timeout=PATIENCE)
    assert truth.heard[-1].running and truth.heard[-1].mission == 'tidy up'


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_the_packages_planner_plans_after_a_kill_is_the_same_token_for_token(
    robot, start_planning, tmp_path
):
    truth, process = Truth(robot), start_planning()
    call = Caller(
        robot,
        (MemoryPlan, 'memory/plan'),
        (CapsuleSnapshot, 'capsule/snapshot'),
        (CapsuleRestore, 'capsule/restore'),
    )
    call.ready()
    facts = [(fact.id, fact.kind, fact.text) for fact in LYING.facts()]
    done(robot, 'upsert', segments=segments(*facts))
    client = ActionClient(robot.node, Mission, 'mission')
    robot.until(client.server_is_ready, timeout=PATIENCE)
    client.send_goal_async(Mission.Goal(mission=BLUE))
    robot.until(lambda: truth.heard and truth.heard[-1].step == PUT_BLUE, timeout=PATIENCE)
    asked = [mission_question(BLUE, part) for part in (1, 2, 3)]
    planned = [done(robot, 'plan', question=question) for question in asked]
    assert planned[0].text == PUT_BLUE and planned[1].text.startswith('say: ')
    name = call(CapsuleSnapshot, name='home', tier='disk').name
    known = texts(robot)
    process.send_signal(signal.SIGKILL)
    process.wait()
    truth.heard.clear()

    start_planning()
    call.ready()
    call(CapsuleRestore, name=name)
    robot.until(lambda: truth.heard and truth.heard[-1].step == PUT_BLUE, timeout=PATIENCE)
    assert truth.heard[-1].running and truth.heard[-1].mission == BLUE
    assert texts(robot) == known
    for question, before in zip(asked, planned, strict=True):
        again = done(robot, 'plan', question=question)
        assert (again.text, again.tokens, again.units_computed) == (before.text, before.tokens, 0)
