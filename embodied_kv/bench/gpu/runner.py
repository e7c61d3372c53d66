"""One stage: a process of its own, ended at its limit, whose last JSON line is what it found.

Knows processes, files and clocks. Does not know what a stage measures. What a stage leaves lies in
the programme's folder: NAME.json, and NAME.out and NAME.err, what it printed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from embodied_kv.bench.gpu import toolchain

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 5.0  # s, until what was asked to end is killed
REFUSED = 2  # exit status of a command that says why it cannot
OK, FAILED, ENDED, CUT, SKIPPED = 'ok', 'failed', 'ended', 'cut', 'skipped'


def run(name: str, command: Sequence[str], folder: Path, seconds: float, rest: float) -> dict:
    """What came of `python COMMAND`: status, reason, seconds, figures.

    seconds: that it may take; rest: that the whole programme has left, which may be less: a stage
    that is cut by it is run again by the next call, one that is ended by its own limit is not.
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
    found = dict(
        status=OK,
        reason='',
        seconds=round(time.monotonic() - began, 1),
        command=' '.join(['python', *command]),
        figures=figures,
    )
    if status is None:
        ended = CUT if limit < seconds else ENDED
        return found | dict(status=ended, reason=f'ended after {limit:.0f} s')
    if status == REFUSED:
        return found | dict(status=SKIPPED, reason=last_line(paths['err']))
    if status:
        said = signal.Signals(-status).name if status < 0 else f'exit status {status}'
        return found | dict(status=FAILED, reason=f'{said}: {last_line(paths["err"])}')
    if figures is None:
        return found | dict(status=FAILED, reason='it printed no figures')
    if not figures.get('ok', True):
        return found | dict(status=FAILED, reason='what it compares differs')
    return found


def environment(folder: Path) -> dict[str, str]:
    """That of this process, with the package on the path, and what a compiler has to know.

    folder: the programme's.
    """
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get('PYTHONPATH'))))
    own = dict(PYTHONPATH=path, PYTHONUNBUFFERED='1')
    return os.environ | toolchain.environment(folder / 'lib') | own


def _end(process: subprocess.Popen) -> None:
    """The process with all that it started: by request, then by force."""
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
    """The last line that is a JSON object: a stage may say more and more of them."""
    for line in reversed(text.splitlines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return None


def last_line(path: Path) -> str:
    """Of what a stage said as it went wrong: the error itself, where a traceback ends with it."""
    lines = [line.strip() for line in path.read_text(errors='replace').splitlines()]
    return next((line[:300] for line in reversed(lines) if line), 'it said nothing')


def keep(found: dict, folder: Path) -> None:
    """Writes FOLDER/STAGE.json, whole or not at all."""
    path = folder / f'{found["stage"]}.json'
    part = path.with_suffix('.part')
    part.write_text(json.dumps(found, indent=1) + '\n')
    part.replace(path)


def kept(name: str, folder: Path, dry: bool) -> dict | None:
    """What a stage left in a call before; None where it has to run: cut, damaged, or another kind.

    dry: which of the two kinds is meant.
    """
    found = left(name, folder, dry)
    return None if found is None or found.get('status') == CUT else found


def left(name: str, folder: Path, dry: bool) -> dict | None:
    """The same; also what a stage had when it was cut."""
    try:
        found = json.loads((folder / f'{name}.json').read_text())
    except (OSError, ValueError):
        return None
    return found if found.get('dry') == dry else None
