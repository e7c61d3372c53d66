"""Adapters are folded into the weights as W + scaling * B A, or refused."""

import json
from pathlib import Path

import pytest
import torch
from cases import LEROBOT, LIBERO, copied, opened, retensor, rewrite
from safetensors.torch import load_file, save_file

from embodied_kv.model.weights import CheckpointError

TEXT = 'paligemma_with_expert.paligemma.model.language_model.layers.1.self_attn.q_proj'
EXPERT = 'paligemma_with_expert.gemma_expert.model.layers.0.mlp.down_proj'
PEFT = dict(
    peft_type='LORA',
    r=4,
    lora_alpha=6,
    use_rslora=False,
    bias='none',
    init_lora_weights=True,
    base_model_name_or_path='',
    target_modules=['q_proj'],
    lora_dropout=0.1,
    megatron_core='megatron.core',
    qalora_group_size=16,
)


def pair(shape, rank, seed):
    random = torch.Generator().manual_seed(seed)
    a = torch.randn(rank, shape[1], generator=random)
    return a, torch.randn(shape[0], rank, generator=random)


def rows_of(model, ours):
    return model.state_dict()[ours]


@pytest.fixture
def openpi(tmp_path):
    """Return a folder with adapters of both variants, named as in PEFT, and the folded weights."""
    folder = copied(LIBERO, tmp_path / 'policy')
    variants = dict(paligemma_variant='gemma_2b_lora', action_expert_variant='gemma_300m_lora')
    rewrite(folder / 'config.json', lambda value: value.update(variants))
    tensors = load_file(folder / 'model.safetensors')
    folded = {}
    for seed, (module, rank) in enumerate(((TEXT, 16), (EXPERT, 32))):
        weight = tensors.pop(f'{module}.weight')
        a, b = pair(weight.shape, rank, seed)
        tensors |= {
            f'{module}.base_layer.weight': weight,
            f'{module}.lora_A.weight': a,
            f'{module}.lora_B.weight': b,
        }
        folded[module] = weight + b @ a
    save_file(tensors, folder / 'model.safetensors')
    return folder, folded


def test_openpi_s_variants_are_folded_with_a_scaling_of_one(openpi):
    folder, folded = openpi
    model = opened(folder).load(dtype='float32').model
    query = rows_of(model, 'backbone.layers.1.qkv.weight')[: len(folded[TEXT])]
    torch.testing.assert_close(query, folded[TEXT])
    torch.testing.assert_close(rows_of(model, 'expert.layers.0.down.weight'), folded[EXPERT])


@pytest.mark.parametrize(
    ('change', 'complaint'),
    [
        (lambda t: t.pop(f'{TEXT}.lora_B.weight'), 'q_proj has lora_A alone'),
        (lambda t: t.pop(f'{TEXT}.base_layer.weight'), 'q_proj has an adapter, but no weight'),
        (lambda t: t.update({'x.lora_magnitude': torch.ones(2)}), 'not supported: x.lora_magn'),
        (lambda t: t.update({f'{TEXT}.lora_B.weight': torch.ones(3, 16)}), r'make \[3, 48\]'),
        (lambda t: t.update({f'{EXPERT}.lora_A.weight': torch.ones(8, 64)}), 'rank 8'),
    ],
)
def test_what_is_not_understood_among_the_weights_is_refused(openpi, change, complaint):
    folder, _ = openpi
    retensor(folder / 'model.safetensors', change)
    with pytest.raises(CheckpointError, match=complaint):
        opened(folder).load(dtype='float32')


def test_an_adapter_beside_a_variant_without_lora_is_refused(openpi):
    folder, _ = openpi
    rewrite(folder / 'config.json', lambda v: v.update(action_expert_variant='gemma_300m'))
    with pytest.raises(CheckpointError, match='adapter of rank 32, its variant: gemma_300m'):
        opened(folder)


def adapter(folder, **changes):
    """Add a PEFT adapter to a folder; return q_proj, its B A and the new action_in_proj."""
    rewrite(folder / 'config.json', lambda value: value.update(use_peft=True))
    (folder / 'adapter_config.json').write_text(json.dumps(PEFT | changes))
    base = load_file(folder / 'model.safetensors')
    weight = base[f'model.{TEXT}.weight']
    a, b = pair(weight.shape, 4, 7)
    whole = base['model.action_in_proj.weight'] * 2
    head = 'base_model.model.model.'
    tensors = {
        f'{head}{TEXT}.lora_A.weight': a,
        f'{head}{TEXT}.lora_B.weight': b,
        f'{head}action_in_proj.weight': whole,
    }
    save_file(tensors, folder / 'adapter_model.safetensors')
    return weight, b @ a, whole


@pytest.mark.parametrize(
    ('changes', 'scaling'),
    [
        ({}, 6 / 4),
        ({'use_rslora': True}, 6 / 2),
        ({'alpha_pattern': {'layers.1.self_attn.q_proj': 2}}, 2 / 4),
    ],
)
def test_peft_s_adapter_is_folded(tmp_path, changes, scaling):
    folder = copied(LEROBOT, tmp_path / 'policy')
    weight, product, whole = adapter(folder, **changes)
    model = opened(folder).load(dtype='float32').model
    query = rows_of(model, 'backbone.layers.1.qkv.weight')[: len(weight)]
    torch.testing.assert_close(query, weight + scaling * product)
    torch.testing.assert_close(rows_of(model, 'expert.action_in.weight'), whole)


def test_the_base_may_lie_where_the_adapter_says(tmp_path):
    folder = copied(LEROBOT, tmp_path / 'policy')
    weight, product, _ = adapter(folder, base_model_name_or_path=str(tmp_path / 'base'))
    Path(tmp_path / 'base').mkdir()
    (folder / 'model.safetensors').rename(tmp_path / 'base/model.safetensors')
    model = opened(folder).load(dtype='float32').model
    query = rows_of(model, 'backbone.layers.1.qkv.weight')[: len(weight)]
    torch.testing.assert_close(query, weight + 1.5 * product)


@pytest.mark.parametrize(
    ('changes', 'complaint'),
    [
        ({'use_dora': True}, 'use_dora = true'),
        ({'peft_type': 'IA3'}, 'peft_type = IA3'),
        ({'bias': 'all'}, 'bias = all'),
        ({'init_lora_weights': 'pissa'}, 'init_lora_weights = pissa'),
        ({'lora_bias': True}, 'lora_bias = true'),
    ],
)
def test_other_adapters_are_refused(tmp_path, changes, complaint):
    folder = copied(LEROBOT, tmp_path / 'policy')
    adapter(folder, **changes)
    with pytest.raises(CheckpointError, match=complaint):
        opened(folder)


def test_an_adapter_without_its_base_says_where_to_put_it(tmp_path):
    folder = copied(LEROBOT, tmp_path / 'policy')
    adapter(folder, base_model_name_or_path='lerobot/pi05_base')
    (folder / 'model.safetensors').unlink()
    with pytest.raises(CheckpointError, match='adapter of lerobot/pi05_base: copy the model'):
        opened(folder)
