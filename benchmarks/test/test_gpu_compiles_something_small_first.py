"""Stage `compiles` tests the compiler: small compiled computations must equal eager ones."""

from argparse import Namespace

import pytest

from benchmarks.gpu import compiles
from embodied_kv.runtime.compiled import Compiler

ARGS = Namespace(device='cpu', json=True)


def compiling(monkeypatch, compile):
    monkeypatch.setattr(Compiler, 'compile', compile)
    return compiles.run(ARGS)


def test_what_is_compiled_equals_the_function(monkeypatch):
    found = compiling(monkeypatch, lambda self, name, fn, buffers: fn)
    assert [row['of'] for row in found['rows']] == ['product', 'attention', 'store']
    assert found['ok'] and all(row['error'] == 0 for row in found['rows'])


def test_what_does_nothing_differs(monkeypatch):
    found = compiling(monkeypatch, lambda self, name, fn, buffers: lambda: None)
    assert not found['ok'] and not any(row['ok'] for row in found['rows'])


def test_what_cannot_be_compiled_says_why(monkeypatch):
    def none(self, name, fn, buffers):
        self._say(f'{name} is not compiled and runs eagerly: cannot find -lcuda')

    found = compiling(monkeypatch, none)
    assert not found['ok'] and {row['error'] for row in found['rows']} == {None}
    assert all(row['why'].endswith('cannot find -lcuda') for row in found['rows'])


@pytest.mark.slow
def test_this_machine_compiles():
    assert compiles.run(ARGS)['ok']
