"""In which dtype a model is served: its own, unless the CPU has no units for it.

Knows what a CPU says of itself. Does not know what a model is, beyond that its config has a dtype.

A bfloat16 product on a CPU without units for it is several times slower than in float32: each
factor is widened first. That oneDNN can do it (`torch.ops.mkldnn._is_mkldnn_bf16_supported`) says
no more than that the CPU has AVX-512.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch

from embodied_kv.config import DTYPES, ModelConfig
from embodied_kv.model.planner import PlannerConfig

C = TypeVar('C', ModelConfig, PlannerConfig)  # any dataclass with name and dtype
LOG = logging.getLogger(__name__)
AUTO = 'auto'
# Names of `torch.cpu.get_capabilities` for products of bfloat16: two of x86, one of Arm.
UNITS = ('avx512_bf16', 'amx_bf16', 'bf16')


def cpu_multiplies_bfloat16() -> bool:
    """Whether this machine's CPU has instructions for it."""
    there = torch.cpu.get_capabilities()
    return any(there.get(unit, False) for unit in UNITS)


def choose_dtype(own: str, device: str, setting: str, native: bool) -> tuple[str, str]:
    """A dtype of `DTYPES`, and why it is that one.

    own: the model's. setting: `engine.dtype`, 'auto' or what it has to be. native: whether the CPU
    multiplies bfloat16. Raises ValueError for any other setting.
    """
    if setting in DTYPES:
        return setting, 'as engine.dtype says'
    if setting != AUTO:
        raise ValueError(f'engine.dtype must be {AUTO}, {" or ".join(DTYPES)} (got {setting!r})')
    if own == 'bfloat16' and torch.device(device).type == 'cpu' and not native:
        return 'float32', 'this CPU has no units for bfloat16'
    return own, "the model's own"


def served(
    config: C, device: str, setting: str = AUTO, say: Callable[[str], object] = LOG.info
) -> C:
    """The config in the dtype that `device` serves it in; say: takes the line that says why.

    Raises ValueError as choose_dtype.
    """
    dtype, why = choose_dtype(config.dtype, device, setting, cpu_multiplies_bfloat16())
    say(f'{config.name} computes in {dtype}: {why}')
    return replace(config, dtype=dtype)
