"""`leave` ends a process at once: with its output and its status, without exit handlers."""

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys, threading, time
from embodied_kv.nodes.common.leaving import leave
atexit.register(print, 'the exit handlers ran')
threading.Thread(target=time.sleep, args=(3600,)).start()
print('the last line', end='')
print('the last error', end='', file=sys.stderr)
leave({code})
"""


@pytest.mark.parametrize('code', [0, 3])
def test_a_process_ends_with_its_status_and_all_of_its_output(code):
    words = [sys.executable, '-c', PROGRAM.format(code=code)]
    process = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert process.returncode == code
    assert (process.stdout, process.stderr) == ('the last line', 'the last error')
