"""LeRobot's pi0.5 from a checkout of its source, in any dimensions.

Knows which of its modules the model needs, and what its code has as numbers. Of LeRobot only these
files are run; what they import for training, files and the hub is stood in for (`STAND_INS`), so
none of its other dependencies, nor its version of Python, is needed.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from benchmarks.common.command import BenchmarkError
from embodied_kv.config import ModelConfig

REPOSITORY = 'https://github.com/huggingface/lerobot'
TRIED = '7427f31801f944f5ec9ce53cda02862ce7d1638b'
STEPS = 10  # Euler steps of a chunk
MODEL, GEMMA = 'lerobot.policies.pi05.modeling_pi05', 'lerobot.policies.pi_gemma'
# Packages of which single modules are imported: their __init__ would import the rest of LeRobot.
BARE = (
    *('lerobot', 'lerobot.configs', 'lerobot.policies', 'lerobot.policies.pi05'),
    *('lerobot.policies.rtc', 'lerobot.utils'),
)
# What the model's files import, but the model does not use, or uses as true.
STAND_INS = {
    'lerobot.configs': ('PreTrainedConfig',),
    'lerobot.optim': ('AdamWConfig', 'CosineDecayWithWarmupSchedulerConfig'),
    'lerobot.policies.pretrained': ('PreTrainedPolicy', 'T'),
    'lerobot.utils.import_utils': ('_transformers_available', 'require_package'),
}
# What its model is made of, in its module.
MADE = 'PaliGemmaForConditionalGenerationWithPiGemma', 'PiGemmaForCausalLM'


class StandIn:
    """For a class that is only inherited from, or named."""

    @classmethod
    def register_subclass(cls, name: str) -> Callable[[type], type]:
        return lambda registered: registered

    def __post_init__(self) -> None:
        """Nothing to check."""


def source(path: Path | None) -> Path:
    """The folder of LeRobot's package in a checkout. Raises BenchmarkError."""
    if path is None:
        raise BenchmarkError(
            'give a checkout of LeRobot with --lerobot PATH, for example after: '
            f'git clone {REPOSITORY} && git -C lerobot checkout {TRIED} (the one that was tried)'
        )
    package = path / 'src' / 'lerobot'
    if not package.joinpath(*MODEL.split('.')[1:]).with_suffix('.py').is_file():
        raise BenchmarkError(
            f'{path} is no checkout of LeRobot with pi0.5: {package} has no such model'
        )
    return package


@contextmanager
def imported(package: Path) -> Iterator[ModuleType]:
    """Yield the module of its model, then unload LeRobot's modules. Raises BenchmarkError."""
    before = {name: sys.modules.pop(name) for name in _present()}
    try:
        yield _import(package)
    finally:
        for name in _present():
            del sys.modules[name]
        sys.modules.update(before)


def _present() -> list[str]:
    return [name for name in sys.modules if name.split('.')[0] == 'lerobot']


def _import(package: Path) -> ModuleType:
    for name in BARE:
        module = sys.modules[name] = ModuleType(name)
        module.__path__ = [str(package.joinpath(*name.split('.')[1:]))]
    try:
        types = import_module('lerobot.configs.types')
        vars(sys.modules['lerobot.configs']).update(_public(types))
        for name, missing in STAND_INS.items():
            module = sys.modules.setdefault(name, ModuleType(name))
            vars(module).update(dict.fromkeys(missing, StandIn))
        model = import_module(MODEL)
        _accept_cache_position(import_module(GEMMA))
    except Exception as error:  # whatever code of another day may raise
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise BenchmarkError(
            f'the model in {package} cannot be imported ({reason[0]}): that of {TRIED} can'
        ) from error
    return model


def _public(module: ModuleType) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if not name.startswith('_')}


def _accept_cache_position(module: ModuleType) -> None:
    """Let it call `create_causal_mask` of a transformers that is newer than its own.

    It gives `cache_position` too, which decides nothing beside its masks, as they are whole.
    """
    made = module.create_causal_mask
    if 'cache_position' not in inspect.signature(made).parameters:

        def create_causal_mask(cache_position: Tensor | None = None, **arguments: Any) -> Any:
            return made(**arguments)

        module.create_causal_mask = create_causal_mask


def build(module: ModuleType, c: ModelConfig, device: str) -> nn.Module:
    """Its PI05Pytorch in float32 and the dimensions of `c`; weights are its own random ones.

    Its code has PaliGemma's dimensions as numbers; others are set where it has just done so.
    Raises BenchmarkError for what its pi0.5 cannot have.
    """
    if c.vision.merge != 1:
        raise BenchmarkError(f"{c.name} merges patches of images, which LeRobot's pi0.5 cannot")
    widths = dict(gemma_2b=c.backbone, gemma_300m=c.expert)
    paligemma, gemma = (getattr(module, name) for name in MADE)

    def dimensions(variant: str) -> Any:
        part, b = widths[variant], c.backbone
        return module.GemmaConfig(part.width, b.layers, part.mlp, b.heads, b.kv_heads, b.head_dim)

    def with_backbone(config: Any) -> nn.Module:
        config.text_config.vocab_size = c.backbone.vocab_size
        for name, value in _vision(c).items():
            setattr(config.vision_config, name, value)
        return paligemma(config=config)

    def with_expert(config: Any) -> nn.Module:
        config.vocab_size = 1  # of a head that nothing uses
        return gemma(config=config)

    replaced = dict(zip(MADE, (with_backbone, with_expert), strict=True))
    with patch.multiple(module, get_gemma_config=dimensions, **replaced), torch.device(device):
        made = module.PI05Pytorch(_config(module, c))
    return made.to(device).requires_grad_(False).eval()


def _vision(c: ModelConfig) -> dict[str, Any]:
    v = c.vision
    return dict(
        hidden_size=v.width,
        intermediate_size=v.mlp,
        num_hidden_layers=v.layers,
        num_attention_heads=v.heads,
        patch_size=v.patch_size,
        layer_norm_eps=v.eps,
        projection_dim=c.backbone.width,
    )


def _config(module: ModuleType, c: ModelConfig) -> Any:
    return module.PI05Config(
        dtype='float32',
        num_inference_steps=STEPS,
        chunk_size=c.chunk_size,
        n_action_steps=c.chunk_size,
        max_action_dim=c.padded_action_dim,
        image_resolution=(c.vision.image_size, c.vision.image_size),
        min_period=c.expert.time_min_period,
        max_period=c.expert.time_max_period,
    )
