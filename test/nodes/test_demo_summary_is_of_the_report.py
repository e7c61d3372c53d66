"""Six lines that a newcomer understands, each number of them from the report."""

import copy

import pytest

from embodied_kv.demo.summary import summarize

REPORT = {
    'weights': 'bundled tabletop',
    'tasks done': {'done': 3, 'failed': 0, 'replaced': 0, 'told': 3},
    'tasks': [{'done': True, 'replaced': ''}] * 3,
    'words right': {
        'subtask': {'exact': 17, 'within one frame': 18, 'of': 20},
        'narration': {'exact': 9, 'within one frame': 9, 'of': 10},
        'questions': [{'right': True}, {'right': False}, {'right': True}],
    },
    'counts': {'frames': 202, 'commands': 203, 'fresh': 202, 'deadlines missed': 0},
    'ms': {'age': {'max': 83.4}},
    'memory': {
        'question': 'Where is the blue cube?',
        'answer': 'in the purple bin',
        'truth': 'in the purple bin',
        'right': True,
    },
    'mission': {
        'told': 'put the red cube into the purple bin and then say what is in the purple bin',
        'steps': [{}],
        'message': '2 steps',
        'done': True,
        'said': ['the purple bin holds the red cube'],
        'truth': 'the purple bin holds the red cube',
        'right': True,
    },
}


@pytest.fixture
def report():
    return copy.deepcopy(REPORT)


def test_a_good_run_is_six_lines(report):
    assert summarize(report) == {
        'asked': '3 tasks in words, 3 questions',
        'done': '3 of 3 tasks',
        'said': '17 of 20 subtasks and 9 of 10 narrations true of their frame, '
        '2 of 3 answers right',
        'on time': '202 frames, no deadline missed (slowest of 202 actions 83 ms after its frame)',
        'remembered': '“Where is the blue cube?” “in the purple bin” (true)',
        'mission': '“put the red cube into the purple bin and then say what is in the purple bin” '
        'done in 1 step, said “the purple bin holds the red cube” (true)',
    }


def test_a_mission_is_told_as_it_went(report):
    mission = report['mission']
    mission |= {'done': False, 'truth': 'the purple bin holds nothing', 'right': False}
    line = summarize(report)['mission']
    assert 'not done in 1 step' in line and line.endswith(
        '(not true: the purple bin holds nothing)'
    )
    mission |= {'said': [], 'message': 'it took too long', 'steps': [{}] * 2}
    assert summarize(report)['mission'].endswith('not done in 2 steps: it took too long')
    report['mission'] = {'refused': 'the planner p was not taught missions'}
    assert summarize(report)['mission'] == 'none: the planner p was not taught missions'


def test_what_was_not_done_is_told_by_its_reason(report):
    lost = {'done': False, 'replaced': 'the red cube fell off the table'}
    report['tasks'] += [{'done': False, 'replaced': ''}, lost, {'done': None, 'replaced': ''}]
    report['tasks done'] = {'done': 3, 'failed': 1, 'replaced': 1, 'told': 5}
    assert summarize(report)['done'] == (
        '3 of 5 tasks, 1 not done in time, 1 replaced: the red cube fell off the table, '
        '1 more not over at the end'
    )


def test_an_answer_that_never_came_is_not_called_wrong(report):
    report['words right']['questions'] += [{'right': None}] * 2
    assert summarize(report)['said'].endswith('2 of 3 answers right, 2 questions not answered')


def test_random_weights_are_called_so(report):
    report['weights'] = 'random'
    assert summarize(report)['done'].endswith('the weights are random, none is expected')


def test_missed_deadlines_are_counted(report):
    report['counts'] |= {'deadlines missed': 7, 'fresh': 1}
    line = '202 frames, 7 of 203 deadlines missed (slowest of 1 action 83 ms after its frame)'
    assert summarize(report)['on time'] == line
    report['ms'] = {'age': {}}
    assert summarize(report)['on time'] == '202 frames, 7 of 203 deadlines missed'


def test_a_false_memory_is_called_so(report):
    report['memory'] |= {'truth': 'on the table', 'right': False}
    assert summarize(report)['remembered'].endswith('“in the purple bin” (not true: on the table)')


def test_a_memory_that_does_not_answer_is_told(report):
    report['memory'] = {'question': '', 'refused': 'memory does not answer'}
    assert summarize(report)['remembered'] == 'nothing: memory does not answer'
