"""Without a LeRobot checkout that has the model, the command prints one line and does not run."""

import sys

import pytest

from benchmarks.common import report
from benchmarks.common.command import BenchmarkError
from benchmarks.peers import __main__ as peers
from benchmarks.peers import lerobot, pi05, smolvla
from embodied_kv.config import TABLETOP

FILES = {
    'configs/types.py': 'class RTCAttentionSchedule:\n    EXP = 1',
    'policies/__init__.py': 'raise RuntimeError("all of LeRobot")',
    'policies/pi_gemma.py': 'def create_causal_mask(config, mask):\n    return config, mask',
    'policies/pi05/modeling_pi05.py': """
from lerobot.configs import PreTrainedConfig, RTCAttentionSchedule
from lerobot.optim import AdamWConfig, CosineDecayWithWarmupSchedulerConfig
from lerobot.utils.import_utils import _transformers_available
from .. import pi_gemma
from ..pretrained import PreTrainedPolicy, T

@PreTrainedConfig.register_subclass('pi05')
class PI05Config(PreTrainedConfig):
    pass

assert _transformers_available
""",
}


@pytest.fixture
def checkout(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / 'src' / 'lerobot' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def imported(checkout):
    return lerobot.imported(lerobot.source(checkout, pi05.MODULE), pi05.MODULE)


@pytest.fixture
def said(monkeypatch, tmp_path, capsys):
    """Return a function that runs the command and returns its one line.

    It checks that the exit status is 2 and that no file is written.
    """
    monkeypatch.setattr(report, 'OUT', tmp_path / 'out')

    def run(*arguments):
        with pytest.raises(SystemExit) as caught:
            peers.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert caught.value.code == 2 and not out and not (tmp_path / 'out').exists()
        assert err.startswith('python -m benchmarks.peers: ') and err.count('\n') == 1
        return err

    return run


def test_without_a_path_it_says_how_to_get_one(said):
    line = said()
    assert f'git clone {lerobot.REPOSITORY}' in line and lerobot.TRIED in line


@pytest.mark.parametrize('name', ['nowhere', '.'])
def test_another_folder_is_no_lerobot(said, tmp_path, name):
    assert f'{tmp_path / name} is no checkout of LeRobot' in said('--lerobot', tmp_path / name)


@pytest.mark.parametrize(
    'fault', ['import that_is_not_there', 'class :', 'raise ValueError("a\\nb")']
)
def test_a_model_that_cannot_be_imported_is_one_line(said, checkout, fault):
    checkout.joinpath('src/lerobot/policies/pi_gemma.py').write_text(fault)
    line = said('--lerobot', checkout, '--preset', 'tiny')
    assert 'cannot be imported' in line and lerobot.TRIED in line


def test_a_checkout_without_smolvla_is_named(said, checkout):
    line = said('--lerobot', checkout, '--policy', 'smolvla')
    assert f'no checkout of LeRobot with {smolvla.MODULE}' in line


def test_more_cameras_than_the_preset_has_are_refused(said, checkout):
    line = said('--lerobot', checkout, '--preset', 'tiny', '--views', 9)
    assert 'views, not 9' in line


def test_merged_patches_are_refused(said, checkout):
    assert 'merges patches' in said('--lerobot', checkout, '--preset', TABLETOP.name)


def test_of_lerobot_only_the_model_is_imported_and_nothing_is_left(checkout, monkeypatch):
    installed = object()
    monkeypatch.setitem(sys.modules, 'lerobot', installed)
    with imported(checkout) as module:
        assert module.RTCAttentionSchedule.EXP == 1
        assert issubclass(module.PI05Config, lerobot.StandIn)
        assert lerobot.StandIn('any', arguments=True)
    assert {name for name in sys.modules if name.startswith('lerobot')} == {'lerobot'}
    assert sys.modules['lerobot'] is installed


def test_a_newer_transformers_need_not_take_cache_position(checkout):
    with imported(checkout) as module:
        pi05.accept_cache_position(module.pi_gemma)
        mask = module.pi_gemma.create_causal_mask(cache_position=0, config=1, mask=2)
        assert mask == (1, 2)


def test_nothing_is_left_of_what_failed(checkout):
    checkout.joinpath('src/lerobot/policies/pi_gemma.py').unlink()
    with pytest.raises(BenchmarkError), imported(checkout):
        pass
    assert not [name for name in sys.modules if name.split('.')[0] == 'lerobot']
