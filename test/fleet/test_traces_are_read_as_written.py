"""A recorded trace is read and replayed; an invalid line is refused as file:line."""

import json
from contextlib import closing

import numpy as np
import pytest

from benchmarks.fleet.trace_reader import TraceError, read
from benchmarks.fleet.workload import Job, poisson, recorded_jobs, sample
from embodied_kv.fleet.trace import Round, TraceWriter

HEADER = '{"format": "embodied_kv.fleet.trace", "version": 1, "period": 0.1}'
ROUND = dict(
    task='a', round=0, observation_bytes=10, chunk_bytes=20, inference=0.1, requested=0,
    start=0.5, end=1.0, horizon=5,
)  # fmt: skip


def line(**other):
    return json.dumps(ROUND | other)


def test_recorded_trace_is_read_and_replayed(tmp_path):
    rounds = [
        Round(**ROUND),
        Round(**ROUND | dict(task='b', horizon=7)),
        Round(**ROUND | dict(round=1, observation_bytes=30, horizon=9)),
    ]
    path = tmp_path / 'a.jsonl'
    with closing(TraceWriter(path, 0.1)) as recorder:
        for record in rounds:
            recorder.add(record)
        assert read(path) == (0.1, rounds)  # readable before the file is closed
    assert recorded_jobs(*read(path)) == [Job((5, 9), 0.1, 30, 20), Job((7,), 0.1, 10, 20)]


@pytest.mark.parametrize(
    ('lines', 'message'),
    [
        ([], '1: the file must not be empty'),
        (['{}'], '1: the first line must name embodied_kv.fleet.trace, version 1'),
        ([HEADER.replace('1,', '2,')], '1: the first line must name'),
        ([HEADER.replace('0.1', '0')], '1: period must be above 0'),
        ([HEADER, line(), 'x'], '3: Expecting value'),
        ([HEADER, '[]'], '2: the line must be a JSON object'),
        ([HEADER, line(more=1)], '2: missing or unknown: more'),
        ([HEADER, line(horizon=0)], r'2: horizon must be .* \(got 0'),
        ([HEADER, line(horizon=True)], r'2: horizon must be .* \(got True'),
        ([HEADER, line(task='')], "2: task must be a name .got ''"),
        (
            [HEADER, line(end=0.1)],
            '2: inference must be at least 0 and end must not be before start',
        ),
        ([HEADER, line(start=float('nan'))], r'2: start must be finite seconds \(got nan'),
        ([HEADER, line(), line()], "3: round of 'a' must be 1 .got 0"),
        ([HEADER, line(round=2)], "2: round of 'a' must be 0 .got 2"),
        ([HEADER, '[' * 100_000], '2: '),
    ],
)
def test_a_malformed_line_is_refused_with_its_place(tmp_path, lines, message):
    path = tmp_path / 'bad.jsonl'
    path.write_text('\n'.join(lines))
    with pytest.raises(TraceError, match=rf'bad\.jsonl:{message}'):
        read(path)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / 'bad.jsonl'
    path.write_bytes(HEADER.encode() + b'\n\xff\xfe\n')
    with pytest.raises(TraceError, match=r'bad\.jsonl:2: .*decode'):
        read(path)


def test_a_recorder_writes_no_numbers_that_json_lacks(tmp_path):
    with pytest.raises(ValueError, match='JSON'):
        TraceWriter(tmp_path / 'a.jsonl', float('nan'))


def test_arrivals_are_poisson_and_seeded():
    gaps = np.diff(poisson(4.0, 4000, np.random.default_rng(0)))
    assert gaps.mean() == pytest.approx(0.25, rel=0.05)
    assert gaps.std() == pytest.approx(0.25, rel=0.05)
    assert (
        poisson(4.0, 9, np.random.default_rng(1)) == poisson(4.0, 9, np.random.default_rng(1))
    ).all()
    few = [Job((1,), 0.1, 1, 1), Job((2,), 0.1, 1, 1)]
    assert len(sample(few, 10, np.random.default_rng(0))) == 10
