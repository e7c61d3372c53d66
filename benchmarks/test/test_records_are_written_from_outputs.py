"""`benchmarks.results` writes a record from the output of a benchmark."""

import json

import pytest

from benchmarks.results import __main__ as results

OUTPUT = {
    'machine': {'cpu': 'a CPU', 'cpu_flags': ['avx2'], 'cores': 2, 'device': 'cpu'},
    'rows': [{'way': 'a', 'n': 1, 'right': {'rate': 0.5}}, {'way': 'a', 'n': 2, 'right': None}],
}
RECORD = {
    'command': 'python -m benchmarks.x',
    'source': 'transcribed',
    'transcribed_from': 'docs/x.md',
    'figures': {
        'right, %': {'path': 'rows[way=a,n=1].right.rate', 'scale': 100, 'value': 0},
        'limit': {'value': 3},
    },
}


@pytest.mark.parametrize(
    ('path', 'value'), [('rows[n=2].way', 'a'), ('rows[-1].n', 2), ('machine.cpu', 'a CPU')]
)
def test_a_path_names_a_value(path, value):
    assert results.value_at(OUTPUT, path) == value


@pytest.mark.parametrize('path', ['rows[way=a].n', 'rows[way=b].n', 'columns', 'rows[7]'])
def test_a_path_without_one_value_is_refused(path):
    with pytest.raises(LookupError):
        results.value_at(OUTPUT, path)


def test_a_record_is_replaced_by_measured_values(tmp_path, monkeypatch):
    monkeypatch.setattr(results, 'FOLDER', tmp_path)
    (tmp_path / 'x.json').write_text(json.dumps(RECORD))
    output = tmp_path / 'run.log'
    output.write_text('a table\n' + json.dumps(OUTPUT) + '\n')
    results.main(['x', str(output)])
    found = json.loads((tmp_path / 'x.json').read_text())
    assert found['source'] == 'measured' and 'transcribed_from' not in found
    assert found['figures']['right, %']['value'] == 50 and found['figures']['limit']['value'] == 3
    assert found['machine'] == {'cpu': 'a CPU', 'cpu_flags': ['avx2'], 'cores': 2}


def test_an_output_of_another_benchmark_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(results, 'FOLDER', tmp_path)
    (tmp_path / 'x.json').write_text(json.dumps(RECORD))
    (tmp_path / 'run.log').write_text('{"machine": {}}')
    with pytest.raises(SystemExit):
        results.main(['x', str(tmp_path / 'run.log')])
    assert 'is not an output of the command of x.json' in capsys.readouterr().err
    assert json.loads((tmp_path / 'x.json').read_text()) == RECORD
