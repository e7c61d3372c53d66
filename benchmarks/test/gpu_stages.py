"""Tiny GPU stages, each a module in its own folder, and the command that runs them."""

import os
import signal
import time
from contextlib import suppress

from benchmarks.gpu.__main__ import PRINTED, SUMMARY, main
from benchmarks.gpu.results import Results, machine
from benchmarks.gpu.stages import Stage

MODULES = {
    'good': 'print(\'words\'); print(\'{"rows": [{"n": 3}]}\')',
    'bad': 'import sys; print(\'{"rows": [{"n": 1}]}\'); raise SystemError(\'illegal access\')',
    'unequal': 'print(\'{"ok": false, "rows": [{"n": 4}]}\')',
    'silent': 'pass',
    'crash': 'import os, signal; print("words", flush=True); os.kill(os.getpid(), signal.SIGSEGV)',
    'refuse': "import sys; sys.exit('no' if 0 else 2)",
    'lacks': 'raise ModuleNotFoundError("No module named \'mujoco\'")',
    'copies': 'import shutil; shutil.copy("../results.json", "seen")',
    'broken': 'import embodied_kv.nothing',
    'hang': (
        'import os, subprocess, sys, time\n'
        'print(\'{"rows": [{"n": 2}]}\', flush=True)\n'
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "open('child', 'w').write(str(child.pid))\n"
        'time.sleep(60)'
    ),
}


def stage(name, minutes=1.0, **more):
    """Return a stage that runs the module of that name."""

    def say(found):
        return f'n is {found["rows"][0]["n"]}'

    return Stage(name, f'Is {name} good?', f'stage_{name}', (), (), minutes, say, **more)


class Programme:
    """Runs the command with some of these stages and writes to a folder."""

    def __init__(self, folder, monkeypatch):
        self.folder, modules = folder / 'out', folder / 'modules'
        modules.mkdir()
        for name, code in MODULES.items():
            (modules / f'stage_{name}.py').write_text(f'open({name!r}, "a").write("x")\n{code}\n')
        monkeypatch.setenv('PYTHONPATH', str(modules))

    def __call__(self, *stages, words=()):
        """Run the stages and return the exit status."""
        made = [stage(s) if isinstance(s, str) else s for s in stages]
        return main(['--out', str(self.folder), *words], made)

    def found(self, name):
        """Return the stored results of a stage, or None if it has to run."""
        return Results(self.folder, machine(dry=False)).done(name)

    @property
    def summary(self):
        """Return the text of the summary file."""
        return (self.folder / SUMMARY).read_text()

    def times(self, name):
        """Return the number of times that a stage was run."""
        path = self.folder / PRINTED / name
        return len(path.read_text()) if path.exists() else 0


def lives(pid):
    """Return whether a process still runs after 5 s, and kill it then; a zombie does not run."""
    ends = time.monotonic() + 5
    while time.monotonic() < ends:
        with suppress(OSError):
            state = open(f'/proc/{pid}/stat').read().rsplit(')', 1)[1].split()[0]
            if state != 'Z':
                time.sleep(0.05)
                continue
        return False
    os.kill(pid, signal.SIGKILL)
    return True
