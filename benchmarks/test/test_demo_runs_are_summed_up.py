"""The benchmark of the demo reports a row for each run, also for failed runs."""

import json
import sys

import pytest

from benchmarks import demo
from benchmarks.demo import busy, one, summary

REPORT = {
    'tasks done': {'done': 2, 'told': 3, 'failed': 1, 'replaced': 0},
    'counts': {'commands': 100, 'deadlines missed': 4},
    'memory': {'question': 'Where is the red cube?', 'answer': 'in the bin', 'right': True},
    'mission': {
        'told': 'tidy up',
        'steps': [{}, {}],
        'seconds': 12.5,
        'done': True,
        'right': False,
        'message': 'done',
    },
}


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """Return a function that replaces the demo by a script."""

    def put(code):
        real = demo.subprocess.Popen

        def start(words, **options):
            return real([sys.executable, '-c', code, *words[3:]], **options)

        monkeypatch.setattr(demo.subprocess, 'Popen', start)
        return tmp_path / 'out'

    return put


def test_a_row_states_what_the_report_says():
    row = summary(REPORT)
    assert (row['tasks'], row['missed'], row['memory']) == ('2 of 3', '4 of 100', True)
    assert (row['mission'], row['steps'], row['done'], row['right']) == ('tidy up', 2, True, False)


def test_a_mission_that_was_refused_is_not_done():
    row = summary(REPORT | {'mission': {'refused': 'there is nothing to be put away here'}})
    assert not row['done'] and row['mission'] == 'there is nothing to be put away here'


def test_a_run_gets_its_seed_and_its_report_is_read(fake):
    out = fake(
        'import json, pathlib, sys; a = sys.argv; out = pathlib.Path(a[a.index("--out") + 1]);'
        f'(out / "report.json").write_text(json.dumps({REPORT!r})); assert "7" in a'
    )
    row = one(7, 10.0, out)
    assert (row['seed'], row['status'], row['done']) == (7, 0, True)


def test_a_run_that_fails_is_a_row_that_names_its_log(fake):
    out = fake('print("no camera"); raise SystemExit(3)')
    row = one(7, 10.0, out)
    assert (row['status'], row['done']) == (3, False) and str(out / 'log.txt') in row['mission']
    assert 'no camera' in (out / 'log.txt').read_text()


def test_busy_processes_end_with_their_block():
    with busy(2) as burning:
        assert [process.poll() for process in burning] == [None, None]
    assert all(process.poll() is not None for process in burning)


def test_the_line_counts_missions(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    rows = iter([dict(seed=1, done=True), dict(seed=2, done=False)])
    monkeypatch.setattr(demo, 'one', lambda *_: next(rows))
    demo.main(['--runs', '2', '--json'])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found['missions_done'], found['runs'], found['met']) == (1, 2, False)
