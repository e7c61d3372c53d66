"""The first stages take less than ten minutes; docs/gpu.md states the limit of every stage."""

import re
from pathlib import Path

from benchmarks.gpu.stages import LAST_OF_FIRST, NAMES, STAGES

PAGE = (Path(__file__).resolve().parents[2] / 'docs' / 'gpu.md').read_text()
FIRST = STAGES[: NAMES.index(LAST_OF_FIRST) + 1]


def test_the_most_valuable_stages_come_first():
    assert NAMES[:10] == (
        'facts',
        'kernels',
        'replay',
        'agree',
        'pi05',
        'compiles',
        'pi05_compiled',
        'deadline',
        'threads',
        'top',
    )


def test_the_first_stages_take_less_than_ten_minutes():
    assert sum(stage.minutes for stage in FIRST) < 10


def test_the_page_states_every_limit():
    rows = re.findall(r'^\| `(\w+)` \|.*\| ([\d.]+) \|$', PAGE, re.MULTILINE)
    assert rows == [(stage.name, f'{stage.minutes:g}') for stage in STAGES]


def test_the_page_states_the_sum_of_the_first_limits():
    assert f'{sum(stage.minutes for stage in FIRST):g} minutes' in PAGE
