"""LeRobot's SmolVLA folders are read with the dimensions of their files, or refused by name."""

import json

import pytest
from cases import PRE, SMOLVLA, copied, opened, retensor, rewrite, step

from embodied_kv.config import PI05
from embodied_kv.config import SMOLVLA as PRESET
from embodied_kv.model.checkpoints import hub, smolvla
from embodied_kv.model.checkpoints.family import Stated
from embodied_kv.model.files import CheckpointError

VLM = 'vlm/config.json'


@pytest.fixture
def folder(tmp_path):
    return copied(SMOLVLA, tmp_path / 'policy')


def with_settings(folder, **settings):
    rewrite(folder / 'config.json', lambda value: value.update(settings))
    return folder


def dimensions(folder):
    return opened(folder).config


def test_the_model_is_that_of_the_files(folder):
    c = dimensions(folder)
    assert (c.backbone.layers, c.backbone.kv_heads, c.expert.width) == (4, 2, 48)
    assert c.vision.tokens == 64 and c.state_width == 32 and c.state_dim == 6
    assert c.cross_layers == (1, 3)


def test_it_says_nothing_because_it_was_trained_on_actions(folder):
    checkpoint = opened(folder)
    assert checkpoint.says == ()
    assert any('token of its own' in line for line in checkpoint.lines())


def test_the_dimensions_of_smolvlm2_500m_are_those_of_the_preset(folder):
    (folder / VLM).unlink()
    settings = json.loads((folder / 'config.json').read_text()) | {'num_vlm_layers': 16}
    tokenizer = folder / 'tokenizer/tokenizer.json'
    stated = Stated(folder, settings, 32, 3, lambda: tokenizer, hub.silent)
    found = smolvla.dimensions(stated, PI05)
    assert found.backbone == PRESET.backbone and found.vision == PRESET.vision
    assert found.expert == PRESET.expert


def test_another_model_without_its_config_is_refused_with_the_remedy(folder):
    (folder / VLM).unlink()
    with_settings(folder, vlm_model_name='somewhere/vlm')
    with pytest.raises(CheckpointError, match='somewhere/vlm.*or copy its config.json to'):
        opened(folder)


@pytest.mark.parametrize(
    ('settings', 'complaint'),
    [
        (dict(resize_imgs_with_padding=[256, 256]), r'must be \[512, 512\]'),
        (dict(num_vlm_layers=7), 'num_vlm_layers must be at most 6 .got 7'),
        (dict(num_expert_layers=3), 'num_expert_layers must divide num_vlm_layers 4 .got 3'),
        (dict(num_expert_layers=8), 'num_expert_layers must divide num_vlm_layers 4 .got 8'),
        (dict(num_expert_layers=2, self_attn_every_n_layers=3), 'must have an expert layer'),
        (dict(adapt_to_pi_aloha=True), 'not supported: adapt_to_pi_aloha = True'),
        (dict(num_vlm_layers=6), 'text_model.layers.4'),
        (dict(attention_mode='self_attn'), 'lm_expert.layers'),
    ],
)
def test_settings_that_the_weights_or_the_suite_do_not_have_are_refused(
    folder, settings, complaint
):
    with pytest.raises(CheckpointError, match=complaint):
        opened(with_settings(folder, **settings)).load()


def test_pictures_stand_between_the_special_tokens_of_the_tokenizer(folder):
    plain = dimensions(folder)
    framed = dimensions(with_settings(folder, add_image_special_tokens=True))
    path = folder / 'tokenizer/tokenizer.json'
    ids = {token['content']: token['id'] for token in json.loads(path.read_text())['added_tokens']}
    assert framed.frame == (ids['<fake_token_around_image>'], ids['<global-img>'])
    assert framed.prefix_tokens == plain.prefix_tokens + 3 * len(plain.views)


def test_an_empty_camera_is_a_slot_whether_or_not_the_features_name_it(folder):
    counted = opened(with_settings(folder, empty_cameras=1))
    rewrite(
        folder / 'config.json',
        lambda value: value['input_features'].update(
            {'observation.images.empty_camera_0': {'type': 'VISUAL', 'shape': [3, 480, 640]}}
        ),
    )
    named = opened(folder)
    assert named.config == counted.config and named.config.view_slots == 3
    assert named.empty_views == counted.empty_views == ('observation.images.empty_camera_0',)


def test_a_tokenizer_without_these_is_refused(folder):
    with_settings(folder, add_image_special_tokens=True)
    rewrite(folder / 'tokenizer/tokenizer.json', lambda value: value['added_tokens'].clear())
    with pytest.raises(CheckpointError, match='has no token <fake_token_around_image>'):
        opened(folder)


@pytest.mark.parametrize('name', ['text_config', 'vision_config'])
def test_a_config_without_a_part_is_refused(folder, name):
    rewrite(folder / VLM, lambda value: value.pop(name))
    with pytest.raises(CheckpointError, match='must be the config of a SmolVLM'):
        opened(folder)


def test_a_tokenizer_that_adds_a_token_to_a_text_is_refused(folder):
    def change(value):
        value['post_processor'] = {
            'type': 'TemplateProcessing',
            'single': [
                {'SpecialToken': {'id': '<|im_start|>', 'type_id': 0}},
                {'Sequence': {'id': 'A', 'type_id': 0}},
            ],
            'pair': [{'Sequence': {'id': 'A', 'type_id': 0}}],
            'special_tokens': {
                '<|im_start|>': {'id': '<|im_start|>', 'ids': [1], 'tokens': ['<|im_start|>']}
            },
        }

    rewrite(folder / 'tokenizer/tokenizer.json', change)
    with pytest.raises(CheckpointError, match=r'must add the ids \[\] to a text.*got \[1\]'):
        opened(folder).tokenizer()


def test_a_missing_projection_is_named(folder):
    name = 'model.vlm_with_expert.lm_expert.layers.1.self_attn.k_proj.weight'
    retensor(folder / 'model.safetensors', lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match=r'lm_expert\.layers\.1\.self_attn\.k_proj'):
        opened(folder).load()


def test_the_length_of_the_prompt_is_that_of_the_files(folder):
    with_settings(folder, tokenizer_max_length=20)
    rewrite(folder / PRE, lambda value: step(value, 'tokenizer_processor').update(max_length=20))
    assert dimensions(folder).max_text == 20
