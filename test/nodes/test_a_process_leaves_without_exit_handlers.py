"""A process ends at once, with its output and exit status, but without running exit handlers."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys, threading, time
from embodied_kv.nodes.common.process import leave
atexit.register(print, 'the exit handlers ran')
threading.Thread(target=time.sleep, args=(3600,)).start()
print('the last line', end='')
print('the last error', end='', file=sys.stderr)
leave({code})
"""
NODE = """
import atexit, os, signal
from embodied_kv.nodes.common import executable
from embodied_kv.nodes.recorder import Recorder

class Told(Recorder):
    def __init__(self, **options):
        super().__init__(**options)
        os.kill(os.getpid(), signal.SIGINT)

atexit.register(print, 'the exit handlers ran')
executable.run(told=Told)
"""


@pytest.mark.parametrize('code', [0, 3])
def test_a_process_ends_with_its_status_and_all_of_its_output(code):
    words = [sys.executable, '-c', PROGRAM.format(code=code)]
    process = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert process.returncode == code
    assert (process.stdout, process.stderr) == ('the last line', 'the last error')


def test_an_executable_that_a_signal_ends_runs_no_exit_handlers(ros, tmp_path):
    words = ['--ros-args', '-p', 'contract:=tabletop', '-p', f'capsule_directory:={tmp_path}']
    environment = {**os.environ, 'OMP_NUM_THREADS': '1'}
    process = subprocess.run(
        [sys.executable, '-c', NODE, *words],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert (process.returncode, process.stdout) == (0, ''), process.stderr
