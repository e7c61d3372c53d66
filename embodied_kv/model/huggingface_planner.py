"""Planners in the format of Hugging Face: Gemma, Gemma 3, Qwen 2.5, Qwen 3, Llama and SmolLM2.

A folder has config.json, weights as safetensors, tokenizer.json and, of a model for dialogues, a
chat template. transformers reads config and chat template (in its sandbox); no code of the folder
is run, and nothing is unpickled. A layer with sliding attention equals one with full attention
while a prompt fits its window, so the window bounds the prompts of such a planner.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import torch

from embodied_kv.config import DTYPES, BackboneConfig
from embodied_kv.model.files import CheckpointError, read_json
from embodied_kv.model.keys import LAYER, Naming
from embodied_kv.model.planner import Planner, PlannerConfig
from embodied_kv.model.planner_prompts import HEAD, INTRODUCTION, PromptFrame
from embodied_kv.model.tokenizer import Tokenizer

CONFIG = 'config.json'
# model_type: the kind of its layers
KINDS = {
    'gemma': 'gemma',
    'gemma3': 'gemma',
    'gemma3_text': 'gemma',
    'qwen2': 'llama',
    'qwen3': 'llama',
    'llama': 'llama',
}
ACTIVATIONS = {'gemma': 'gelu_pytorch_tanh', 'llama': 'silu'}
# rope_type: the parameters of its scaling, in the order of `layers.wavelengths`
SCALINGS = {
    'default': (),
    'linear': ('factor',),
    'llama3': (
        'factor',
        'low_freq_factor',
        'high_freq_factor',
        'original_max_position_embeddings',
    ),
}
NOT_COMPUTED = (
    'attn_logit_softcapping',
    'final_logit_softcapping',
    'use_bidirectional_attention',
)
MOST_TOKENS = 4096  # of a prompt, because each robot has a row of that length
CONTENT = 'CONTENT-OF-THE-PROMPT'  # stands in the chat template for memory and question
NOT_READ = 'vision_tower.', 'multi_modal_projector.'
NORMS = {
    'attn_norm': 'input_layernorm',
    'mlp_norm': 'post_attention_layernorm',
    'q_norm': 'self_attn.q_norm',
    'k_norm': 'self_attn.k_norm',
}
WITH_BRANCH_NORMS = NORMS | {
    'attn_out_norm': 'post_attention_layernorm',
    'mlp_norm': 'pre_feedforward_layernorm',
    'mlp_out_norm': 'post_feedforward_layernorm',
}


def is_huggingface(path: Path) -> bool:
    """Return whether a path is a folder with a config.json that names a type of model."""
    return (path / CONFIG).is_file() and 'model_type' in read_json(path / CONFIG)


def read_config(path: Path) -> PlannerConfig:
    """Return the dimensions of the planner in a folder, in the dtype of its weights.

    Raises CheckpointError for another type of model, and for an option that is not computed here.
    """
    found = _text_config(path)
    kind, local = KINDS[found.model_type], _local_layers(found)
    rope, local_rope = _ropes(found)
    _check_options(path, found, rope, local_rope or {})
    limits = [found.max_position_embeddings, *([found.sliding_window] if local else [])]
    if not all(isinstance(limit, int) and limit > 0 for limit in limits):
        raise CheckpointError(
            f'max_position_embeddings and, of sliding layers, sliding_window of {path / CONFIG} '
            f'must be > 0 (got {limits})'
        )
    backbone = BackboneConfig(
        width=found.hidden_size,
        layers=found.num_hidden_layers,
        heads=found.num_attention_heads,
        kv_heads=found.num_key_value_heads,
        head_dim=getattr(found, 'head_dim', None)
        or found.hidden_size // found.num_attention_heads,
        mlp=found.intermediate_size,
        vocab_size=found.vocab_size,
        rope_theta=float(rope['rope_theta']),
        eps=found.rms_norm_eps,
        kind=kind,
        shares_head=bool(found.tie_word_embeddings),
        qkv_bias=found.model_type == 'qwen2' or bool(getattr(found, 'attention_bias', False)),
        qk_norm=found.model_type in ('qwen3', 'gemma3_text'),
        branch_norms=found.model_type == 'gemma3_text',
        scales_tokens=kind == 'gemma',
        rope_scaling=tuple(float(rope[name]) for name in SCALINGS[rope['rope_type']]),
        local_layers=local if local_rope else (),
        local_theta=float((local_rope or rope)['rope_theta']),
    )
    dtype = str(found.dtype).removeprefix('torch.')
    own = dtype if dtype in DTYPES else 'float32'
    return PlannerConfig(found.model_type, backbone, min(*limits, MOST_TOKENS), own)


def read_prompts(path: Path, config: PlannerConfig) -> tuple[Tokenizer, PromptFrame]:
    """Return the tokenizer of a folder, and the frame of its prompts. Raises CheckpointError."""
    from transformers import AutoTokenizer  # takes seconds to import

    try:
        theirs = AutoTokenizer.from_pretrained(
            path, local_files_only=True, trust_remote_code=False
        )
        specials = {name: getattr(theirs, f'{name}_token') for name in ('pad', 'eos', 'bos')}
        tokenizer = Tokenizer.load(path, config.backbone.vocab_size, specials)
        before, after = _dialogue(path, theirs)
        head, tail = (
            tuple(theirs(text, add_special_tokens=False)['input_ids']) for text in (before, after)
        )
    except CheckpointError:
        raise
    except Exception as error:  # of any type, from a template or the Rust parser
        raise CheckpointError(
            f'{path} must have a tokenizer.json that transformers reads (got {error})'
        ) from error
    if max((*head, *tail), default=0) >= config.backbone.vocab_size:
        raise CheckpointError(
            f'tokens of the chat template of {path} must be below vocab_size '
            f'{config.backbone.vocab_size} (got {max(*head, *tail)}); resize its embeddings'
        )
    stops = _stops(path, config) | {tokenizer.eos}
    if not tail:
        return tokenizer, PromptFrame((*tokenizer.encode(HEAD, bos=True),), (), frozenset(stops))
    if tail[0] in theirs.added_tokens_decoder:  # the end of a turn
        stops |= {tail[0]}
    return tokenizer, PromptFrame(head, tail, frozenset(stops))


def naming(config: PlannerConfig) -> Naming:
    """Return how the files name the parameters of a planner."""
    return Naming(partial(_canonical, config.backbone), partial(_sources, config.backbone))


@torch.no_grad()
def scale_queries(model: Planner, path: Path) -> None:
    """Scale the norm of the queries where the model divides scores by another number.

    Attention divides them by sqrt(head_dim); Gemma 3 by sqrt(query_pre_attn_scalar).
    """
    dim = model.config.backbone.head_dim
    scale = (dim / getattr(_text_config(path), 'query_pre_attn_scalar', dim)) ** 0.5
    if scale == 1:
        return
    for layer in model.backbone.layers:
        norm = layer.q_norm
        norm.weight.copy_((norm.offset + norm.weight.float()) * scale - norm.offset)


def _text_config(path: Path) -> Any:
    name = read_json(path / CONFIG).get('model_type')
    if name not in KINDS:
        known = ', '.join(kind for kind in KINDS if kind != 'gemma3_text')
        raise CheckpointError(
            f'model_type of {path / CONFIG} must be one of {known} (got {name!r}); '
            'choose a planner of such a family'
        )
    from transformers import AutoConfig  # takes seconds to import

    try:
        found = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        text = found.get_text_config()
        text.dtype = text.dtype or found.dtype  # with vision, only the whole config may have one
        return text
    except Exception as error:  # of any type, for a field of another type
        raise CheckpointError(f'{path / CONFIG} is no config of {name}: {error}') from error


def _local_layers(found: Any) -> tuple[int, ...]:
    kinds = getattr(found, 'layer_types', None) or ()
    return tuple(i for i, kind in enumerate(kinds) if kind == 'sliding_attention')


def _ropes(found: Any) -> tuple[dict, dict | None]:
    """Return the rotary parameters, and those of local layers if they have others."""
    rope = found.rope_parameters
    if 'full_attention' in rope:
        return rope['full_attention'], rope['sliding_attention']
    return rope, None


def _check_options(path: Path, found: Any, rope: dict, local_rope: dict) -> None:
    """Raise CheckpointError that names an option that is not computed here."""
    activation = getattr(found, 'hidden_activation', None) or found.hidden_act
    checks = [
        ('hidden_act', activation, (ACTIVATIONS[KINDS[found.model_type]], None)),
        ('rope_type', rope['rope_type'], tuple(SCALINGS)),
        ('local rope_type', local_rope.get('rope_type', 'default'), ('default',)),
        ('partial_rotary_factor', rope.get('partial_rotary_factor', 1.0), (1.0, None)),
        *((name, getattr(found, name, None) or None, (None,)) for name in NOT_COMPUTED),
    ]
    for name, value, computed in checks:
        if value not in computed:
            raise CheckpointError(
                f'{path / CONFIG} must not set {name} (got {value!r}), which is not computed '
                'here; choose another planner'
            )


def _dialogue(path: Path, theirs: Any) -> tuple[str, str]:
    """Return the text before and behind memory and question; two empty ones without a template."""
    if not theirs.chat_template:
        return '', ''
    turn = {'role': 'user', 'content': f'{INTRODUCTION}\n{HEAD}{CONTENT}'}
    text = theirs.apply_chat_template(
        [turn], tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    before, found, after = text.partition(CONTENT)
    if not found or not after:
        raise CheckpointError(
            f'the chat template of {path} must contain the content of a turn, and begin an answer '
            f'behind it (got {text!r})'
        )
    return before, after


def _stops(path: Path, config: PlannerConfig) -> set[int]:
    """Return the tokens that end an answer, by the two configs. Raises CheckpointError."""
    found: set[int] = set()
    for name in ('generation_config.json', CONFIG):
        ends = read_json(path / name).get('eos_token_id') if (path / name).is_file() else None
        found |= set(ends if isinstance(ends, list) else [] if ends is None else [ends])
    if not all(isinstance(end, int) and 0 <= end < config.backbone.vocab_size for end in found):
        raise CheckpointError(f'eos_token_id of {path} must be ids of tokens (got {found})')
    return found


def _canonical(b: BackboneConfig, name: str) -> str | None:
    for prefix in ('model.', 'language_model.', 'model.'):
        name = name.removeprefix(prefix)
    if name.startswith(NOT_READ) or name.endswith('rotary_emb.inv_freq'):
        return None
    return 'embed_tokens.weight' if name == 'lm_head.weight' and not b.has_own_head else name


def _sources(b: BackboneConfig, name: str) -> tuple[str, ...]:
    name = name.removeprefix('backbone.').replace('embed.', 'embed_tokens.')
    name = name.replace('head.', 'lm_head.')
    layer = re.fullmatch(r'(layers\.\d+)\.(\w+)\.(weight|bias)', name)
    if layer is None:
        return (name,)
    index, module, kind = layer.groups()
    norms = WITH_BRANCH_NORMS if b.branch_norms else NORMS
    parts = LAYER.get(module) or (norms[module],)
    return tuple(f'{index}.{part}.{kind}' for part in parts)
