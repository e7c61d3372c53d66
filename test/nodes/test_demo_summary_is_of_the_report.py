"""The summary has sentences that a newcomer understands, with numbers from the report."""

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
    'recall': {'stopped': 6.4, 'told': 'put the red cube back where it was', 'done': True},
}


@pytest.fixture
def report():
    return copy.deepcopy(REPORT)


def test_a_good_run_is_six_sentences(report):
    assert summarize(report) == {
        'tasks': 'The robot did 3 of 3 tasks given in words.',
        'words': '17 of 20 subtasks and 9 of 10 narrations matched the frame; '
        '2 of 3 answers were right.',
        'timing': 'None of 203 commands missed its deadline; the slowest action followed its '
        'camera frame after 83 ms.',
        'memory': '“Where is the blue cube?” was answered from memory with “in the purple bin”, '
        'which is right.',
        'mission': '“put the red cube into the purple bin and then say what is in the purple bin” '
        'was carried out in 1 step. The robot said “the purple bin holds the red cube”, which is '
        'right.',
        'recall': 'After a kill and 6 s without a process, “put the red cube back where it was” '
        'was carried out.',
    }


def test_without_a_kill_there_is_no_sentence_on_it(report):
    report['recall'] = {'refused': 'the robot has no memory rows (engine.memory_rows)'}
    assert [*summarize(report)] == ['tasks', 'words', 'timing', 'memory', 'mission']


def test_a_mission_is_told_as_it_went(report):
    mission = report['mission']
    mission |= {'done': False, 'truth': 'the purple bin holds nothing', 'right': False}
    line = summarize(report)['mission']
    assert 'was not carried out in 1 step. ' in line
    assert line.endswith('which is wrong (right: “the purple bin holds nothing”).')
    mission |= {'said': [], 'message': 'it took too long', 'steps': [{}] * 2}
    line = summarize(report)['mission']
    assert line.endswith('was not carried out in 2 steps: it took too long.')
    report['mission'] = {'refused': 'the planner p was not trained for missions'}
    line = 'No mission was given: the planner p was not trained for missions.'
    assert summarize(report)['mission'] == line


def test_what_was_not_done_is_told_by_its_reason(report):
    lost = {'done': False, 'replaced': 'the red cube fell off the table'}
    report['tasks'] += [{'done': False, 'replaced': ''}, lost, {'done': None, 'replaced': ''}]
    report['tasks done'] = {'done': 3, 'failed': 1, 'replaced': 1, 'told': 5}
    assert summarize(report)['tasks'] == (
        'The robot did 3 of 5 tasks given in words; 1 task took too long; 1 became impossible '
        '(the red cube fell off the table); 1 more had not ended when the time was up.'
    )


def test_an_answer_that_never_came_is_not_called_wrong(report):
    report['words right']['questions'] += [{'right': None}] * 2
    line = summarize(report)['words']
    assert line.endswith('2 of 3 answers were right; 2 questions had no answer.')


def test_a_robot_without_idle_time_is_not_called_wrong(report):
    words = report['words right']
    words['subtask'] |= {'exact': 0, 'of': 0}
    words['narration'] |= {'exact': 0, 'of': 0}
    words['questions'] = [{'right': None}]
    line = 'The robot had no time to speak; 1 question had no answer.'
    assert summarize(report)['words'] == line


def test_random_weights_are_called_so(report):
    report['weights'] = 'random'
    assert summarize(report)['tasks'].endswith('The weights are random, so none was expected.')


def test_missed_deadlines_are_counted(report):
    report['counts'] |= {'deadlines missed': 7, 'fresh': 1}
    late = '7 of 203 commands missed their deadlines'
    line = f'{late}; the slowest action followed its camera frame after 83 ms.'
    assert summarize(report)['timing'] == line
    report['ms'] = {'age': {}}
    assert summarize(report)['timing'] == f'{late}.'


def test_a_false_memory_is_called_so(report):
    report['memory'] |= {'truth': 'on the table', 'right': False}
    line = summarize(report)['memory']
    assert line.endswith('with “in the purple bin”, which is wrong (right: “on the table”).')


def test_a_memory_that_does_not_answer_is_told(report):
    report['memory'] = {'question': '', 'refused': 'memory does not answer'}
    assert summarize(report)['memory'] == 'No answer: memory does not answer.'
