"""The summary has the card, a line for each stage, and every table; dry figures are marked."""

import pytest
from gpu_stages import Programme, stage

from embodied_kv.bench.gpu import runner, summary
from embodied_kv.bench.gpu.stages import STAGES


@pytest.fixture
def programme(tmp_path, monkeypatch):
    return Programme(tmp_path, monkeypatch)


def test_a_line_for_each_stage_and_its_tables(programme, capsys):
    programme('good', 'bad', stage('refuse', option='lerobot'))
    page, said = (programme.folder / 'summary.md').read_text(), capsys.readouterr().out
    lines = [line for line in said.splitlines() if line.startswith('|')]
    assert [line.split(' | ')[0] for line in lines[2:]] == ['| good', '| bad', '| refuse']
    assert lines[2].endswith('n is 3 |') and 'illegal access; n is 1 |' in lines[3]
    assert lines[4].endswith('no path is given: --lerobot PATH |')
    assert '## good: rows\n\n| n |\n| --- |\n| 3 |\n' in page and page.startswith('# First light')
    assert '## good' not in said and 'Dry' not in page


def test_dry_figures_are_marked(programme):
    programme('good', words=('--dry',))
    assert summary.DRY in (programme.folder / 'summary.md').read_text()


def test_the_card_and_what_drives_it_come_first(tmp_path):
    card, software = dict(name='A100', driver='580', power_limit_w='400'), dict(torch='2.11.0')
    figures = dict(card=card, software=software, ceilings=dict(gflops=7e5, gbytes=4e3))
    found = dict(stage='facts', dry=False, status='ok', reason='', seconds=3, figures=figures)
    runner.keep(found, tmp_path)
    lines = summary.head(STAGES, tmp_path, dry=False).splitlines()
    assert lines[2:6] == [
        '- name: A100',
        '- driver: 580',
        '- power limit w: 400',
        '- torch: 2.11.0',
    ]
    assert '| facts | ok | 3 | 700 TFLOP/s in bfloat16, 4000 GB/s |' in lines
    assert sum(' | not run | ' in line for line in lines) == len(STAGES) - 1


def test_figures_that_are_not_whole_are_said_to_be(tmp_path):
    found = dict(stage='pi05', dry=False, status='ended', reason='ended after 300 s', seconds=300)
    runner.keep(found | dict(figures=dict(rows=[dict(views=2)])), tmp_path)
    page = summary.markdown(STAGES, tmp_path, dry=False)
    assert 'ended after 300 s; its figures are not whole' in page and '## pi05: rows' in page


def test_what_a_stage_had_when_it_was_cut_is_shown(tmp_path):
    found = dict(stage='pi05', dry=False, status='cut', reason='ended after 90 s', seconds=90)
    runner.keep(found | dict(figures=dict(rows=[dict(views=2)])), tmp_path)
    page = summary.markdown(STAGES, tmp_path, dry=False)
    assert '| pi05 | cut | 90 | ended after 90 s' in page and '## pi05: rows' in page


def test_a_cell_stays_in_its_cell():
    assert summary.table([dict(a_b='x|y\nz', c=1.23456)])[0::2] == [
        '| a b | c |',
        '| x/y z | 1.235 |',
    ]
