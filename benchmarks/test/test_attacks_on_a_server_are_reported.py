"""The policy server serves a client with another key after each attack of the benchmark."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / 'test/serving'))

from server_cases import running_server, tabletop, until

from benchmarks.serving import attacks


@pytest.fixture(scope='module')
def served(tmp_path_factory):
    file = tmp_path_factory.mktemp('keys') / 'keys'
    file.touch(mode=0o600)
    file.write_text(''.join(f'{name} {key}\n' for name, key in attacks.KEYS.items()))
    with running_server('tabletop', api_keys_file=str(file)) as opened:
        yield opened


@pytest.mark.parametrize(
    'way', ['pings', 'fragments', 'held', 'held_fragments', 'unread', 'snapshots', 'silent']
)
def test_another_key_is_served_after_an_attack(served, way, monkeypatch):
    monkeypatch.setattr(attacks, 'request', lambda *_: tabletop())
    try:
        getattr(attacks, way)(served.port)
    except OSError:
        assert way in ('pings', 'fragments')
    with served.client(key=attacks.KEYS['good']) as good:
        assert 'actions' in good.infer(tabletop())
    until(lambda: served.server._admission.accounts.of('bad').pool.used == 0)
