"""A checkpoint is loaded completely, or refused with the name of the faulty part."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from embodied_kv.config import TINY, preset
from embodied_kv.model.checkpoints.open import open_checkpoint
from embodied_kv.model.checkpoints.own import bundled, save
from embodied_kv.model.parity.golden import Golden
from embodied_kv.model.pi05 import Pi05
from embodied_kv.model.processing.normalizer import Normalizer
from embodied_kv.model.random import init_random
from embodied_kv.model.tokenizer import Tokenizer
from embodied_kv.model.weights import CheckpointError, Weights, fill

GOLDEN = Path(__file__).parents[1] / 'data' / 'pi05_tiny_a.safetensors'
SIZE = GOLDEN.stat().st_size
CONFIG = Golden(GOLDEN).config
HEAD = 'model.paligemma_with_expert.paligemma.lm_head.weight'
TABLE = 'model.paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight'


@pytest.fixture
def lerobot():
    """Return the weights of a small pi0.5 under LeRobot's names."""
    tensors = load_file(GOLDEN)
    return {name: tensor for name, tensor in tensors.items() if name.startswith('model.')}


@pytest.fixture
def into(tmp_path):
    """Return a function that writes tensors to a file and fills a new model from it."""

    def load(tensors, dtype=torch.float32):
        save_file(tensors, tmp_path / 'model.safetensors')
        model = Pi05(CONFIG).to(dtype)
        fill(model, Weights(tmp_path), CONFIG)
        return model

    return load


@pytest.fixture
def folder(tmp_path):
    """Return the path of a saved checkpoint of TINY, and its model."""
    model = Pi05(TINY)
    init_random(model, seed=2)
    state, action = (([-2.0] * n, [3.0] * n) for n in (TINY.state_dim, TINY.action_dim))
    relative = np.zeros(TINY.action_dim, bool)
    normalizer = Normalizer.from_quantiles(state, action, relative)
    save(tmp_path / 'policy', model.state_dict(), TINY, normalizer, Tokenizer.bytes())
    return tmp_path / 'policy', model


def equal(a, b):
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_every_variant_of_their_names_fills_the_same_model(lerobot, into):
    model = into(lerobot)
    openpi = {name.removeprefix('model.'): tensor for name, tensor in lerobot.items()}
    older = {name.replace('.time_mlp', '.action_time_mlp'): t for name, t in lerobot.items()}
    nested = {name.replace('.vision_model.', '.'): tensor for name, tensor in lerobot.items()}
    without_head = {name: tensor for name, tensor in lerobot.items() if name != HEAD}
    without_table = {name: tensor for name, tensor in lerobot.items() if name != TABLE}
    for variant in (openpi, older, nested, without_head, without_table):
        assert equal(into(variant), model)


def test_rows_lie_in_the_order_query_key_value(lerobot, into):
    model = into(lerobot)
    name = 'model.paligemma_with_expert.gemma_expert.model.layers.1.self_attn.{}_proj.weight'
    rows = torch.cat([lerobot[name.format(part)] for part in 'qkv'])
    assert torch.equal(model.expert.layers[1].qkv.weight, rows)


def test_weights_are_converted_to_the_model_s_dtype(lerobot, into):
    model = into(lerobot, torch.bfloat16)
    assert torch.equal(model.backbone.embed.weight, lerobot[HEAD].bfloat16())
    halves = {name: tensor.bfloat16() for name, tensor in lerobot.items()}
    assert equal(into(halves), into(lerobot, torch.bfloat16).float())


@pytest.mark.parametrize('name', ['model.time_mlp_in.bias', 'model.action_out_proj.weight'])
def test_a_missing_weight_is_named(lerobot, into, name):
    del lerobot[name]
    with pytest.raises(CheckpointError, match=f'missing: {name.removeprefix("model.")}'):
        into(lerobot)


def test_a_missing_embedding_is_named(lerobot, into):
    del lerobot[HEAD], lerobot[TABLE]
    with pytest.raises(CheckpointError, match='missing: backbone.embed.weight'):
        into(lerobot)


def test_a_left_over_weight_is_named(lerobot, into):
    lerobot['model.state_proj.weight'] = torch.ones(2, 2)
    with pytest.raises(CheckpointError, match='left over: state_proj.weight'):
        into(lerobot)


def test_a_wrong_shape_is_named_with_both_shapes(lerobot, into):
    lerobot['model.action_in_proj.weight'] = torch.ones(32, 31)
    with pytest.raises(CheckpointError, match=r'action_in_proj.weight is \[32, 31\].*\[32, 32\]'):
        into(lerobot)


def test_rows_may_not_move_between_query_and_key(lerobot, into):
    name = TABLE.replace('embed_tokens', 'layers.0.self_attn.{}_proj')
    lerobot[name.format('q')] = torch.ones(48, 64)
    lerobot[name.format('k')] = torch.ones(32, 64)
    with pytest.raises(CheckpointError, match=r'q_proj.weight is \[48, 64\].*\[64, 64\]'):
        into(lerobot)


def test_tied_embeddings_that_differ_are_refused(lerobot, into):
    lerobot[TABLE] = lerobot[TABLE] + 1
    with pytest.raises(CheckpointError, match='embed_tokens.weight.*tied, but differ'):
        into(lerobot)


def test_integers_are_no_weights(lerobot, into):
    lerobot['model.time_mlp_in.bias'] = torch.ones(32, dtype=torch.int8)
    with pytest.raises(CheckpointError, match='time_mlp_in.bias is I8'):
        into(lerobot)


