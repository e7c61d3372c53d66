"""A process that was told to end does so at once: Python collects no garbage first."""

import os
import subprocess
import sys

CODE = """
import atexit, gc, os, signal
from embodied_kv.nodes.common import executable
from embodied_kv.nodes.recorder import Recorder

class Told(Recorder):
    def __init__(self, **options):
        super().__init__(**options)
        os.kill(os.getpid(), signal.SIGINT)

atexit.register(lambda: print('frozen' if gc.get_freeze_count() > 1000 else 'to be collected'))
executable.run(Told)
"""


def test_nothing_is_left_to_collect_when_a_signal_ends_it(ros, tmp_path):
    ran = subprocess.run(
        [
            sys.executable,
            '-c',
            CODE,
            '--ros-args',
            '-p',
            'contract:=tabletop',
            '-p',
            f'folder:={tmp_path}',
        ],
        capture_output=True,
        text=True,
        env={**os.environ, 'OMP_NUM_THREADS': '1'},
        check=False,
    )
    assert (ran.returncode, ran.stdout.strip()) == (0, 'frozen'), ran.stderr
