"""Executables as processes: in parallel, alone, refused, killed, and ended by signals."""

import signal

import pytest

from benchmarks.watchdog.stand_ins import Process
from embodied_kv.msg import ActionChunk

WAIT = 600  # s; on an idle machine it takes seconds
PARAMETERS = (
    'armed:=true',
    'resume_within:=3600.0',  # an arm that waits on a busy machine is not disarmed
    'contract:=tabletop',
    'preset:=tiny',
    'checkpoint:=random',
    'control_frequency:=5.0',
    'prompt_interval_frames:=1',
    'max_tokens:=8',
    'instruction:=reach',
    "capsule_directory:=''",
)
SUITES = {
    '/left': ('robot',),
    '/right': ('robot',),
    '/acting': ('action',),
    '/speaking': ('language',),
}


def start(name, namespace):
    """Start an executable of the suite in a namespace."""
    given = [word for p in PARAMETERS for word in ('-p', p)]
    words = ('--ros-args', *given, '-r', f'__ns:={namespace}')
    return Process(f'embodied_kv.nodes.{name}', *words)


def end(process, number):
    """Send a signal to a process; return its exit status."""
    process.signal(number)
    return process.wait(WAIT)


@pytest.fixture(scope='module')
def processes(ros):
    started = {
        (namespace, name): start(name, namespace)
        for namespace, names in SUITES.items()
        for name in names
    }
    yield started
    for process in started.values():
        process.close()


@pytest.fixture(scope='module')
def stand_ins(robots_of_module):
    return {namespace: robots_of_module(namespace) for namespace in SUITES}


def acts(robot):
    """Wait until a fresh chunk is published."""
    robot.chunks.clear()
    robot.until(lambda: any(c.source == ActionChunk.FRESH for c in robot.chunks), timeout=WAIT)


def test_two_suites_run_side_by_side(processes, stand_ins):
    acts(stand_ins['/left'])
    stand_ins['/right'].spin(0.2)
    assert not any(c.source == ActionChunk.FRESH for c in stand_ins['/right'].chunks)
    acts(stand_ins['/right'])
    stand_ins['/left'].until(lambda: stand_ins['/left'].texts, timeout=WAIT)


def test_a_second_robot_on_a_namespace_is_refused(processes, stand_ins):
    acts(stand_ins['/left'])
    second = processes['/left', 'second'] = start('robot', '/left')
    assert second.wait(WAIT) == 1
    names = 'action, language, memory, mission, perception, recorder, session'
    assert f'namespace /left must have one {names} (got a second)' in second.text
    assert 'Traceback' not in second.text
    acts(stand_ins['/left'])


def test_the_executables_action_and_language_bring_their_own_frames(processes, stand_ins):
    acting, speaking = stand_ins['/acting'], stand_ins['/speaking']
    acts(acting)
    acting.until(lambda: acting.handles, timeout=WAIT)
    speaking.until(lambda: speaking.texts and speaking.handles, timeout=WAIT)
    assert not acting.texts and not speaking.chunks


def test_a_killed_process_harms_no_other(processes, stand_ins):
    acts(stand_ins['/acting'])
    assert end(processes['/acting', 'action'], signal.SIGKILL) == -signal.SIGKILL
    stand_ins['/speaking'].texts.clear()
    stand_ins['/speaking'].until(lambda: stand_ins['/speaking'].texts, timeout=WAIT)
    acts(stand_ins['/left'])


@pytest.mark.parametrize(
    'who, number',
    [
        (('/left', 'robot'), signal.SIGINT),
        (('/right', 'robot'), signal.SIGTERM),
        (('/speaking', 'language'), signal.SIGINT),
    ],
)
def test_a_signal_ends_a_process_cleanly(processes, stand_ins, who, number):
    robot = stand_ins[who[0]]
    robot.more(robot.texts, 1)
    assert end(processes[who], number) == 0
    said = processes[who].text
    assert 'Traceback' not in said and 'leaked' not in said
    if who[1] == 'robot':
        robot.until(lambda: robot.chunks[-1].source == ActionChunk.STOP, show=False)
