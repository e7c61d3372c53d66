"""Scorers of the kvpress package as methods, if that package is installed.

A `ScorerPress` scores one layer by score(module, hidden_states, keys, values, attentions, kwargs)
-> [batch, kv_heads, n]. Here a scorer gets keys, values, accumulated attention, and an object with
the sizes of the module. A scorer that needs weights or hidden states is refused at configure
(`KvPress.validate_model`).
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from embodied_kv.compress.base import Method, Statistics

PREFIX = 'kvpress:'
# Queries whose attention a scorer observes; other scorers read keys and values only.
OBSERVED = {'ObservedAttentionPress': 'all', 'SnapKVPress': 'window'}


@dataclass(frozen=True)
class KvPress(Method):
    """A scorer of kvpress, with the budgets and the recent window of `Method`.

    press: the scorer; its own compression_ratio is not used. queries: None for a scorer of keys
    and values only; else the queries whose attention it observes: it gets [1, heads, queries, n],
    in which each query has the mean attention of all. shortest: as in `Method`; a scorer that
    observes a window needs a token before it.
    """

    reads_kv = True

    press: Any = None
    name: str = ''
    queries: str | None = None
    window: int = 0
    shortest: int = 1

    def validate_model(self, heads: int, kv_heads: int, head_dim: int, longest: int) -> None:
        """Check the model as `Method.validate_model` does, by scoring a random prefix."""
        if longest < self.shortest:
            raise ValueError(
                f'the window of {self.name} must be shorter than the longest prefix of {longest} '
                f'tokens (got {self.window}); reduce it by {self.name}(window_size=...)'
            )
        g = torch.Generator().manual_seed(0)
        keys, values = torch.randn(2, 1, kv_heads, longest, head_dim, generator=g)
        columns = torch.rand(1, heads, longest, generator=g)
        queries = 0 if self.queries is None else self.window or longest
        density = torch.ones(1, heads)
        self.scores(Statistics(columns, density, kv_heads, queries, keys=keys, values=values))

    def scores(self, stats: Statistics) -> Tensor:
        """Return scores as `Method.scores`, -inf for NaN. Raises ValueError."""
        if stats.keys is None or stats.values is None:
            raise ValueError(f'{self.name} needs keys and values; put them in the statistics')
        layers = zip(stats.keys, stats.values, strict=True)
        return torch.stack([self._layer(stats, i, *kv) for i, kv in enumerate(layers)])

    def _layer(self, stats: Statistics, layer: int, keys: Tensor, values: Tensor) -> Tensor:
        """Return the scores of one layer, [kv_heads, n]; keys, values: [kv_heads, n, head_dim]."""
        keys, values = keys[None].float(), values[None].float()
        module = _sizes(stats, layer, keys.shape[3])
        attention = None
        if self.queries is not None:
            mean = stats.columns[layer] / stats.queries
            attention = mean[None, :, None].expand(-1, -1, stats.queries, -1)
        nothing = keys.new_empty(1, stats.n, 0)  # hidden states of width 0
        try:
            scores = self.press.score(module, nothing, keys, values, attention, {})
            scores = scores.view(stats.kv_heads, stats.n)
        except Exception as error:  # a scorer may need anything and raise anything
            raise ValueError(
                f'{self.name} cannot score a prefix here ({type(error).__name__}: {error}); '
                'choose a scorer of keys and values, ObservedAttentionPress or SnapKVPress'
            ) from error
        return scores.float().nan_to_num(nan=float('-inf'))


def _sizes(stats: Statistics, layer: int, head_dim: int) -> SimpleNamespace:
    """Return the sizes of an attention layer, in place of its module."""
    config = SimpleNamespace(
        num_hidden_layers=stats.layers,
        num_attention_heads=stats.columns.shape[1],
        num_key_value_heads=stats.kv_heads,
        head_dim=head_dim,
    )
    return SimpleNamespace(layer_idx=layer, head_dim=head_dim, config=config)


def from_kvpress(press: str, **own: object) -> KvPress:
    """Return the scorer CLASS or CLASS(option=value, ...) as a method. own: fields of `Method`.

    A random scorer has seed 0 by default, so that a frame compressed again keeps the same tokens.
    Raises ValueError without kvpress, without such a `ScorerPress`, and for unknown options.
    """
    name, options = _parsed(press)
    package = _package(press)
    cls = getattr(package, name, None)
    if not (isinstance(cls, type) and issubclass(cls, package.ScorerPress)):
        raise ValueError(f'a kvpress scorer must be a ScorerPress of kvpress (got {name!r})')
    if 'seed' in {field.name for field in fields(cls)}:
        options = {'seed': 0} | options
    try:
        made = cls(**options)
    except (TypeError, AssertionError, ValueError) as error:
        raise ValueError(f'{PREFIX}{press} cannot be made: {error}') from error
    queries = OBSERVED.get(name)
    window = made.window_size if queries == 'window' else 0
    made_of: Callable[..., KvPress] = KvPress
    return made_of(
        press=made,
        name=PREFIX + type(made).__name__,
        queries=queries,
        window=window,
        shortest=window + 1,
        **own,
    )


def _parsed(press: str) -> tuple[str, dict[str, object]]:
    """Return class and options, which are literals, of 'CLASS(option=value)'."""
    try:
        call = ast.parse(press, mode='eval').body
        if isinstance(call, ast.Name):
            return call.id, {}
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)) or call.args:
            raise ValueError
        if any(word.arg is None for word in call.keywords):  # **
            raise ValueError
        return call.func.id, {str(w.arg): ast.literal_eval(w.value) for w in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise ValueError(
            f'a scorer must be {PREFIX}CLASS or {PREFIX}CLASS(option=value) (got {PREFIX}{press})'
        ) from error


def _package(press: str) -> ModuleType:
    """Return kvpress. Raises ValueError that names what is missing: kvpress or a dependency."""
    try:
        return importlib.import_module('kvpress')
    except ImportError as error:
        if getattr(error, 'name', None) == 'kvpress':
            raise ValueError(
                f'{PREFIX}{press} needs the package kvpress, which is not installed; '
                'the methods of this suite need none'
            ) from error
        raise ValueError(
            f'{PREFIX}{press} needs the package kvpress, which is installed, but cannot be '
            f'imported: {error}; install what it names'
        ) from error
