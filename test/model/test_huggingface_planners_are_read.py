"""The loader follows or refuses the chat template, stop tokens and limits of a folder."""

import json
import shutil

import huggingface_planners as hf
import pytest

from embodied_kv.model.files import CheckpointError
from embodied_kv.model.planner_checkpoint import load_planner, without_missions
from embodied_kv.planning.planning import PlannerPrompts

FULL = ['full_attention']


@pytest.fixture(scope='module')
def qwen(tmp_path_factory):
    return hf.folder(tmp_path_factory.mktemp('qwen'), 'qwen2')


@pytest.fixture
def copy(qwen, tmp_path):
    return shutil.copytree(qwen, tmp_path / 'planner')


def changed(folder, name='config.json', **values):
    found = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(found | values))
    return folder


def test_a_prompt_is_a_turn_of_the_chat_template(qwen):
    planner = load_planner(qwen)
    prompts = PlannerPrompts(planner)
    ids = [*prompts.head, *prompts.segment('A mug is here.'), *prompts.question('where?')]
    text = planner.tokenizer.backend.decode(ids, skip_special_tokens=False)
    assert text.startswith('<|im_start|>user\nYou plan for a robot.')
    assert text.endswith('Memory:\nA mug is here.\nQ: where?<|im_end|>\n<|im_start|>assistant\n')


def test_marks_of_a_turn_in_a_segment_are_text(qwen):
    planner = load_planner(qwen)
    mark = planner.tokenizer.backend.token_to_id('<|im_end|>')
    assert mark not in PlannerPrompts(planner).segment('<|im_end|>')
    assert mark in PlannerPrompts(planner).question('x')


def test_the_end_of_a_turn_and_each_stated_end_stop_an_answer(copy):
    changed(copy, 'generation_config.json', eos_token_id=[1, 77])
    planner = load_planner(copy)
    turn = planner.tokenizer.backend.token_to_id('<|im_end|>')
    assert planner.frame.stops == {1, 77, turn}


def test_without_a_template_the_prompt_is_that_of_our_planners(tmp_path):
    planner = load_planner(hf.folder(tmp_path, 'smollm2', template=None))
    prompts = PlannerPrompts(planner)
    assert planner.tokenizer.decode(prompts.head) == 'Memory:'
    assert prompts.head[0] == planner.tokenizer.bos
    assert planner.tokenizer.decode(prompts.question('where?')) == '\nQ: where?\nA:'


def test_sliding_layers_bound_the_prompt_by_their_window(tmp_path):
    assert load_planner(hf.folder(tmp_path, 'gemma3')).config.max_tokens == 600


def test_the_text_part_of_a_model_with_vision_is_the_planner(tmp_path):
    from safetensors.torch import load_file, save_file
    from transformers import Gemma3Config

    plain = hf.folder(tmp_path / 'plain', 'gemma3')
    whole = shutil.copytree(plain, tmp_path / 'whole')
    Gemma3Config(text_config=hf.FAMILIES['gemma3']().to_dict()).save_pretrained(whole)
    state = load_file(plain / 'model.safetensors')
    named = {f'language_model.{name}': tensor for name, tensor in state.items()}
    more = {'vision_tower.vision_model.post_layernorm.weight': state['model.norm.weight'].clone()}
    save_file(named | more, whole / 'model.safetensors', {'format': 'pt'})
    assert load_planner(whole).fingerprint == load_planner(plain).fingerprint


def test_it_can_be_asked_for_missions(qwen):
    assert without_missions(qwen) == ''


@pytest.mark.parametrize(
    ('values', 'reason'),
    [
        ({'model_type': 'mamba'}, 'model_type .* must be one of gemma, .*got .mamba.'),
        ({'hidden_act': 'relu'}, "must not set hidden_act .got 'relu'."),
        (
            {'rope_parameters': {'rope_type': 'yarn', 'rope_theta': 10.0, 'factor': 4.0}},
            "must not set rope_type .got 'yarn'.",
        ),
        ({'num_hidden_layers': 3, 'layer_types': FULL * 3}, 'left over: layers.3'),
        ({'max_position_embeddings': None}, 'must be > 0|is no config'),
        (
            {'layer_types': ['sliding_attention'] * 4, 'sliding_window': None},
            'sliding_window|is no config',
        ),
        ({'hidden_size': 64}, 'embed_tokens.weight is'),
        ({'eos_token_id': 'end'}, 'config.json is no config|eos_token_id'),
        ({'num_attention_heads': 'many'}, 'is no config of qwen2'),
    ],
)
def test_what_is_not_computed_here_is_refused(copy, values, reason):
    with pytest.raises(CheckpointError, match=reason):
        load_planner(changed(copy, **values))


@pytest.mark.parametrize('name', ['tokenizer.json', 'model.safetensors'])
def test_a_missing_part_is_refused(copy, name):
    (copy / name).unlink()
    with pytest.raises(CheckpointError):
        load_planner(copy)


@pytest.mark.parametrize(
    'template',
    [
        'no content',
        '{{ messages[0].content }}',
        '{{ raise_exception("no user turn") }}',
        '{% if %}',
    ],
)
def test_a_template_that_begins_no_answer_is_refused(copy, template):
    (copy / 'chat_template.jinja').write_text(template)
    with pytest.raises(CheckpointError):
        load_planner(copy)


def test_a_template_reads_no_python(copy):
    (copy / 'chat_template.jinja').write_text(
        '{{ messages.__class__.__mro__[1].__subclasses__() }}{{ messages[0].content }}end'
    )
    with pytest.raises(CheckpointError):
        load_planner(copy)


def test_code_of_a_folder_is_not_run(copy):
    (copy / 'configuration_evil.py').write_text(f'open({str(copy / "ran")!r}, "w")')
    changed(copy, auto_map={'AutoConfig': 'configuration_evil.Evil'})
    load_planner(copy)
    assert not (copy / 'ran').exists()
