"""Scorers of the kvpress package as methods, where that package is installed.

A `ScorerPress` scores one layer by score(module, hidden_states, keys, values, attentions, kwargs)
-> [batch, kv_heads, n]. There is no torch module here: a scorer gets keys, values, the attention
that was accumulated, and a module's plain sizes. One that reaches for weights or hidden states is
refused when it does.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from embodied_kv.compress.base import Method, Statistics

PREFIX = 'kvpress:'


@dataclass(frozen=True)
class KvPress(Method):
    """A scorer of kvpress; budgets and recent window are this suite's, equal in every layer.

    press: the scorer; its own compression_ratio is not used. queries: None for one that looks at
    keys and values only; for one of attention, the queries whose accumulated attention it gets, as
    attention of one query: [1, heads, 1, n].
    """

    press: Any = None
    queries: str | None = None
    window: int = 32

    @property
    def name(self) -> str:
        return PREFIX + type(self.press).__name__

    def scores(self, stats: Statistics) -> Tensor:
        """Raises ValueError without keys and values, or if the scorer needs a real module."""
        if stats.keys is None or stats.values is None:
            raise ValueError(f'{self.name} looks at keys and values: put them in the statistics')
        return torch.stack([self._layer(stats, layer) for layer in range(stats.layers)])

    def _layer(self, stats: Statistics, layer: int) -> Tensor:
        """Scores of one layer, [kv_heads, n]."""
        keys, values = stats.keys[layer][None], stats.values[layer][None]
        heads, dim = stats.columns.shape[1], keys.shape[3]
        module = SimpleNamespace(
            layer_idx=layer,
            head_dim=dim,
            config=SimpleNamespace(
                num_hidden_layers=stats.layers,
                num_attention_heads=heads,
                num_key_value_heads=stats.kv_heads,
                head_dim=dim,
            ),
        )
        attention = stats.columns[layer][None, :, None] if stats.queries else None
        nothing = keys.new_empty(1, stats.n, 0)  # hidden states: their length alone is known
        try:
            return self.press.score(module, nothing, keys, values, attention, {})[0].float()
        except (AttributeError, KeyError) as error:
            raise ValueError(
                f'{self.name} asks for more of a model than there is here ({error}): only scorers '
                'of keys, values and attention can be plugged in'
            ) from error


def from_kvpress(
    press: str, options: Mapping[str, object] | None = None, **fields: object
) -> KvPress:
    """The scorer of that class name, made with `options`; the method's own fields beside them.

    Raises ImportError without kvpress, ValueError if it has no such `ScorerPress`.
    """
    try:
        package = importlib.import_module('kvpress')
    except ImportError as error:
        raise ImportError(
            f'{PREFIX}{press} needs the package kvpress, which is not installed; '
            'the methods of this suite need none'
        ) from error
    cls = getattr(package, press, None)
    if not (isinstance(cls, type) and issubclass(cls, package.ScorerPress)):
        raise ValueError(f'kvpress has no ScorerPress named {press!r}')
    return KvPress(press=cls(**options or {}), **fields)
