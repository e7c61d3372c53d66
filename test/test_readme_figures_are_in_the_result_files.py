"""Every number of README's table of figures is in the record of its benchmark, as printed."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / 'benchmarks' / 'results'
README = (ROOT / 'README.md').read_text()
ROWS = re.findall(
    r'^\| (.+?) \| \[(.+?)\]\(docs/\S+?\) \|$', README.partition('## Figures')[2], re.M
)
MOST_BYTES = 20_000  # of all records


def record(name):
    return json.loads((RECORDS / f'{name.replace(" ", "_")}.json').read_text())


def matches(printed, value):
    """Return whether a value rounds to a printed number."""
    decimals = len(printed.partition('.')[2])
    return abs(float(printed) - value) <= 0.5 * 10**-decimals + 1e-9


@pytest.mark.parametrize(('figure', 'name'), ROWS, ids=[name for _, name in ROWS])
def test_numbers_of_a_figure_are_in_its_record(figure, name):
    values = [entry['value'] for entry in record(name)['figures'].values()]
    printed = re.findall(r'\d+(?:\.\d+)?', re.sub(r'(?<=\d),(?=\d{3})', '', figure))
    assert printed
    for number in printed:
        assert any(matches(number, value) for value in values), f'{number} is in no record'


@pytest.mark.parametrize('name', [name for _, name in ROWS])
def test_a_record_states_its_origin(name):
    found = record(name)
    assert found['command'].startswith('python -m ') and found['machine']['cpu']
    assert found['source'] in ('measured', 'transcribed')
    if found['source'] == 'measured':
        assert re.fullmatch(r'\d{4}-\d\d-\d\d', found['date']) and found['machine']['cpu_flags']
    else:
        assert (ROOT / found['transcribed_from'].partition(',')[0]).is_file()


def test_each_record_has_a_row_and_all_are_small():
    paths = sorted(RECORDS.glob('*.json'))
    assert [path.stem for path in paths] == sorted(name.replace(' ', '_') for _, name in ROWS)
    assert sum(path.stat().st_size for path in paths) < MOST_BYTES


def test_numbers_match_within_their_printed_digits():
    assert matches('2.05', 2.0549) and not matches('2.05', 2.056)
    assert matches('132', 132.4) and not matches('132', 133)
