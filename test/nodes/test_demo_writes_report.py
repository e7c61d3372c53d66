"""A short `make demo` writes the report, pictures and film, and leaves no process behind."""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import cv2
import pytest
import yaml
from ament_index_python.packages import get_package_share_directory

from embodied_kv.demo.sim.table_memory import parse_task
from embodied_kv.demo.video import ENDING, HASTE, LONGEST, STANDING

PATIENCE = 240.0  # s


def demo(out, *arguments):
    """Run the demo in a new namespace; return the completed process."""
    namespace = f'demo_{uuid.uuid4().hex[:8]}'
    run = subprocess.run(
        [
            sys.executable,
            '-m',
            'embodied_kv.demo.demo',
            '--out',
            out,
            '--namespace',
            namespace,
        ]
        + [*map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert not processes_of(namespace)
    return run


def processes_of(namespace):
    """Return the command lines that contain a namespace."""
    found = []
    for process in filter(str.isdigit, os.listdir('/proc')):
        try:
            with open(f'/proc/{process}/cmdline', 'rb') as line:
                found.append(line.read())
        except OSError:
            continue  # it has ended
    return [line for line in found if namespace.encode() in line]


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    """Run the demo with the weights of the package, long enough for a task.

    Return the completed process and its folder.
    """
    out = tmp_path_factory.mktemp('demo')
    return demo(out, '--seconds', 15, '--mission', 20), out


def skip_unless_it_keeps_up(report):
    if report['counts']['fresh'] < 0.8 * report['counts']['commands']:
        pytest.skip('this machine does not keep up: too few commands were fresh')


@pytest.fixture
def report(run):
    return json.loads((run[1] / 'report.json').read_text())


def test_it_ends_well_and_shows_progress(run):
    assert run[0].returncode == 0, run[0].stderr
    assert 'prefill' in run[0].stdout
    assert 'tokens/s' in run[0].stdout
    assert 'tasks done' in run[0].stdout


def test_the_report_counts_what_happened(report):
    counts = report['counts']
    assert report['seconds'] >= 15
    assert counts['frames'] > 0
    sources = ('fresh', 'previous', 'hold', 'stop')
    assert counts['commands'] == sum(counts.get(source, 0) for source in sources)
    for work in ('prefill', 'denoise', 'age'):
        ms = report['ms'][work]
        assert 0 < ms['p50'] <= ms['p90'] <= ms['p99'] <= ms['max']
    assert report['kv']['rows'] == 16
    assert {'perception', 'action', 'language'} <= set(report['diagnostics'])
    assert report['machine']['cores'] >= 1


def test_memory_is_asked_at_the_end(report):
    skip_unless_it_keeps_up(report)  # else there was no text to remember
    memory = report['memory']
    assert memory['question'].startswith('Where is the ') and 'refused' not in memory
    assert memory['answer'] and memory['known']
    assert memory['method'] in ('keep', 'full')  # whichever costs less on this machine
    assert any(text.startswith('task ') for text in memory['known'])
    assert 0 < memory['computed'] <= memory['tokens'] and memory['first token ms'] > 0


def test_the_report_says_what_was_told_and_what_became_of_it(run, report):
    first = report['tasks'][0]
    assert first.keys() == {
        *('at', 'instruction', 'family', 'scene', 'done', 'wrong', 'replaced', 'seconds')
    }
    assert first['family'] == 'pick' and first['scene'] == 1_000_001
    assert -1 < first['at'] < 1.5  # s from the first command
    judged = [task for task in report['tasks'] if task['done'] is not None]
    done = sum(task['done'] for task in judged)
    replaced = sum(bool(task['replaced']) for task in judged)
    assert report['tasks done'] == {
        'done': done,
        'failed': len(judged) - done - replaced,
        'replaced': replaced,
        'told': len(judged),
    }


def test_it_closes_with_a_sentence_on_each_part(run, report):
    lines = run[0].stdout.splitlines()
    if 'refused' not in report['recall']:
        assert lines.pop(-2).startswith('recall   ')
    *_, tasks, words, timing, memory, mission, files = lines
    counted = report['tasks done']
    assert tasks.startswith(f'tasks    The robot did {counted["done"]} of {counted["told"]} ')
    assert words.startswith('words    ')
    assert timing.startswith('timing   ')
    assert f' of {report["counts"]["commands"]} commands missed' in timing
    assert memory.startswith('memory   ') and report['memory'].get('answer', '') in memory
    assert mission.startswith('mission  ')
    assert files == f'in {run[1]}: report.json, frames.png, demo.mp4'


def test_the_report_compares_what_was_said_with_the_truth(report):
    right = report['words right']
    assert right.keys() == {'subtask', 'narration', 'questions'}
    assert right['subtask']['exact'] <= right['subtask']['within one frame']
    for question in right['questions']:
        assert question.keys() == {'at', 'asked', 'answer', 'truth', 'right', 'refused'}
        assert question['asked'].endswith('?') and question['truth'] and not question['refused']
    skip_unless_it_keeps_up(report)  # else language has no idle time
    assert report['counts']['tokens'] > 0
    assert report['words'] and right['subtask']['of'] > 0
    assert any(question['answer'] for question in right['questions'])


def test_the_robot_does_a_task_and_speaks_of_it(report):
    skip_unless_it_keeps_up(report)
    assert report['weights'] == 'bundled tabletop'
    assert report['tasks done']['done'] >= 1
    subtask = report['words right']['subtask']
    assert subtask['exact'] > 0.5 * subtask['of']


@pytest.mark.slow
def test_random_weights_are_called_so(tmp_path):
    share = Path(get_package_share_directory('embodied_kv'))
    params = yaml.safe_load((share / 'config' / 'robot.yaml').read_text())
    params['/**']['ros__parameters']['checkpoint'] = 'random'
    (tmp_path / 'random.yaml').write_text(yaml.safe_dump(params))
    ended = demo(tmp_path / 'out', '--seconds', 2, '--params', tmp_path / 'random.yaml')
    assert ended.returncode == 0, ended.stderr
    assert 'weights random' in ended.stdout
    assert json.loads((tmp_path / 'out' / 'report.json').read_text())['weights'] == 'random'


def test_the_picture_is_full_of_frames(run):
    picture = cv2.imread(str(run[1] / 'frames.png'))
    assert picture.shape[0] > 300 and picture.shape[1] > 1500
    assert picture.std() > 30


def test_the_film_is_as_long_as_the_run_and_its_ending(run):
    film = cv2.VideoCapture(str(run[1] / 'demo.mp4'))
    seconds = film.get(cv2.CAP_PROP_FRAME_COUNT) / film.get(cv2.CAP_PROP_FPS)
    report = json.loads((run[1] / 'report.json').read_text())
    mission, recall = report['mission'], report['recall']
    extra = 0 if 'refused' in mission else mission['seconds'] / HASTE + STANDING
    extra += 0 if 'refused' in recall else recall['seconds'] + 2 * STANDING
    assert 13 + extra + ENDING < seconds < LONGEST + 1 + extra + ENDING


def test_a_mission_ends_it_or_why_there_was_none_is_said(report):
    mission = report['mission']
    if 'refused' in mission:
        assert mission['refused'].strip()
        return
    assert mission['told'] and mission['message'] and mission['truth']
    for step in mission['steps']:
        assert parse_task(step['instruction']) and step['done'] in (True, False)
    assert mission['right'] == (mission['said'][-1:] == [mission['truth']])


def test_a_kill_is_survived_or_why_there_was_none_is_said(report):
    recall = report['recall']
    if 'refused' in recall:
        assert recall['refused'].strip()
        return
    assert 0 < recall['stopped'] < PATIENCE and recall['done'] in (True, False)
    assert recall['told'].endswith('back where it was')


def test_no_episodes_are_refused(tmp_path):
    refused = demo(tmp_path / 'out', '--episodes', 0)
    assert refused.returncode == 2
    assert '--episodes must be at least 1' in refused.stderr


def test_a_process_that_ends_ends_the_demo_with_its_words(tmp_path):
    params = tmp_path / 'bad.yaml'
    params.write_text('/**:\n  ros__parameters:\n    image_size: 3\n')
    ended = demo(tmp_path / 'out', '--params', params)
    assert ended.returncode == 1
    assert 'process sim ended with status 1' in ended.stderr
    assert 'parameter image_size' in ended.stderr
