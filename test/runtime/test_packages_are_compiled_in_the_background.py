"""Missing packages are compiled by another process, which ends while it is paused."""

import os
import pickle
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
import torch

from embodied_kv.runtime import background
from embodied_kv.runtime.background import Background, compile_all, compile_now, numbered
from embodied_kv.runtime.buffer import Buffer, Buffers
from embodied_kv.runtime.compiled import Compiler, Job

LONG = 600.0  # s


class Work:
    """x <- tanh(x)."""

    def __init__(self, width=8):
        self.x = torch.linspace(-1, 1, width)[None]
        self.buffers = Buffers([Buffer('x', self.x)])

    def __call__(self):
        self.x.copy_(torch.tanh(self.x))


def nothing():
    """Do nothing, in place of the function that lowers the package's own operations."""


@pytest.fixture
def said():
    return []


@pytest.fixture
def compiler(tmp_path, said):
    """Return the compiler of an engine that compiles nothing itself."""
    return Compiler(say=said.append, folder=tmp_path / 'kept', builds=False)


def until(condition, seconds=120):
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, 'nothing happened'
        time.sleep(0.05)


def lives(pid):
    try:
        return open(f'/proc/{pid}/stat').read().rsplit(')', 1)[1].split()[0] != 'Z'
    except OSError:
        return False


@pytest.fixture
def sleeping(tmp_path, said):
    """Yield a background process that sleeps and never compiles anything."""
    made = Background([], tmp_path, 1, partial(time.sleep, LONG), said.append)
    yield made
    made.stop()


def pid_of(made):
    until(lambda: made._process is not None)
    return made._process.pid


def test_missing_package_is_noted_and_not_compiled(compiler, said):
    work, other = Work(), Work(16)
    assert compiler.compile('work', work, work.buffers) is None
    assert compiler.compile('other', other, other.buffers) is None
    assert [job.name for job in compiler.missing] == ['work', 'other'] and not said
    assert len({job.digest for job in compiler.missing}) == 2


def test_a_job_is_the_same_after_its_way_through_a_pipe(compiler):
    work = Work()
    compiler.compile('work', work, work.buffers)
    (job,) = compiler.missing
    again = pickle.loads(pickle.dumps(job))
    assert (again.name, again.digest, again.inputs) == (job.name, job.digest, job.inputs)
    assert again.inputs[0].empty().shape == work.x.shape
    x = torch.linspace(-1, 1, 8)[None]
    again.module(x)
    torch.testing.assert_close(x, torch.tanh(torch.linspace(-1, 1, 8)[None]))


def jobs(count):
    return [Job(f'job {i}', f'{i:032x}', torch.fx.GraphModule({}, torch.fx.Graph()), ())
            for i in range(count)]  # fmt: skip


@pytest.mark.parametrize(
    'fail, tried, lines',
    [
        ((), 4, ['compiled'] * 4),
        ((2,), 4, ['compiled', 'compiled', 'job 2 is not compiled', 'compiled']),
        ((0, 1), 2, ['job 0 is not compiled', 'job 1 is not compiled']),
    ],
)
def test_each_package_is_reported_and_a_failure_ends_no_other(
    tmp_path, said, monkeypatch, fail, tried, lines
):
    asked = []

    def build(job, folder, threads):
        asked.append(job.name)
        if int(job.name[4:]) in fail:
            raise RuntimeError('cannot find -lcuda')

    monkeypatch.setattr(background, 'build', build)
    compile_all(list(zip(numbered(jobs(4)), jobs(4), strict=True)), tmp_path, 1, said.append)
    assert len(asked) == tried and len(said) == len(lines)
    assert all(line.startswith(begin) for line, begin in zip(said, lines, strict=True))
    places = {line.split(', ')[1] for line in said if line.startswith('compiled')}
    assert places == {f'{i + 1} of 4' for i in range(4) if i not in fail and tried == 4}


def test_package_compiled_by_another_process_is_not_compiled_again(tmp_path, said, monkeypatch):
    monkeypatch.setattr(background, 'find_package', lambda folder, digest: folder / digest)
    monkeypatch.setattr(background, 'build', lambda *_: 1 / 0)
    compile_all(list(zip(numbered(jobs(2)), jobs(2), strict=True)), tmp_path, 1, said.append)
    assert not said


def test_background_process_runs_between_resume_and_pause(sleeping, said):
    time.sleep(0.2)
    assert sleeping._process is None, 'it begins paused'
    sleeping.resume()
    first = pid_of(sleeping)
    sleeping.pause()
    until(lambda: not lives(first))
    until(lambda: sleeping._process is None)
    sleeping.resume()
    second = pid_of(sleeping)
    assert lives(second)
    sleeping.stop()
    assert not lives(second) and not said


def test_a_pause_before_the_jobs_were_read_is_no_error(tmp_path, said):
    large = [b'0' * 2**20]  # more than a pipe holds
    made = Background(large, tmp_path, 1, partial(time.sleep, LONG), said.append)
    for _ in range(2):
        made.resume()
        pid = pid_of(made)
        time.sleep(0.5)
        made.pause()
        until(lambda pid=pid: not lives(pid))
        until(lambda: made._process is None)
        assert made._thread.is_alive()
    made.stop()
    assert not said


