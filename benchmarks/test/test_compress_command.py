"""The commands of `benchmarks.compress` print tables and a JSON line, and refuse bad arguments."""

import json

import pytest
from compress_bench_cases import FOUR, policy

from benchmarks.common import report, weights
from benchmarks.compress import compiled, loop, metrics, quality, shared
from benchmarks.compress.ways import judged
from embodied_kv import config
from embodied_kv.demo.sim.tasks import FAMILIES
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model.checkpoints import own
from training.evaluate import worlds

PARTS = dict(metrics=metrics, quality=quality, shared=shared)


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    """Return a function that runs a part on one frame of short episodes.

    It returns the figures, the output and the folder that it wrote to.
    """
    monkeypatch.setattr(worlds, 'SECONDS', dict.fromkeys(FAMILIES, 0.3))
    monkeypatch.setitem(config.PRESETS, 'four', FOUR)
    monkeypatch.setattr(report, 'OUT', tmp_path)
    monkeypatch.setattr(quality, 'MAX_TOKENS', 3)

    def run(part, *arguments, checkpoint='random'):
        told = ['--preset', 'four', '--frames', '1']
        told += ['--checkpoint', checkpoint] if checkpoint else []
        PARTS[part].main([*told, *arguments])
        out = capsys.readouterr().out
        found = json.loads(out.splitlines()[-1])
        assert json.loads((tmp_path / f'compress_{part}.json').read_text()) == found
        return found, out, tmp_path

    return run


def test_quality_compares_all_ways(command, monkeypatch):
    monkeypatch.setattr(loop, 'KEEP_RATIOS', (0.2,))
    found, out, folder = command('quality', '--episodes', '1')
    assert 5 <= found['questions'] <= 9 and found['tokens_per_answer'] <= 3
    assert found['rows'][0]['method'] == 'full' and found['rows'][0]['to_whole']['lost'] == 0
    ways = [(row['by'], row['label'], row['p'], row['keep_ratio']) for row in found['rows']]
    assert len(set(ways)) == len(ways) == 241
    verdicts = [(verdict['by'], verdict['method']) for verdict in found['verdicts']]
    assert verdicts == [(way.by, way.label) for way in judged()]
    rows = [(row['method'], row['keep_ratio'], row['n']) for row in found['closed_loop']]
    assert rows == [
        ('full', 1.0, 4),
        (EngineConfig.compression_method, 0.2, 4),
        ('random', 0.2, 4),
    ]
    assert 'right answers, %, strict' in out and (folder / 'compress_quality.png').exists()


def test_metrics_looks_at_layers(command):
    found, out, folder = command('metrics')
    assert len(found['layers']) == 4 and found['settings']['frames'] == 1
    assert {row['of'] for row in found['hits']} == {'way', 'score'}
    assert 'hit of a score, strict' in out and (folder / 'compress_metrics.png').exists()


def test_a_preset_takes_the_weights_of_its_folder(command, monkeypatch, tmp_path):
    monkeypatch.setattr(weights, 'ASSETS', tmp_path)
    with pytest.raises(ValueError, match="preset 'four' has no bundled checkpoint"):
        command('metrics', checkpoint='')
    made = policy()
    half = {name: weight.bfloat16() for name, weight in made.model.state_dict().items()}
    own.save(tmp_path / 'four', half, FOUR, made.processing.normalizer, made.tokenizer)
    found, _, _ = command('metrics', checkpoint='')
    assert found['settings']['checkpoint'] is None and found['questions'] > 0


def test_nonsense_is_refused(command):
    with pytest.raises(ValueError, match='vision.image_size is 64, the model has 28'):
        command('metrics', checkpoint=str(own.bundled('tabletop')))
    with pytest.raises(ValueError, match='--frames is at least 1'):
        command('metrics', '--frames', '0')


def test_shared_has_a_row_for_each_keep_ratio_and_the_smallest_that_is_enough(command):
    found, out, _ = command('shared')
    rows = found['rows']
    assert [row['keep_ratio'] for row in rows[:7]] == list(shared.KEEP_RATIOS)
    assert {row['KV of 8'] / row['KV of 1'] for row in rows[:-1]} == {1} and 'enough' in out
    enough = [row['keep_ratio'] for row in rows[:-1] if row['enough']]
    assert found['smallest'] == min(enough, default=None)


@pytest.mark.slow
@pytest.mark.timeout(600)  # s; compilation is slow
def test_compiled_reads_copies_in_compiled_code(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    monkeypatch.setitem(config.PRESETS, 'four', FOUR)
    monkeypatch.setattr(report, 'OUT', tmp_path)
    monkeypatch.setattr(compiled, 'KEEP_RATIO', 0.5)
    monkeypatch.setitem(compiled.ENGINES, 'compiled', ('now', 0.5))
    monkeypatch.setitem(compiled.ENGINES, 'eager', ('off', 0.5))
    compiled.main(['--preset', 'four', '--turns', '1', '--json'])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row['compressed'] for row in found['rows']] == [
        f'{n} of 4' for n in (0, 1, 4) for _ in range(3)
    ]
    assert found['worst'] > 0 and found['most'] == 1.05
