"""The memory client reports why there is no answer, and does not wait for one."""

import time

import pytest
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.task import Future

from embodied_kv.demo.memory_client import MemoryClient
from embodied_kv.msg import MemorySegment
from embodied_kv.srv import MemoryPlan, MemoryQuery, MemoryRemove

pytestmark = pytest.mark.usefixtures('ros')
QUESTION = 'Where is the red cube?'


def asked(plan):
    """Return a client whose requests have been answered."""
    recall = MemoryClient(Node('recall'))
    recall.ask(QUESTION, ('in the bin', 'on the left'))
    recall._asked = [Future(), Future()]
    assert not recall.is_over and recall.line == ''
    for future, response in zip(recall._asked, (plan, MemoryQuery.Response()), strict=True):
        future.set_result(response)
    return recall


def test_without_memory_nothing_is_waited_for():
    recall = MemoryClient(Node('recall'))
    recall.ask(QUESTION, ('in the bin',))
    assert recall.is_over and recall.line == ''
    assert recall.report() == {'question': QUESTION, 'refused': 'the memory node does not answer'}


def test_where_nothing_was_asked_nothing_is_blamed_on_memory():
    recall = MemoryClient(Node('recall'))
    assert recall.is_over and recall.line == ''
    assert recall.report() == {'question': '', 'refused': 'the last scene had no task'}


def test_a_refusal_is_passed_on():
    recall = asked(MemoryPlan.Response(success=False, message='too long'))
    assert recall.report()['refused'] == 'too long' and recall.line == ''


def test_an_answer_stands_behind_its_question():
    recall = asked(MemoryPlan.Response(success=True, text='in the bin', computed=[4, 2]))
    assert recall.line == f'memory: {QUESTION} in the bin'
    assert recall.report()['computed'] == 3.0


@pytest.mark.parametrize(
    ('text', 'right'), [('in the bin', True), (' on the left', True), ('on the plate', False)]
)
def test_an_answer_is_compared_with_what_is_true(text, right):
    found = asked(MemoryPlan.Response(success=True, text=text)).report()
    assert (found['truth'], found['right']) == ('in the bin', right)


def test_clear_removes_all_segments():
    node, removed = Node('memory'), []

    def query(request, response):
        response.segments = [MemorySegment(id='red cube'), MemorySegment(id='blue bin')]
        return response

    def remove(request, response):
        removed.append(request.id)
        return response

    node.create_service(MemoryQuery, 'memory/query', query)
    node.create_service(MemoryRemove, 'memory/remove', remove)
    client = MemoryClient(node)
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    end = time.monotonic() + 60.0
    while not client.is_available and time.monotonic() < end:
        executor.spin_once(timeout_sec=0.1)
    client.clear()
    while len(removed) < 2 and time.monotonic() < end:
        executor.spin_once(timeout_sec=0.1)
    executor.shutdown()
    assert removed == ['red cube', 'blue bin']
