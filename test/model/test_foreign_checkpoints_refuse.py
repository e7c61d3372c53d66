"""LeRobot and openpi folders that would give other results here are refused by name."""

from dataclasses import replace

import pytest
import torch
from cases import (
    LEROBOT,
    LIBERO,
    POST,
    PRE,
    STATE_FILES,
    WIDTHS,
    copied,
    opened,
    retensor,
    rewrite,
    step,
)

from embodied_kv.model.checkpoints.open import open_checkpoint
from embodied_kv.model.weights import CheckpointError
from embodied_kv.robots.declared import Declared

STATISTICS = 'assets/physical-intelligence/libero/norm_stats.json'


@pytest.fixture
def lerobot(tmp_path):
    return copied(LEROBOT, tmp_path / 'policy')


@pytest.fixture
def openpi(tmp_path):
    return copied(LIBERO, tmp_path / 'policy')


def refused(folder, complaint):
    with pytest.raises(CheckpointError, match=complaint):
        opened(folder).load(dtype='float32')


@pytest.mark.parametrize(
    ('switch', 'value'),
    [
        ('use_visual_memory', True),
        ('use_proprioceptive_memory', True),
        ('n_obs_steps', 2),
        ('paligemma_variant', 'gemma_300m'),
        ('uses_something_new', True),
        ('image_resolution', [448, 448]),
        ('use_peft', True),
        ('empty_cameras', 2),
        ('type', 'pi0'),
        ('tokenizer_max_length', 48),
    ],
)
def test_a_switch_that_changes_the_result(lerobot, switch, value):
    rewrite(lerobot / 'config.json', lambda config: config.update({switch: value}))
    refused(lerobot, 'pi05' if switch == 'type' else switch if switch != 'use_peft' else 'adapter')


def test_a_new_switch_that_is_off_is_none(lerobot):
    rewrite(lerobot / 'config.json', lambda config: config.update(uses_something_new=False))
    opened(lerobot)


def test_an_unknown_step(lerobot):
    extra = {'registry_name': 'delta_timestamps_processor', 'config': {}}
    rewrite(lerobot / PRE, lambda value: value['steps'].insert(2, extra))
    refused(lerobot, 'the step delta_timestamps_processor is not supported')


def test_an_unknown_setting_of_a_step(lerobot):
    def change(value):
        step(value, 'normalizer_processor')['normalize_observation_keys'] = ['observation.state']

    rewrite(lerobot / PRE, change)
    refused(lerobot, 'normalizer_processor: not supported: normalize_observation_keys')


def test_steps_in_another_order(lerobot):
    rewrite(lerobot / PRE, lambda value: value['steps'].reverse())
    refused(lerobot, 'not in the order')


def test_a_step_that_is_missing(lerobot):
    rewrite(lerobot / POST, lambda value: value['steps'].pop(0))
    refused(lerobot, 'the step unnormalizer_processor is missing')


@pytest.mark.parametrize('mode', ['MIN_MAX', 'QUANTILE10', 'IDENTITY'])
def test_another_mode(lerobot, mode):
    modes = {'VISUAL': 'IDENTITY', 'STATE': mode, 'ACTION': 'QUANTILES'}
    rewrite(lerobot / 'config.json', lambda value: value.update(normalization_mapping=modes))
    for file, name in ((PRE, 'normalizer_processor'), (POST, 'unnormalizer_processor')):
        rewrite(lerobot / file, lambda value, name=name: step(value, name).update(norm_map=modes))
    refused(lerobot, f'state normalised by {mode}')


def test_modes_that_differ_between_files(lerobot):
    def change(value):
        value['normalization_mapping']['ACTION'] = 'MEAN_STD'

    rewrite(lerobot / 'config.json', change)
    refused(lerobot, 'normalization_mapping and norm_map differ')


@pytest.mark.parametrize(
    ('change', 'complaint'),
    [
        (lambda t: t.pop('action.q99'), 'action.q99 is missing: quantiles needs q01 and q99'),
        (lambda t: t['action.q01'].fill_(9), 'action.q99 lies below'),
        (lambda t: t['action.q01'].fill_(float('nan')), 'action.q01 is not finite'),
        (
            lambda t: t.update({'action.q01': torch.zeros(6)}),
            r'action.q01 is \[6\], expected \[7\]',
        ),
        (lambda t: [t.pop(name) for name in [*t] if name[:6] == 'action'], 'there is nothing'),
    ],
)
def test_statistics_that_cannot_be(lerobot, change, complaint):
    for file in STATE_FILES.values():
        retensor(lerobot / file, change)
    refused(lerobot, complaint)


def test_two_processors_of_different_data(lerobot):
    retensor(lerobot / STATE_FILES[POST], lambda tensors: tensors['action.q99'].add_(0.1))
    refused(lerobot, 'two processors normalise action by different statistics')


