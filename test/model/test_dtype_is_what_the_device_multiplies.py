"""The dtype is the setting, else the model's, widened on a CPU without bfloat16 units."""

from dataclasses import replace

import pytest
import torch

from benchmarks.hybrid.config import PLANNER_SMALL
from embodied_kv.config import DTYPES, PI05_SMALL, PRESETS, TINY
from embodied_kv.model import dtype
from embodied_kv.model.dtype import choose_dtype, cpu_multiplies_bfloat16, served
from embodied_kv.model.policy import Policy

OWN = sorted({preset.dtype for preset in PRESETS.values()})


def machine(monkeypatch, **units):
    monkeypatch.setattr(torch.cpu, 'get_capabilities', lambda: units)


@pytest.mark.parametrize('native', [False, True])
@pytest.mark.parametrize('device', ['cpu', 'cuda', 'cuda:1'])
@pytest.mark.parametrize('own', OWN)
class TestChoice:
    @pytest.mark.parametrize('setting', DTYPES)
    def test_set_explicitly_equals_set(self, own, device, native, setting):
        assert choose_dtype(own, device, setting, native)[0] == setting

    def test_auto_equals_own_but_for_bfloat16_without_units(self, own, device, native):
        widened = own == 'bfloat16' and device == 'cpu' and not native
        chosen, why = choose_dtype(own, device, 'auto', native)
        assert chosen == ('float32' if widened else own)
        assert ('no units' in why) == widened

    def test_no_dtype_is_refused(self, own, device, native):
        with pytest.raises(ValueError, match='engine.dtype'):
            choose_dtype(own, device, 'float64', native)


@pytest.mark.parametrize(
    'units, native',
    [
        (dict(architecture='x86_64', avx512_f=True, avx512_bf16=False, amx_bf16=False), False),
        (dict(architecture='x86_64', avx512_f=True, avx512_bf16=True, amx_bf16=False), True),
        (dict(architecture='x86_64', avx512_f=True, avx512_bf16=False, amx_bf16=True), True),
        (dict(architecture='arm64', neon=True, bf16=False), False),
        (dict(architecture='arm64', neon=True, bf16=True), True),
    ],
)
def test_units_are_what_the_cpu_names(monkeypatch, units, native):
    machine(monkeypatch, **units)
    assert cpu_multiplies_bfloat16() == native


def test_this_machine_names_its_units():
    """torch has not renamed the units; those of other architectures are absent."""
    there = torch.cpu.get_capabilities()
    assert any(unit in there for unit in dtype.UNITS)


@pytest.mark.parametrize('config', [PI05_SMALL, PLANNER_SMALL], ids=lambda config: config.name)
def test_served_differs_in_dtype_alone_and_says_why(monkeypatch, config):
    machine(monkeypatch, avx512_f=True)
    lines = []
    there = served(config, 'cpu', say=lines.append)
    assert there == replace(config, dtype='float32')
    (line,) = lines
    assert config.name in line and 'float32' in line and 'no units' in line


@pytest.mark.parametrize('setting', DTYPES)
def test_weights_and_bytes_follow_the_dtype(setting):
    config = served(TINY, 'cpu', setting)
    assert Policy.random(config).model.dtype == getattr(torch, setting)
    b = config.backbone
    assert config.kv_bytes_per_token == 2 * b.layers * b.kv_heads * b.head_dim * DTYPES[setting]
