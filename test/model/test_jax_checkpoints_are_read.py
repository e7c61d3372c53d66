"""The weights of a JAX step folder are those that openpi serves, in both forms of its tree."""

import shutil
import sys
from collections import Counter
from dataclasses import replace

import pytest
import torch
from cases import JAX_ALOHA, JAX_DROID, declared, rewrite
from jax_trees import tree_of, write_step

from embodied_kv.model.checkpoints.open import open_checkpoint
from embodied_kv.model.checkpoints.openpi_jax import JaxWeights
from embodied_kv.model.checkpoints.orbax import Leaves
from embodied_kv.model.convert import main as convert
from embodied_kv.model.files import read_json
from embodied_kv.model.parity.cases import widths
from embodied_kv.model.weights import CheckpointError

HEADS = 4
ATTENTION = 'PaliGemma/llm/layers/attn/'
MLP = 'PaliGemma/llm/layers/mlp_1/'


def opened(step, facts=JAX_ALOHA, **changed):
    dims = widths(read_json(facts / 'case.json')['dims'])
    return open_checkpoint(step, replace(declared(facts), **changed), dims)


def state(step, facts=JAX_ALOHA):
    return opened(step, facts).load(dtype='float32').model.state_dict()


def assert_equal(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize('value', [True, False])
def test_keys_may_end_with_value_or_not(tmp_path, value):
    step = write_step(JAX_ALOHA, tmp_path / 'step', tree_of(JAX_ALOHA), value)
    assert_equal(state(step), state(JAX_ALOHA))


def test_leaves_of_bfloat16_are_read_exactly(tmp_path):
    tree = {name: array.bfloat16() for name, array in tree_of(JAX_ALOHA).items()}
    step = write_step(JAX_ALOHA, tmp_path / 'step', tree)
    rounded = {name: t.bfloat16().float() for name, t in state(JAX_ALOHA).items()}
    assert_equal(state(step), rounded)


def test_each_leaf_is_read_once(monkeypatch):
    read, whole = Counter(), Leaves.read

    def counted(self, name):
        read[name] += 1
        return whole(self, name)

    monkeypatch.setattr(Leaves, 'read', counted)
    opened(JAX_DROID, JAX_DROID).load(dtype='float32')
    assert set(read.values()) == {1} and len(read) > 40


def adapted(tree, rank=3):
    """Return the tree with adapters on attention and feed-forward, under openpi's names."""
    generator = torch.Generator().manual_seed(1)

    def noise(*shape):
        return torch.randn(shape, generator=generator) * 0.1

    new = dict(tree)
    for name in ('q_einsum', 'kv_einsum', 'attn_vec_einsum'):
        *outer, wide, tall = tree[f'{ATTENTION}{name}/w'].shape
        new[f'{ATTENTION}{name}/lora_a'] = noise(*outer, wide, rank)
        new[f'{ATTENTION}{name}/lora_b'] = noise(*outer, rank, tall)
    for name in ('gating_einsum', 'linear'):
        *outer, wide, tall = tree[f'{MLP}{name}'].shape
        new[f'{MLP}{name}_lora_a'] = noise(*outer, wide, rank)
        new[f'{MLP}{name}_lora_b'] = noise(*outer, rank, tall)
    return new


def test_adapters_compute_what_the_equations_of_openpi_do(tmp_path):
    tree = adapted(tree_of(JAX_ALOHA))
    weights = JaxWeights(write_step(JAX_ALOHA, tmp_path / 'step', tree))
    prefix = 'paligemma_with_expert.paligemma.model.language_model.layers.1.'

    def leaf(name):
        return tree[name][1].double()

    def both(name, first, second, x):
        """Return B (A x) for one token x, by the equations of openpi's models/lora.py."""
        a, b = (leaf(f'{ATTENTION}{name}/lora_{half}') for half in 'ab')
        return torch.einsum(second, torch.einsum(first, x, a), b)

    generator = torch.Generator().manual_seed(2)
    q = leaf(f'{ATTENTION}q_einsum/w')
    x = torch.randn(q.shape[1], generator=generator, dtype=torch.float64)
    theirs = torch.einsum('d,ndh->nh', x, q) + both('q_einsum', 'd,ndl->nl', 'nl,nlh->nh', x)
    ours = weights.read(f'{prefix}self_attn.q_proj.weight').double() @ x
    torch.testing.assert_close(ours, theirs.flatten(), rtol=1e-5, atol=1e-5)

    out = leaf(f'{ATTENTION}attn_vec_einsum/w')
    heads = torch.randn(out.shape[:2], generator=generator, dtype=torch.float64)
    theirs = torch.einsum('nh,nhd->d', heads, out)
    theirs = theirs + both('attn_vec_einsum', 'nh,nhl->l', 'l,nld->d', heads)
    ours = weights.read(f'{prefix}self_attn.o_proj.weight').double() @ heads.flatten()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)

    expert = 'paligemma_with_expert.gemma_expert.model.layers.1.mlp.up_proj.weight'
    a, b = (leaf(f'{MLP}gating_einsum_lora_{half}')[1] for half in 'ab')
    theirs = (leaf(f'{MLP}gating_einsum')[1] + a @ b).T
    torch.testing.assert_close(weights.read(expert).double(), theirs, rtol=1e-5, atol=1e-5)


