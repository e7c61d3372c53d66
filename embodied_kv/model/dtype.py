"""The dtype in which a model is served: its own, unless the CPU has no units for it.

On a CPU without units for bfloat16 a product is several times slower than in float32, because each
factor is converted first. `torch.ops.mkldnn._is_mkldnn_bf16_supported` only checks for AVX-512.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch

from embodied_kv.config import DTYPES, ModelConfig
from embodied_kv.model.planner import PlannerConfig

C = TypeVar('C', ModelConfig, PlannerConfig)
LOG = logging.getLogger(__name__)
AUTO = 'auto'
# Names of `torch.cpu.get_capabilities` for products of bfloat16: two of x86, one of Arm.
UNITS = ('avx512_bf16', 'amx_bf16', 'bf16')


def cpu_multiplies_bfloat16() -> bool:
    """Return whether the CPU has instructions for products of bfloat16."""
    found = torch.cpu.get_capabilities()
    return any(found.get(unit, False) for unit in UNITS)


def choose_dtype(own: str, device: str, setting: str, native: bool) -> tuple[str, str]:
    """Return the dtype to serve in, and the reason.

    own: of the model. setting: `engine.dtype`. native: whether the CPU multiplies bfloat16. Raises
    ValueError for an unknown setting.
    """
    if setting in DTYPES:
        return setting, 'set by engine.dtype'
    if setting != AUTO:
        raise ValueError(f'engine.dtype must be {AUTO}, {" or ".join(DTYPES)} (got {setting!r})')
    if own == 'bfloat16' and torch.device(device).type == 'cpu' and not native:
        return 'float32', 'this CPU has no units for bfloat16'
    return own, 'the dtype of the model'


def served(
    config: C, device: str, setting: str = AUTO, say: Callable[[str], object] = LOG.info
) -> C:
    """Return the config in the dtype in which `device` serves it.

    say: logs the dtype and the reason. Raises ValueError like `choose_dtype`.
    """
    dtype, why = choose_dtype(config.dtype, device, setting, cpu_multiplies_bfloat16())
    say(f'{config.name} computes in {dtype}: {why}')
    return replace(config, dtype=dtype)