def test_a_tokenizer_of_the_hub_says_where_to_get_it(lerobot):
    def change(value):
        step(value, 'tokenizer_processor')['tokenizer_name'] = 'google/paligemma-3b-pt-224'
        next(s for s in value['steps'] if 'artifacts' in s).pop('artifacts')

    rewrite(lerobot / PRE, change)
    refused(lerobot, 'names google/paligemma-3b-pt-224 .* or copy its tokenizer.json')
    (lerobot / 'tokenizer.json').write_bytes((lerobot / 'tokenizer/tokenizer.json').read_bytes())
    opened(lerobot).load(dtype='float32')


def test_a_tokenizer_that_puts_no_bos(lerobot):
    path = lerobot / 'tokenizer/tokenizer.json'
    rewrite(path, lambda value: value.update(post_processor=None))
    refused(lerobot, r'must add the ids \[2\] to a text')


@pytest.mark.parametrize(
    'file',
    ['model.safetensors', *STATE_FILES.values(), PRE, 'config.json', 'tokenizer/tokenizer.json'],
)
def test_a_truncated_file(lerobot, file):
    data = (lerobot / file).read_bytes()
    (lerobot / file).write_bytes(data[: len(data) // 2])
    refused(lerobot, 'truncated|not JSON|not a tokenizer.json')


@pytest.mark.parametrize('file', [PRE, POST])
def test_a_missing_file_is_named(lerobot, file):
    (lerobot / file).unlink()
    refused(lerobot, f'{file} does not exist')


def test_the_file_of_the_weights_stands_for_its_folder(lerobot):
    assert opened(lerobot / 'model.safetensors', Declared(fps=30)).kind == 'lerobot'


def test_an_adapter_alone_is_no_policy(tmp_path):
    (tmp_path / 'adapter_config.json').write_text('{}')
    with pytest.raises(CheckpointError, match='an adapter without its processors'):
        open_checkpoint(tmp_path)


def test_a_weight_that_is_missing(lerobot):
    retensor(lerobot / 'model.safetensors', lambda tensors: tensors.pop(next(iter(tensors))))
    refused(lerobot, 'missing: ')


def change_statistics(part, name, value):
    def change(stats):
        stats['norm_stats'][part][name] = value

    return change


@pytest.mark.parametrize(
    ('change', 'complaint'),
    [
        (change_statistics('state', 'q01', [9.0] * 8), 'state.q99 lies below'),
        (change_statistics('state', 'q01', [0.0] * 5), r'state.q01 is \[5\], expected \[8\]'),
        (change_statistics('actions', 'q99', ['a'] * 7), 'actions.q99 is no list of numbers'),
        (lambda stats: stats['norm_stats'].pop('actions'), 'actions is missing'),
        (lambda stats: stats['norm_stats']['state'].pop('q01'), 'state.q01 is missing'),
    ],
)
def test_openpi_s_statistics_that_cannot_be(openpi, change, complaint):
    rewrite(openpi / STATISTICS, change)
    refused(openpi, complaint)


def test_quantiles_that_are_equal_are_openpi_s_own_matter(openpi):
    rewrite(openpi / STATISTICS, change_statistics('state', 'q01', [1.0] * 8))
    rewrite(openpi / STATISTICS, change_statistics('state', 'q99', [1.0] * 8))
    assert opened(openpi).processing.state([1.0] * 8).tolist() == [-1.0] * 8


def test_assets_that_the_converter_left_out(openpi):
    (openpi / STATISTICS).unlink()
    refused(openpi, 'has no assets/<asset_id>/norm_stats.json')


def test_assets_of_two_robots(openpi):
    other = openpi / 'assets/droid'
    other.mkdir()
    (other / 'norm_stats.json').write_bytes((openpi / STATISTICS).read_bytes())
    refused(openpi, 'statistics of several robots')


def test_a_tokenizer_that_openpi_has_in_its_cache(openpi):
    (openpi / 'paligemma_tokenizer.model').unlink()
    refused(openpi, 'copy paligemma_tokenizer.model there')


def test_a_lora_variant_without_its_tensors(openpi):
    config = {'paligemma_variant': 'gemma_2b_lora'}
    rewrite(openpi / 'config.json', lambda value: value.update(config))
    refused(openpi, 'says gemma_2b_lora, but no tensor is of an adapter')


def test_a_state_token_beside_adaptive_norms(openpi):
    tensors = {'state_proj.weight': torch.ones(2, 2)}
    retensor(openpi / 'model.safetensors', lambda there: there.update(tensors))
    refused(openpi, r'missing: .*input_layernorm\.weight.*left over: .*input_layernorm\.dense')


def test_folder_of_unknown_origin_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match='model.safetensors does not exist'):
        open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match='nowhere does not exist'):
        open_checkpoint(tmp_path / 'nowhere')


def test_widths_of_another_model(lerobot):
    wider = replace(WIDTHS, expert=replace(WIDTHS.expert, mlp=96))
    with pytest.raises(CheckpointError, match=r'is \[64, 32\], the model has \[96, 32\]'):
        open_checkpoint(lerobot, Declared(fps=30), wider).load()
