"""Compilation by other processes: now, or later, while an engine runs.

A process that compiles later uses only idle processor time (SCHED_IDLE). Pausing ends it, so that
it takes no memory; the interrupted job is compiled from the start later. Every process ends with
its parent, however the parent ends. The jobs are sent to the process by pickle over a pipe; no
file is unpickled.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from embodied_kv.runtime.compiled import TRIES, Job, build, find_package, reason_of

GRACE = 2.0  # s until a process that ends is killed
AT_ONCE = 4  # upper bound of the processes that compile now; each needs about 1 GiB


class Background:
    """A process that compiles `jobs`, one after another, unless it is paused. It begins paused.

    prepare: a step that adds to `jobs` before the process starts; it is repeated on this object's
    thread while it returns True, and each step must end without a signal from outside.

    folder: folder of the packages. lower: a module-level function that the process calls before it
    compiles. say: receives a line for the user, on this object's thread. places: place of each job
    among all, such as '3 of 12'; by default among `jobs`. is_idle: use only idle processor time.
    Methods may be called from any thread.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        folder: Path,
        threads: int,
        lower: Callable[[], object],
        say: Callable[[str], object],
        places: Sequence[str] = (),
        is_idle: bool = True,
        prepare: Callable[[], bool] = lambda: False,
    ) -> None:
        self._jobs, self._places, self._lower, self._prepare = jobs, places, lower, prepare
        self._target = folder, threads
        self._policy = 'idle' if is_idle else 'normal'
        self._say, self._changed = say, threading.Condition()
        self._wanted = self._over = self._paused = False
        self._process: subprocess.Popen | None = None
        self._thread = threading.Thread(target=self._run, name='compiling', daemon=True)
        self._thread.start()

    def resume(self) -> None:
        """Compile the jobs that are left."""
        self._want(True)

    def pause(self) -> None:
        """End the process, without waiting."""
        self._want(False)

    def join(self) -> None:
        """Wait until the process has tried all jobs or given up; call `resume` before."""
        self._thread.join()

    def stop(self) -> None:
        """End the process, do not start it again, and wait for its end."""
        with self._changed:
            self._over = True
        self._want(False)
        self._thread.join()

    def _want(self, wanted: bool) -> None:
        with self._changed:
            self._wanted = wanted
            if not wanted and self._process is not None:
                self._end(self._process)
            self._changed.notify_all()

    def _end(self, process: subprocess.Popen) -> None:
        self._paused = True
        _signal(process, signal.SIGTERM)
        timer = threading.Timer(GRACE, self._kill, (process,))  # if it is busy in C code
        timer.daemon = True
        timer.start()

    def _kill(self, process: subprocess.Popen) -> None:
        with self._changed:
            if self._process is process:
                _signal(process, signal.SIGKILL)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._over)
                if self._over:
                    return
                self._paused = False
            try:
                if self._prepare():
                    continue
            except Exception as error:  # for example because the engine ended
                self._say(f'nothing is compiled for the next start: {reason_of(error)}')
                return
            process = _start(self._policy)
            with self._changed:
                self._process = process
                if not self._wanted:
                    self._end(process)
            assert process.stdin and process.stdout  # pipes
            with contextlib.suppress(BrokenPipeError), process.stdin as jobs:
                placed = list(zip(self._places or numbered(self._jobs), self._jobs, strict=True))
                jobs.write(pickle.dumps(self._lower))
                jobs.write(pickle.dumps((placed, *self._target)))
            for line in process.stdout:
                self._say(line.decode(errors='replace').rstrip())
            with self._changed:
                self._process = None
            status = _ended(process)
            if not self._paused:
                if status:
                    self._say(f'the process that compiles ended with status {status}')
                return


def compile_now(
    jobs: Sequence[Job],
    folder: Path,
    threads: int,
    lower: Callable[[], object],
    say: Callable[[str], object],
) -> list[str]:
    """Compile all jobs in a process per core, at most `AT_ONCE`; return the names of the compiled.

    say: receives a line for the user, on several threads.
    """
    count = min(len(os.sched_getaffinity(0)), AT_ONCE, len(jobs))
    places = numbered(jobs)
    started = [
        Background(jobs[i::count], folder, threads, lower, say, places[i::count], is_idle=False)
        for i in range(count)
    ]
    try:
        for process in started:
            process.resume()
        for process in started:
            process.join()
        # Jobs of a process that gave up or was killed, if another process compiled something.
        left = [i for i, job in enumerate(jobs) if find_package(folder, job.digest) is None]
        if 0 < len(left) < len(jobs):
            again = [jobs[i] for i in left], folder, threads, lower, say, [places[i] for i in left]
            started.append(Background(*again, is_idle=False))
            started[-1].resume()
            started[-1].join()
    finally:
        for process in started:
            process.pause()  # all together
        for process in started:
            process.stop()
    return [job.name for job in jobs if find_package(folder, job.digest) is not None]


def numbered(jobs: Sequence[Job]) -> list[str]:
    """Return the place of each job, as '3 of 12'."""
    return [f'{i} of {len(jobs)}' for i in range(1, len(jobs) + 1)]


def _start(policy: str) -> subprocess.Popen:
    environment = os.environ | {'TORCHINDUCTOR_COMPILE_THREADS': '1', 'OMP_NUM_THREADS': '1'}
    return subprocess.Popen(
        [sys.executable, '-m', __name__, str(os.getpid()), policy],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment | {'PYTHONPATH': os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    )


def _signal(process: subprocess.Popen, number: int) -> None:
    """Send a signal to the process and its children."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _ended(process: subprocess.Popen) -> int:
    """Return the exit status of a process that ends, negative for a signal."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
    _signal(process, signal.SIGKILL)  # compilers that outlive it
    return process.wait()


# ---------------------------------------------------------------------- in the process


def compile_all(
    placed: Sequence[tuple[str, Job]], folder: Path, threads: int, say: Callable[[str], object]
) -> None:
    """Compile the jobs without a package; report each in a line, with its place."""
    made = failed = 0
    for place, job in placed:
        if find_package(folder, job.digest) is not None:
            continue
        began = time.monotonic()
        try:
            build(job, folder, threads)
        except Exception as error:  # a compiler or a disk may raise anything
            say(f'{job.name} is not compiled and runs eagerly: {reason_of(error)}')
            failed += 1
            if failed == TRIES and not made:
                return
            continue
        made += 1
        took = time.monotonic() - began
        say(f'compiled {job.name} in {took:.0f} s, {place}, for the next start')


def _end_with(parent: int) -> None:
    """End this process and its compilers when its parent is gone."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Compile the jobs of standard input."""
    if sys.argv[2] == 'idle':
        with contextlib.suppress(AttributeError, OSError):  # not on every system
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # removes its files
    threading.Thread(target=_end_with, args=(int(sys.argv[1]),), daemon=True).start()
    importlib.import_module('torch._inductor')  # a graph is unpickled with it
    pickle.load(sys.stdin.buffer)()  # registers our operators before the graphs that call them
    placed, folder, threads = pickle.load(sys.stdin.buffer)
    compile_all(placed, folder, threads, lambda line: print(line, flush=True))


if __name__ == '__main__':
    main()