def test_a_refused_file_leaves_the_model_as_it_was(lerobot, tmp_path):
    lerobot['model.time_mlp_out.bias'] = torch.ones(3)
    save_file(lerobot, tmp_path / 'model.safetensors')
    model, twin = Pi05(CONFIG), Pi05(CONFIG)
    init_random(model)
    init_random(twin)
    with pytest.raises(CheckpointError):
        fill(model, Weights(tmp_path), CONFIG)
    assert equal(model, twin)


@pytest.mark.parametrize(
    ('damage', 'complaint'),
    [
        (lambda data: data[:-1], f'truncated, it has {SIZE - 1} of {SIZE} bytes'),
        (lambda data: data[:200], 'truncated'),
        (lambda data: data[:4], 'not a safetensors file'),
        (lambda data: b'', 'not a safetensors file'),
        (lambda data: b'PK\x03\x04' + data, 'not a safetensors file'),
        (lambda data: data[:8] + b'{]' + data[10:], 'not a safetensors file'),
        (lambda data: data + b'tail', 'damaged'),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, damage, complaint):
    path = tmp_path / 'model.safetensors'
    path.write_bytes(damage(GOLDEN.read_bytes()))
    with pytest.raises(CheckpointError, match=f'{path} is .*{complaint}'):
        Weights(path)


def test_error_of_a_missing_file_names_it(tmp_path):
    with pytest.raises(CheckpointError, match='model.safetensors does not exist'):
        Weights(tmp_path)


def shards(lerobot, folder):
    names = sorted(lerobot)
    parts = {'a.safetensors': names[:50], 'b.safetensors': names[50:]}
    for file, part in parts.items():
        save_file({name: lerobot[name] for name in part}, folder / file)
    index = {'weight_map': {name: file for file, part in parts.items() for name in part}}
    (folder / 'model.safetensors.index.json').write_text(json.dumps(index))


def test_shards_equal_one_file(lerobot, into, tmp_path):
    (tmp_path / 'many').mkdir()
    shards(lerobot, tmp_path / 'many')
    model = Pi05(CONFIG)
    fill(model, Weights(tmp_path / 'many'), CONFIG)
    assert equal(model, into(lerobot))


def test_a_missing_shard_is_named(lerobot, tmp_path):
    shards(lerobot, tmp_path)
    (tmp_path / 'b.safetensors').unlink()
    with pytest.raises(CheckpointError, match='b.safetensors does not exist'):
        Weights(tmp_path)


def test_an_index_that_is_none_is_refused(tmp_path):
    (tmp_path / 'model.safetensors.index.json').write_text('[]')
    with pytest.raises(CheckpointError, match='is not an index'):
        Weights(tmp_path)


def test_loaded_equals_saved(folder):
    path, model = folder
    checkpoint = open_checkpoint(path)
    policy = checkpoint.load()
    assert equal(policy.model, model)
    assert checkpoint.config == policy.config == TINY
    assert policy.tokenizer.encode('cube', bos=True) == Tokenizer.bytes().encode('cube', bos=True)
    statistics = policy.processing.normalizer.state_scale.statistics
    np.testing.assert_array_equal(statistics['q99'], np.full(7, 3, np.float32))


def test_saving_again_replaces_the_whole_and_leaves_nothing_behind(folder):
    path, model = folder
    init_random(model, seed=9)
    save(path, model.state_dict(), TINY, Normalizer.identity(TINY), Tokenizer.bytes())
    assert equal(open_checkpoint(path).load().model, model)
    assert [entry.name for entry in path.parent.iterdir()] == ['policy']


def test_a_save_that_fails_leaves_the_old_checkpoint(folder):
    path, model = folder
    with pytest.raises(AttributeError):
        save(path, model.state_dict(), TINY, None, Tokenizer.bytes())
    assert equal(open_checkpoint(path).load().model, model)
    assert [entry.name for entry in path.parent.iterdir()] == ['policy']


@pytest.mark.parametrize(
    ('other', 'complaint'),
    [
        (replace(TINY, chunk_size=9), 'chunk_size is 6, the model has 9'),
        (replace(TINY, expert=replace(TINY.expert, mlp=96)), 'expert.mlp is 64, the model has 96'),
        (replace(TINY, views=('front',)), 'views is'),
    ],
)
def test_other_dimensions_are_refused_by_name(folder, other, complaint):
    with pytest.raises(CheckpointError, match=complaint):
        open_checkpoint(folder[0], config=other)


def test_a_config_is_not_guessed():
    with pytest.raises(CheckpointError, match='no checkpoint that can be recognised'):
        open_checkpoint(GOLDEN)


def test_a_config_with_other_fields_is_refused_and_both_names_are_said(tmp_path):
    fields = asdict(TINY)
    fields['horizon'] = fields.pop('chunk_size')
    metadata = {'embodied_kv.config': json.dumps(fields)}
    save_file({'backbone.norm.weight': torch.ones(1)}, tmp_path / 'model.safetensors', metadata)
    with pytest.raises(CheckpointError, match='lacks chunk_size, has unknown horizon'):
        open_checkpoint(tmp_path)


def test_the_bundled_config_is_that_of_its_preset():
    config = open_checkpoint(bundled('tabletop')).config
    assert replace(config, dtype='float32') == preset('tabletop')


@pytest.mark.parametrize('name', ['tokenizer.json', 'norm_stats.json'])
def test_a_part_that_is_missing_is_named(folder, name):
    path, _ = folder
    (path / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        open_checkpoint(path).load()


def test_another_tokenizer_than_that_of_the_weights_is_refused(folder):
    path, _ = folder
    words = json.loads((path / 'tokenizer.json').read_text())
    vocabulary = words['model']['vocab']
    vocabulary['a'], vocabulary['b'] = vocabulary['b'], vocabulary['a']
    (path / 'tokenizer.json').write_text(json.dumps(words))
    with pytest.raises(CheckpointError, match='not the one that these weights were trained with'):
        open_checkpoint(path).load()