def test_preparation_runs_step_by_step_between_pauses_and_before_the_process(tmp_path, said):
    steps, made_jobs = [], []

    def prepare():
        if len(steps) < 3:
            steps.append(len(made_jobs))
            made_jobs.append(b'a job')
            if len(steps) == 2:
                made.pause()
        return len(steps) < 3

    made = Background(made_jobs, tmp_path, 1, partial(sys.exit, 3), said.append, prepare=prepare)
    assert not steps, 'it begins paused'
    made.resume()
    until(lambda: len(steps) == 2)
    time.sleep(0.2)
    assert len(steps) == 2, 'nothing is prepared while it is paused'
    made.resume()
    made._thread.join(120)
    assert steps == [0, 1, 2] and said == ['the process that compiles ended with status 3']


def test_preparation_that_fails_is_reported_and_ends_it(tmp_path, said):
    made = Background([], tmp_path, 1, nothing, said.append, prepare=lambda: 1 / 0)
    made.resume()
    made._thread.join(60)
    assert said == ['nothing is compiled for the next start: division by zero']


def test_background_process_has_the_lowest_priority(sleeping):
    sleeping.resume()
    pid = pid_of(sleeping)
    until(lambda: os.sched_getscheduler(pid) == os.SCHED_IDLE)


def test_a_process_that_fails_is_reported_and_not_started_again(tmp_path, said):
    made = Background([], tmp_path, 1, partial(sys.exit, 3), said.append)
    made.resume()
    made._thread.join(120)
    assert said == ['the process that compiles ended with status 3']
    made.stop()


def test_background_process_killed_by_the_system_is_not_restarted(sleeping, said):
    sleeping.resume()
    os.kill(pid_of(sleeping), signal.SIGKILL)
    sleeping._thread.join(60)
    assert said == ['the process that compiles ended with status -9']


def test_background_process_ends_with_its_parent(tmp_path):
    code = (
        'import time\nfrom functools import partial\nfrom pathlib import Path\n'
        'from embodied_kv.runtime.background import Background\n'
        f'made = Background([], Path({str(tmp_path)!r}), 1, partial(time.sleep, {LONG}), print)\n'
        'made.resume()\nwhile made._process is None: time.sleep(0.05)\n'
        'time.sleep(1)\nprint(made._process.pid, flush=True)\ntime.sleep(600)\n'
    )
    parent = subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    try:
        until(lambda: os.sched_getscheduler(pid) == os.SCHED_IDLE)  # it has started
        assert lives(pid)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    until(lambda: not lives(pid))


@pytest.mark.slow
@torch.inference_mode()
def test_a_pause_leaves_no_file_and_the_next_start_loads_what_was_compiled(compiler, said):
    work, same = Work(), Work()
    compiler.compile('work', work, work.buffers)
    folder = compiler.folder
    made = Background(compiler.missing, folder, 1, nothing, said.append)
    made.resume()
    until(lambda: list(folder.glob('tmp*')))
    made.pause()
    until(lambda: made._process is None)
    assert not list(folder.iterdir())
    made.resume()
    made._thread.join(250)
    made.stop()
    assert [line.split(' in ')[0] for line in said] == ['compiled work']
    again = Compiler(say=said.append, folder=folder, builds=False)
    run = again.compile('work', work, work.buffers)
    run()
    same()
    assert not again.missing
    torch.testing.assert_close(work.x, same.x)


def test_computation_left_by_one_process_is_tried_once_by_another(monkeypatch, tmp_path):
    made, started = set(), []

    class Half(Background):
        """A process that compiles the first of its jobs and is then killed."""

        def __init__(self, jobs, folder, threads, lower, say, places, is_idle):
            self.jobs = jobs
            started.append(([job.name for job in jobs], list(places), is_idle))

        def resume(self):
            made.add(self.jobs[0].digest)

        def join(self):
            pass

        pause = stop = join

    monkeypatch.setattr(background, 'Background', Half)
    monkeypatch.setattr(background, 'find_package', lambda folder, digest: digest in made or None)
    monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: {0, 1})
    names = compile_now(jobs(5), tmp_path, 1, nothing, print)
    assert started == [
        (['job 0', 'job 2', 'job 4'], ['1 of 5', '3 of 5', '5 of 5'], False),
        (['job 1', 'job 3'], ['2 of 5', '4 of 5'], False),
        (['job 2', 'job 3', 'job 4'], ['3 of 5', '4 of 5', '5 of 5'], False),
    ]
    assert names == ['job 0', 'job 1', 'job 2']


@pytest.mark.slow
@torch.inference_mode()
def test_required_packages_are_compiled_by_several_processes_and_loaded(
    compiler, said, monkeypatch
):
    monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: {0, 1})
    works = {f'work {width}': Work(width) for width in (8, 16, 24)}
    for name, work in works.items():
        assert compiler.compile(name, work, work.buffers) is None
    graph = torch.fx.Graph()
    graph.output(graph.placeholder('x'))  # compilation fails: the input has no layout
    broken = Job('job 0', f'{0:032x}', torch.fx.GraphModule({}, graph), ())
    made = compile_now([*compiler.missing, broken], compiler.folder, 1, nothing, said.append)
    assert made == list(works)
    compiled = [line for line in said if line.startswith('compiled ')]
    assert sorted(line.split(', ')[1] for line in compiled) == ['1 of 4', '2 of 4', '3 of 4']
    assert [line for line in said if line.startswith('job 0 is not compiled')]
    again = Compiler(say=said.append, folder=compiler.folder, builds=False)
    for name, work in works.items():
        assert again.compile(name, work, work.buffers) is not None
    assert not again.missing
