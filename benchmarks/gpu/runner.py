"""One stage: a process of its own, ended at its limit; its last JSON line is its result.

Knows processes, files and clocks. Does not know what a stage measures. The output of a stage lies
in the folder that it runs in: NAME.out and NAME.err.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.common import workers
from benchmarks.gpu import toolchain
from benchmarks.gpu.results import CUT, ENDED, FAILED, MISSED, OK, SKIPPED

PATIENCE = 5.0  # s between SIGTERM and SIGKILL
REFUSED = 2  # exit status of a command that prints why it cannot run
TAIL, WIDTH = 20, 300  # lines that are kept of a stage that did not end well, and their length
MISSING = re.compile(r"ModuleNotFoundError: No module named '(?!embodied_kv)([^']+)'")


def run(
    name: str,
    command: Sequence[str],
    folder: Path,
    seconds: float,
    rest: float,
    judge: Callable[[dict], str] | None = None,
) -> dict:
    """Run `python COMMAND` and return its status, reason, seconds, figures and last lines.

    folder: that it runs in. seconds: that it may take; rest: that the whole programme has left,
    which may be less: a stage that is cut by it is run again by the next call, one that is ended
    by its own limit is not. judge: takes the figures of a stage that ended well, and returns which
    target they miss, or ''. tail: the last lines of its output, if its status is not ok.
    """
    limit, began = min(seconds, rest), time.monotonic()
    paths = {kind: folder / f'{name}.{kind}' for kind in ('out', 'err')}
    with paths['out'].open('w') as out, paths['err'].open('w') as err:
        process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=folder,
            env=environment(folder),
            start_new_session=True,
        )
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _end(process)
    figures = last_object(paths['out'].read_text(errors='replace'))
    reached, reason = _outcome(status, figures, paths['err'], limit, limit < seconds)
    if reached == OK and judge is not None:
        reached, reason = _judged(judge, figures)
    return dict(
        status=reached,
        reason=reason,
        seconds=round(time.monotonic() - began, 1),
        command=' '.join(['python', *command]),
        figures=figures,
        tail=[]
        if reached in (OK, MISSED)
        else last_lines(paths['err']) or last_lines(paths['out']),
    )


def _outcome(
    status: int | None, figures: dict | None, err: Path, limit: float, is_cut: bool
) -> tuple[str, str]:
    """Return the status of a stage and its reason.

    status: of its process; None: the process was ended.
    """
    said = (last_lines(err) or ['it said nothing'])[-1]
    if status is None:
        return CUT if is_cut else ENDED, f'ended after {limit:.0f} s'
    if status == REFUSED:
        return SKIPPED, said
    if status and (missing := MISSING.match(said)):
        return SKIPPED, f'the package {missing[1]} is missing'
    if status:
        name = signal.Signals(-status).name if status < 0 else f'exit status {status}'
        return FAILED, f'{name}: {said}'
    if figures is None:
        return FAILED, 'it printed no figures'
    if not figures.get('ok', True):
        return FAILED, 'what it compares differs'
    return OK, ''


def _judged(judge: Callable[[dict], str], figures: dict) -> tuple[str, str]:
    """Return the status of a stage that ended well and the target that it missed."""
    try:
        missed = judge(figures)
    except (LookupError, TypeError, ValueError) as error:
        return FAILED, f'its figures have no {error}, which the target needs'
    return (MISSED, missed) if missed else (OK, '')


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a stage: that of this process, the package, and the toolchain.

    folder: that the stage runs in.
    """
    own = toolchain.environment(folder / 'lib')
    return workers.environment(**own, PYTHONUNBUFFERED='1')


def _end(process: subprocess.Popen) -> None:
    """End the process with all that it started: by SIGTERM, then by SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def last_object(text: str) -> dict | None:
    """Return the last line that is a JSON object; a stage may print several."""
    for line in reversed(text.splitlines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return None


def last_lines(path: Path) -> list[str]:
    """Return the last lines that are not empty, without those of figures."""
    lines = path.read_text(errors='replace').splitlines()
    printed = [
        line.rstrip()[:WIDTH] for line in lines if line.strip() and not line.startswith('{')
    ]
    return printed[-TAIL:]
