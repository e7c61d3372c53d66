"""`python -m embodied_kv.nodes.compile` compiles the graphs of an engine ahead of time.

It reports each graph, or what is wrong.
"""

from types import SimpleNamespace

import pytest
import yaml

from embodied_kv.nodes.compile import main, parameters
from embodied_kv.runtime import compiled, graph_cache


@pytest.fixture
def params(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))

    def write(**engine):
        values = dict(
            contract='tabletop', preset='tiny', checkpoint='random', control_frequency=10.0
        )
        values['engine'] = dict(compile='auto', streams=2, rows=4) | engine
        path = tmp_path / 'params.yaml'
        path.write_text(yaml.safe_dump({'/**': {'ros__parameters': values}}))
        return path

    return write


def ended(arguments, capsys):
    """Run the command; return its exit status and its error output."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return end.value.code, capsys.readouterr().err


def test_each_graph_is_named_and_compiled_once(params, monkeypatch, capsys):
    def compile_now(jobs, folder, threads, lower, say):
        for job in jobs:
            (folder / 'made').touch()
            (folder / 'made').rename(folder / compiled._name(job.digest, folder / 'made'))
        return [job.name for job in jobs]

    monkeypatch.setattr(graph_cache, 'compile_now', compile_now)
    loader = SimpleNamespace(boxed_run=lambda inputs: [])
    monkeypatch.setattr(compiled, '_load', lambda path: (loader, set()))
    main(['--params', str(params())])
    said = capsys.readouterr().out
    assert 'compiling 9 computations, once' in said
    for name in ('encode_images', 'prefill 1x', 'denoise 1x', 'extend 1x1', 'extend 2x1'):
        assert name in said.splitlines()[-1]
    main(['--params', str(params())])
    assert 'compiling' not in capsys.readouterr().out, 'nothing is compiled twice'


def test_engine_parameters_with_dotted_names_are_read(params):
    path = params()
    values = yaml.safe_load(path.read_text())
    values['/**']['ros__parameters'] |= {'engine.compile': 'now', 'engine.streams': 3}
    path.write_text(yaml.safe_dump(values))
    _, config = parameters(path)
    assert (config.compile, config.streams, config.rows) == ('now', 3, 4)


def test_where_nothing_is_to_be_compiled_it_says_what_to_set(params, capsys):
    code, said = ended(['--params', str(params(compile='off'))], capsys)
    assert code == 2 and 'engine.compile must be auto or now (got off)' in said


def test_parameters_that_cannot_be_are_refused_by_name(params, capsys):
    code, said = ended(['--params', str(params(rows=2))], capsys)
    assert code == 2 and 'engine.rows must be from 3' in said
    code, said = ended(['--params', str(params(colour='red'))], capsys)
    assert code == 2 and 'must contain ROS parameters of a suite' in said and 'colour' in said


def test_a_file_that_is_missing_or_is_no_yaml_is_refused(tmp_path, capsys):
    code, said = ended(['--params', str(tmp_path / 'none.yaml')], capsys)
    assert code == 2 and 'none.yaml' in said
    (tmp_path / 'half.yaml').write_text('a: [')
    code, said = ended(['--params', str(tmp_path / 'half.yaml')], capsys)
    assert code == 2 and 'must contain ROS parameters of a suite' in said
