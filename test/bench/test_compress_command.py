"""The command: a part by name, figures as tables and one JSON line, nonsense refused."""

import json

import pytest
from compress_bench_cases import FOUR

from embodied_kv import config
from embodied_kv.bench import compress, compress_loop, compress_quality, report
from embodied_kv.bench.compress_ways import MODES, OURS, WIDE
from embodied_kv.model.policy import bundled
from embodied_kv.sim.tasks import FAMILIES
from embodied_kv.train import worlds


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    """Runs a part with a tiny random policy and short episodes -> its figures, and the output."""
    monkeypatch.setattr(worlds, 'SECONDS', dict.fromkeys(FAMILIES, 0.3))
    monkeypatch.setitem(config.PRESETS, 'four', FOUR)
    for module in (report, compress_quality.compress_plots):
        monkeypatch.setattr(module, 'OUT', tmp_path)
    monkeypatch.setattr(compress_quality, 'MAX_TOKENS', 3)

    def run(part, *arguments):
        told = ['--preset', 'four', '--checkpoint', 'random', '--frames', '1']
        compress.main([part, *told, *arguments])
        out = capsys.readouterr().out
        found = json.loads(out.splitlines()[-1])
        assert json.loads((tmp_path / f'compress_{part}.json').read_text()) == found
        return found, out, tmp_path

    return run


def test_quality_compares_all_ways(command, monkeypatch):
    monkeypatch.setattr(compress_loop, 'ALPHAS', (0.2,))
    found, out, folder = command('quality', '--episodes', '1')
    assert 5 <= found['questions'] <= 9 and found['tokens_per_answer'] <= 3
    assert found['rows'][0]['method'] == 'full' and found['rows'][0]['to_whole']['lost'] == 0
    ways = [(row['by'], row['method'], row['p'], row['alpha']) for row in found['rows']]
    assert len(set(ways)) == len(ways) == 186
    verdicts = [(verdict['by'], verdict['method']) for verdict in found['verdicts']]
    assert verdicts == [(by, method) for by in MODES for method in (OURS, WIDE)]
    rows = [(row['method'], row['alpha'], row['n']) for row in found['closed_loop']]
    assert rows == [('full', 1.0, 4), ('vl_cache', 0.2, 4), ('random', 0.2, 4)]
    assert 'right answers, %, strict' in out and (folder / 'compress_quality.png').exists()


def test_metrics_looks_at_layers(command):
    found, out, folder = command('metrics')
    assert len(found['layers']) == 4 and found['settings']['frames'] == 1
    assert {row['of'] for row in found['hits']} == {'way', 'score'}
    assert 'hit of a score, strict' in out and (folder / 'compress_metrics.png').exists()


@pytest.mark.parametrize('arguments, message', [(['taste'], 'invalid choice'), ([], 'usage')])
def test_an_unknown_part_is_refused(capsys, arguments, message):
    with pytest.raises(SystemExit):
        compress.main(arguments)
    assert message in ''.join(capsys.readouterr())


def test_a_policy_of_another_preset_is_refused(command):
    with pytest.raises(ValueError, match='other dimensions than the preset four'):
        command('metrics', '--checkpoint', str(bundled('tabletop')))
    with pytest.raises(ValueError, match='--frames is at least 1'):
        command('metrics', '--frames', '0')