def test_an_adapter_changes_what_is_loaded(tmp_path, caplog):
    step = write_step(JAX_ALOHA, tmp_path / 'step', adapted(tree_of(JAX_ALOHA)))
    plain, folded = state(JAX_ALOHA), state(step)
    assert 'adapters of rank 3 are added with a scaling of 1' in caplog.text  # openpi: 16, 32
    differ = {name for name in plain if not torch.equal(plain[name], folded[name])}
    assert differ == {
        *(f'backbone.layers.{i}.{part}.weight' for i in (0, 1) for part in ('qkv', 'o')),
        *(f'expert.layers.{i}.{part}.weight' for i in (0, 1) for part in ('gate_up', 'down')),
    }


def dropped(name):
    return lambda tree: {leaf: array for leaf, array in tree.items() if leaf != name}


def added(name, array):
    return lambda tree: tree | {name: array}


Q = f'{ATTENTION}q_einsum/'


@pytest.mark.parametrize(
    ('change', 'named'),
    [
        (dropped('action_out_proj/kernel'), 'missing: action_out_proj.weight'),
        (dropped('action_in_proj/kernel'), 'missing: action_in_proj.weight'),
        (dropped('PaliGemma/llm/final_norm/scale'), 'missing: .*language_model.norm.weight'),
        (added('PaliGemma/llm/gate/scale', torch.ones(3)), 'left over: PaliGemma/llm/gate/scale'),
        (added('action_out_proj/bias', torch.ones(3)), r'is \[3\], the model has \[32\]'),
        (added('action_out_proj/bias', torch.ones(32).int()), r'must be one of .*\(got int32\)'),
        (added('PaliGemma/img/embedding/kernel', torch.ones(3)), 'must have other axes'),
        (added(f'{Q}lora_a', torch.ones(2, 4, 48, 3)), 'lora_a must have its other half'),
        (
            lambda tree: (
                tree
                | {f'{Q}lora_a': torch.ones(2, 4, 48, 3), f'{Q}lora_b': torch.ones(2, 4, 5, 16)}
            ),
            'lora_a must fit .*q_einsum/w',
        ),
        (added('nothing_lora_a', torch.ones(3)), 'nothing_lora_a must have its other half'),
    ],
)
def test_another_tree_is_refused_by_name(tmp_path, change, named):
    step = write_step(JAX_ALOHA, tmp_path / 'step', change(tree_of(JAX_ALOHA)))
    with pytest.raises(CheckpointError, match=named):
        state(step)


def copied(to, step=JAX_ALOHA):
    shutil.copytree(step, to, ignore=shutil.ignore_patterns('case.safetensors'))
    return to


def test_files_that_are_missing_or_damaged_are_named(tmp_path):
    step = copied(tmp_path / 'manifest')
    (step / 'params' / 'manifest.ocdbt').unlink()
    with pytest.raises(CheckpointError, match=r'format OCDBT.*no manifest\.ocdbt'):
        opened(step)
    step = copied(tmp_path / 'metadata')
    (step / 'params' / '_METADATA').unlink()
    with pytest.raises(CheckpointError, match='_METADATA does not exist'):
        opened(step)
    step = copied(tmp_path / 'tree')
    rewrite(step / 'params' / '_METADATA', lambda value: value.update(tree_metadata={}))
    with pytest.raises(CheckpointError, match="must list arrays below the key 'params'"):
        opened(step)
    step = copied(tmp_path / 'data')
    for path in (step / 'params').rglob('d/*'):
        path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(CheckpointError, match='copy the folder again'):
        state(step)


def test_without_tensorstore_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, 'tensorstore', None)
    with pytest.raises(CheckpointError, match=r"install the extra 'jax': pip install '\.\[jax\]'"):
        opened(JAX_ALOHA)


def test_the_contract_states_the_length_of_a_chunk():
    with pytest.raises(CheckpointError, match='write chunk_size in the contract'):
        opened(JAX_ALOHA, chunk_size=None)


def test_pi0_has_no_state_in_its_prompt():
    assert not opened(JAX_ALOHA, state_in_prompt=True).processing.prompt.with_state
    assert not opened(JAX_ALOHA, state_in_prompt=None).processing.prompt.with_state


def test_pi0_is_mute():
    assert opened(JAX_ALOHA).says == () and opened(JAX_DROID, JAX_DROID).says is None


def test_a_converted_checkpoint_is_the_same_one(tmp_path, capsys):
    step = write_step(JAX_ALOHA, tmp_path / 'step', adapted(tree_of(JAX_ALOHA)))
    out = tmp_path / 'out'
    assert convert([str(step), str(out), '--dtype', 'float32']) == 0
    assert 'in float32' in capsys.readouterr().out
    assert_equal(state(out), state(step))
    assert opened(out).lines()[1:] == opened(step).lines()[1:]


def test_conversion_refuses_what_it_would_lose(tmp_path, capsys):
    assert convert([str(JAX_ALOHA.parent / 'e2e_lerobot_pi0'), str(tmp_path / 'a')]) == 2
    assert 'must be a step folder of openpi in JAX' in capsys.readouterr().err
    assert convert([str(JAX_ALOHA), str(tmp_path)]) == 2
    assert 'must not exist' in capsys.readouterr().err
    tree = added('PaliGemma/llm/gate/scale', torch.ones(3))(tree_of(JAX_ALOHA))
    step = write_step(JAX_ALOHA, tmp_path / 'step', tree)
    assert convert([str(step), str(tmp_path / 'b')]) == 2
    assert 'not supported: PaliGemma/llm/gate/scale' in capsys.readouterr().err
    shutil.rmtree(step / 'assets')
    assert convert([str(step), str(tmp_path / 'c')]) == 2
    assert 'norm_stats.json' in capsys.readouterr().err
    assert not any((tmp_path / name).exists() for name in 'abc')
