"""Tiny random planners in the format of Hugging Face, one of each family."""

import json
import warnings

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from embodied_kv.model.tokenizer import Tokenizer

VOCABULARY = 260  # of the byte tokenizer, plus two
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] }}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SIZES = dict(
    vocab_size=VOCABULARY + 4,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=640,
    pad_token_id=0,
    eos_token_id=1,
    bos_token_id=2,
)
LLAMA3 = {
    'rope_type': 'llama3',
    'rope_theta': 500.0,
    'factor': 8.0,
    'low_freq_factor': 1.0,
    'high_freq_factor': 4.0,
    'original_max_position_embeddings': 64,
}
GEMMA3 = {
    'sliding_attention': {'rope_type': 'default', 'rope_theta': 100.0},
    'full_attention': {'rope_type': 'linear', 'factor': 8.0, 'rope_theta': 5000.0},
}
FAMILIES = {
    'gemma': lambda: GemmaConfig(**SIZES),
    'gemma3': lambda: Gemma3TextConfig(
        **SIZES,
        sliding_window=600,
        layer_types=['sliding_attention', 'full_attention'] * 2,
        rope_parameters=GEMMA3,
        query_pre_attn_scalar=5,
    ),
    'qwen2': lambda: Qwen2Config(**SIZES, tie_word_embeddings=True),
    'qwen3': lambda: Qwen3Config(**SIZES),
    'llama': lambda: LlamaConfig(**SIZES, rope_parameters=LLAMA3, rms_norm_eps=1e-5),
    'smollm2': lambda: LlamaConfig(**SIZES, tie_word_embeddings=True),
}


def reference(family, seed=0):
    """Return the model of transformers with random weights, none of which are all 0 or 1."""
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        model = AutoModelForCausalLM.from_config(FAMILIES[family](), dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # norms and biases
                parameter.add_(0.3 * torch.randn_like(parameter))
            else:
                parameter.mul_(4)
    return model.requires_grad_(False)


def folder(path, family, template=CHATML, model=None, **changed):
    """Save a planner of this family and return its folder. changed: fields of config.json."""
    (model or reference(family)).save_pretrained(path)
    words = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer(), bos_token='<bos>', eos_token='<eos>', pad_token='<pad>'
    )
    words.chat_template = template
    words.save_pretrained(path)
    if changed:
        config = json.loads((path / 'config.json').read_text())
        (path / 'config.json').write_text(json.dumps(config | changed))
    return path


def tokenizer():
    """Return the byte tokenizer with the two markers of a turn."""
    backend = Tokenizer.bytes().backend
    backend.encode_special_tokens = False
    backend.add_special_tokens(['<pad>', '<eos>', '<bos>', '<|im_start|>', '<|im_end|>'])
    return backend
