"""Chunks continue in every control period while plans are made without a pause."""

import threading
import time

from memory_suite import QUESTION, parameters, segments

from embodied_kv.msg import ActionChunk
from embodied_kv.nodes.action import Action
from embodied_kv.nodes.common import executable
from embodied_kv.nodes.memory import Memory
from embodied_kv.nodes.perception import Perception
from embodied_kv.srv import MemoryPlan, MemoryUpsert

LONG = 2.4  # s, twelve control periods


def fresh_chunks(robot):
    """Return the number of fresh chunks within LONG seconds."""
    robot.chunks.clear()
    until = time.monotonic() + LONG
    robot.until(lambda: time.monotonic() > until)
    return sum(chunk.source == ActionChunk.FRESH for chunk in robot.chunks)


def test_plans_cost_no_chunk(robot, tmp_path):
    given = {'engine.time_budget': False, **parameters(tmp_path, precompute=True)}
    *_, memory = robot.up(Perception, Action, Memory, **given)
    assert memory.may_wait
    robot.executor.remove_node(memory)
    stopping, plans = [], []
    thread = threading.Thread(target=executable.serve, args=([memory], stopping))
    thread.start()
    try:
        upsert = robot.node.create_client(MemoryUpsert, 'memory/upsert')
        plan = robot.node.create_client(MemoryPlan, 'memory/plan')
        assert upsert.wait_for_service(60.0) and plan.wait_for_service(60.0)
        table = segments(*((f'cup {i}', 'object', f'cup {i}: on table {i}') for i in range(12)))
        future = upsert.call_async(MemoryUpsert.Request(segments=table))
        robot.until(future.done)
        robot.until(lambda: any(c.source == ActionChunk.FRESH for c in robot.chunks))
        before = fresh_chunks(robot)

        def ask(answered=None):
            if answered is not None:
                plans.append(answered.result())
            if not stopping:
                plan.call_async(MemoryPlan.Request(question=QUESTION)).add_done_callback(ask)

        ask()
        meanwhile = fresh_chunks(robot)
        robot.until(lambda: plans)
    finally:
        stopping.append(0)
        thread.join()
    assert all(made.success for made in plans), [made.message for made in plans]
    assert len({made.text for made in plans}) == 1
    assert meanwhile >= before / 3 >= 1  # a third is enough on a busy machine
