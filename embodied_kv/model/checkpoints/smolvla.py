"""LeRobot's SmolVLA: its processing, and its dimensions, which its folder only names.

config.json names a vision-language model of the Hugging Face hub. Its own config, with widths and
heads, is `vlm/config.json` in the folder, or is fetched. The widths of the expert follow LeRobot's
policies/smolvla/smolvlm_with_expert.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from embodied_kv.config import SMOLVLA, ModelConfig
from embodied_kv.model.checkpoints import hub
from embodied_kv.model.checkpoints.family import FIRST, NORMALIZE, TOKENIZER, Family, Stated
from embodied_kv.model.files import CheckpointError, read_json
from embodied_kv.model.processing import images

VLM = 'HuggingFaceTB/SmolVLM2-500M-Video-Instruct'  # whose dimensions the preset `smolvla` has
# Special tokens before a picture; the first of them also follows it.
FRAME = '<fake_token_around_image>', '<global-img>'
MLP_STEP = 256  # the width of the expert's feed-forward is a multiple of it


def dimensions(stated: Stated, _: ModelConfig) -> ModelConfig:
    """Return the dimensions of a folder. Raises CheckpointError."""
    folder, settings = stated.path, stated.settings
    base = _vlm(folder, settings, stated.say)
    b, size = base.backbone, base.vision.image_size
    if settings.get('resize_imgs_with_padding', [size, size]) != [size, size]:
        raise CheckpointError(
            f'{folder}: resize_imgs_with_padding must be {[size, size]}, the size of the vision '
            f'tower (got {settings["resize_imgs_with_padding"]})'
        )
    wanted = settings.get('num_vlm_layers', 16)
    layers = wanted if wanted > 0 else b.layers
    if layers > b.layers:
        raise CheckpointError(
            f'{folder}: num_vlm_layers must be at most {b.layers} (got {layers})'
        )
    experts = settings.get('num_expert_layers', -1)
    every = layers // experts if experts > 0 else 1
    if not every or (experts > 0 and len(range(0, layers, every)) != experts):
        raise CheckpointError(
            f'{folder}: num_expert_layers must divide num_vlm_layers {layers} (got {experts})'
        )
    self_every = settings.get('self_attn_every_n_layers', 2)
    self_every = max(0, self_every) if 'cross' in settings.get('attention_mode', 'cross') else 1
    if self_every and any(i % every for i in range(0, layers, self_every)):
        raise CheckpointError(
            f'{folder}: layers of self attention must have an expert layer (got every '
            f'{self_every} of them, and an expert layer for every {every})'
        )
    width = int(b.width * settings.get('expert_width_multiplier', 0.75))
    mlp = int(4 * int(2 * width / 3))
    return replace(
        base,
        backbone=replace(b, layers=layers),
        expert=replace(
            base.expert,
            width=width,
            mlp=-(-mlp // MLP_STEP) * MLP_STEP,
            every=every,
            self_every=self_every,
        ),
        frame=_frame(stated.tokenizer()) if settings.get('add_image_special_tokens') else (),
        empty_views=settings.get('empty_cameras', 0),
        view_slots=stated.views,
        state_width=stated.state_width,
        dtype='bfloat16' if settings.get('load_vlm_weights') else 'float32',
    )


def _vlm(folder: Path, settings: Mapping[str, Any], say: hub.Say) -> ModelConfig:
    """Return the preset with the dimensions of the vision-language model."""
    name = str(settings.get('vlm_model_name') or VLM)
    path = folder / 'vlm' / 'config.json'
    if not path.is_file():
        if name == VLM:
            return SMOLVLA
        try:
            path = hub.fetch(name, 'config.json', say)
        except CheckpointError as error:
            raise CheckpointError(
                f'{folder}: config.json names {name} on the Hugging Face hub, whose dimensions '
                f'are unknown: {error}; or copy its config.json to {path}'
            ) from error
    found = read_json(path)
    text, vision = found.get('text_config') or {}, found.get('vision_config') or {}
    try:
        heads = text['num_attention_heads']
        return replace(
            SMOLVLA,
            vision=replace(
                SMOLVLA.vision,
                image_size=vision.get('image_size', SMOLVLA.vision.image_size),
                patch_size=vision.get('patch_size', SMOLVLA.vision.patch_size),
                width=vision['hidden_size'],
                layers=vision['num_hidden_layers'],
                heads=vision['num_attention_heads'],
                mlp=vision['intermediate_size'],
                merge=found.get('scale_factor', SMOLVLA.vision.merge),
                eps=vision.get('layer_norm_eps', SMOLVLA.vision.eps),
            ),
            backbone=replace(
                SMOLVLA.backbone,
                width=text['hidden_size'],
                layers=text['num_hidden_layers'],
                heads=heads,
                kv_heads=text['num_key_value_heads'],
                head_dim=text.get('head_dim') or text['hidden_size'] // heads,
                mlp=text['intermediate_size'],
                vocab_size=text['vocab_size'],
                eps=text.get('rms_norm_eps', SMOLVLA.backbone.eps),
            ),
        )
    except KeyError as error:
        raise CheckpointError(
            f'{path} must be the config of a SmolVLM (got no {error.args[0]}); copy that of {name}'
        ) from error


def _frame(tokenizer: Path) -> tuple[int, ...]:
    """Return the ids of FRAME. Raises CheckpointError."""
    added = json.loads(tokenizer.read_text(encoding='utf-8-sig')).get('added_tokens') or ()
    ids = {token['content']: token['id'] for token in added}
    if missing := [name for name in FRAME if name not in ids]:
        raise CheckpointError(f'{tokenizer} has no token {missing[0]}, which pictures need')
    return tuple(ids[name] for name in FRAME)


FAMILY = Family(
    preprocessor={
        **FIRST,
        'smolvla_new_line_processor': set(),
        'tokenizer_processor': TOKENIZER,
        'device_processor': {'device'},
        'normalizer_processor': NORMALIZE,
    },
    max_text=48,
    dimensions=dimensions,
    resize=images.BILINEAR_CORNER,
    was_padded=False,
    begins=False,
    adds_cameras=True,
)
