"""The parity tool reports ok for equal numbers, FAIL for others, or why it cannot compare."""

from pathlib import Path

import pytest
import torch
from numpy_reference import write_golden
from safetensors import safe_open
from safetensors.torch import save_file

from embodied_kv.model.parity.__main__ import main

GOLDEN = Path(__file__).parents[1] / 'data' / 'pi05_tiny_a.safetensors'


@pytest.fixture
def changed(tmp_path):
    """Return a function that copies the golden file after `change(tensors, metadata)`."""

    def make(change):
        with safe_open(GOLDEN, 'pt') as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
            metadata = file.metadata()
        change(tensors, metadata)
        save_file(tensors, tmp_path / 'changed.safetensors', metadata)
        return str(tmp_path / 'changed.safetensors')

    return make


def test_the_model_equals_the_recorded_reference(capsys):
    assert main([str(GOLDEN)]) == 0
    *lines, verdict = capsys.readouterr().out.splitlines()
    with safe_open(GOLDEN, 'pt') as file:
        recorded = [name for name in file.keys() if name.startswith('expected.')]
    assert [line.split()[0] for line in lines] == sorted(recorded)
    assert all(line.endswith('ok') for line in lines)
    assert verdict.endswith('ok, all 31 quantities within tolerance')


@pytest.mark.parametrize(
    ('image_masks', 'valid_tokens', 'dimensions'),
    [
        ([[True, True], [True, True]], [9, 3], {}),
        ([[True, False, True], [True, True, True]], [4, 9], {'num_images': 3}),  # a gap
        ([[False, True], [True, False]], [2, 1], {'horizon': 12, 'num_steps': 8}),  # leading gap
        ([[True]], [5], {'num_images': 1, 'text_kv_heads': 6}),
        ([[True, True]] * 3, [1, 9, 5], {'text_kv_heads': 1, 'text_head_dim': 16}),
        ([[False, False], [True, True]], [6, 6], {'text_layers': 3, 'num_steps': 2}),
    ],
)
def test_the_model_equals_float64_at_other_dimensions(
    tmp_path, capsys, image_masks, valid_tokens, dimensions
):
    path = str(tmp_path / 'golden.safetensors')
    write_golden(path, image_masks, valid_tokens, **dimensions)
    assert main([path]) == 0, capsys.readouterr().out


def double(name):
    return lambda tensors, _: tensors[name].mul_(1.01)


@pytest.mark.parametrize(
    'change',
    [
        double('model.action_out_proj.weight'),
        double('expected.prefix_v.2'),
        lambda tensors, _: tensors['expected.v_t'][3, 1, 2].fill_(float('nan')),
        lambda tensors, _: tensors['expected.prefix_pad_mask'][0, 3].fill_(False),
        lambda tensors, _: tensors.update({'expected.actions': torch.zeros(2, 10, 7)}),
        lambda _, metadata: metadata.update(rms_norm_eps='1e-05'),
        lambda _, metadata: metadata.update(vision_layer_norm_eps='1e-05'),
    ],
)
def test_a_wrong_number_fails(changed, capsys, change):
    assert main([changed(change)]) == 1
    *lines, verdict = capsys.readouterr().out.splitlines()
    assert any(' FAIL' in line for line in lines)
    assert 'FAIL' in verdict


def test_an_unknown_quantity_fails(changed, capsys):
    path = changed(lambda tensors, _: tensors.update({'expected.aura': torch.ones(3)}))
    assert main([path]) == 1
    assert 'expected.aura' in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize(
    ('change', 'complaint'),
    [
        (lambda _, metadata: metadata.pop('text_heads'), 'text_heads'),
        (
            lambda _, metadata: metadata.update(horizon='ten'),
            "horizon must be a positive number (got 'ten')",
        ),
        (lambda _, metadata: metadata.update(expert_layers='2'), 'expert_layers is 2'),
        (lambda _, metadata: metadata.update(text_activation='relu'), 'text_activation is relu'),
        (lambda _, metadata: metadata.update(text_mlp_dim='120'), 'gate_proj.weight is [128, 64]'),
        (lambda tensors, _: tensors.pop('input.noise'), 'input.noise is missing'),
        (lambda tensors, _: tensors.pop('model.time_mlp_in.bias'), 'missing: time_mlp_in.bias'),
        (lambda tensors, _: tensors['input.tokens'].fill_(512), 'input.tokens'),
    ],
)
def test_case_that_cannot_be_rebuilt_is_refused_by_name(changed, capsys, change, complaint):
    assert main([changed(change)]) == 2
    assert complaint in capsys.readouterr().err


def test_the_worst_of_several_files_decides(changed, capsys):
    bad = changed(double('expected.actions'))
    assert main([str(GOLDEN), bad]) == 1
    assert main([bad, str(GOLDEN)]) == 1
    verdicts = [line for line in capsys.readouterr().out.splitlines() if 'safetensors:' in line]
    assert len(verdicts) == 4


def test_a_truncated_file_is_refused(tmp_path, capsys):
    path = tmp_path / 'short.safetensors'
    path.write_bytes(GOLDEN.read_bytes()[:-100])
    assert main([str(path)]) == 2
    assert 'truncated' in capsys.readouterr().err
