"""Scorers of the kvpress package as methods, where that package is installed.

A `ScorerPress` scores one layer by score(module, hidden_states, keys, values, attentions, kwargs)
-> [batch, kv_heads, n]. There is no torch module here: a scorer gets keys, values, the attention
that was accumulated, and a module's plain sizes. One that reaches for weights or hidden states is
refused before anything is served (`KvPress.check`).
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
# Whose attention a scorer observes; the others look at keys and values alone.
OBSERVED = {'ObservedAttentionPress': 'all', 'SnapKVPress': 'window'}


@dataclass(frozen=True)
class KvPress(Method):
    """A scorer of kvpress; budgets and recent window are this suite's, equal in every layer.

    press: the scorer; its own compression_ratio is not used. queries: None for one that looks at
    keys and values only; else those whose accumulated attention it gets, as the attention of so
    many queries, each of which is their mean: [1, heads, queries, n]. shortest: as in `Method`;
    one that observes a window needs a token before it.
    """

    reads_kv = True

    press: Any = None
    name: str = ''
    queries: str | None = None
    window: int = 0
    shortest: int = 1

    def check(self, heads: int, kv_heads: int, head_dim: int, longest: int) -> None:
        """As `Method.check`, by scoring a random prefix."""
        if longest < self.shortest:
            raise ValueError(
                f'{self.name} observes the last {self.window} tokens, and the longest prefix of '
                f'this model has {longest}: ask for fewer, {self.name}(window_size=...)'
            )
        g = torch.Generator().manual_seed(0)
        keys, values = torch.randn(2, 1, kv_heads, longest, head_dim, generator=g)
        columns = torch.rand(1, heads, longest, generator=g)
        queries = 0 if self.queries is None else self.window or longest
        density = torch.ones(1, heads)
        self.scores(Statistics(columns, density, kv_heads, queries, keys=keys, values=values))

    def scores(self, stats: Statistics) -> Tensor:
        """A score that is no number is the lowest. Raises ValueError as `check` does."""
        if stats.keys is None or stats.values is None:
            raise ValueError(f'{self.name} looks at keys and values: put them in the statistics')
        layers = zip(stats.keys, stats.values, strict=True)
        return torch.stack([self._layer(stats, i, *kv) for i, kv in enumerate(layers)])

    def _layer(self, stats: Statistics, layer: int, keys: Tensor, values: Tensor) -> Tensor:
        """Scores of one layer, [kv_heads, n]; keys, values: [kv_heads, n, head_dim]."""
        keys, values = keys[None].float(), values[None].float()
        module = _sizes(stats, layer, keys.shape[3])
        attention = None
        if self.queries is not None:
            mean = stats.columns[layer] / stats.queries
            attention = mean[None, :, None].expand(-1, -1, stats.queries, -1)
        nothing = keys.new_empty(1, stats.n, 0)  # hidden states: their length alone is known
        try:
            scores = self.press.score(module, nothing, keys, values, attention, {})
            scores = scores.view(stats.kv_heads, stats.n)
        except Exception as error:  # a scorer may demand anything, in any way
            raise ValueError(
                f'{self.name} cannot score a prefix here ({type(error).__name__}: {error}): only '
                'scorers of keys and values, ObservedAttentionPress and SnapKVPress can be '
                'plugged in'
            ) from error
        return scores.float().nan_to_num(nan=float('-inf'))


def _sizes(stats: Statistics, layer: int, head_dim: int) -> SimpleNamespace:
    """What a scorer may know of an attention layer."""
    config = SimpleNamespace(
        num_hidden_layers=stats.layers,
        num_attention_heads=stats.columns.shape[1],
        num_key_value_heads=stats.kv_heads,
        head_dim=head_dim,
    )
    return SimpleNamespace(layer_idx=layer, head_dim=head_dim, config=config)


def from_kvpress(press: str, **own: object) -> KvPress:
    """The scorer of that class name, as CLASS or CLASS(option=value, ...); own: `Method`'s fields.

    One that draws at random does so from seed 0 unless told: a frame that is compressed again
    keeps the same. Raises ValueError without kvpress, if it has no such `ScorerPress`, and for
    options that this one does not take.
    """
    name, options = _parsed(press)
    package = _package(press)
    cls = getattr(package, name, None)
    if not (isinstance(cls, type) and issubclass(cls, package.ScorerPress)):
        raise ValueError(f'kvpress has no ScorerPress named {name!r}')
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
    """'CLASS(option=value)' -> class and options, which are literals."""
    try:
        call = ast.parse(press, mode='eval').body
        if isinstance(call, ast.Name):
            return call.id, {}
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)) or call.args:
            raise ValueError('it is neither CLASS nor CLASS(option=value, ...)')
        return call.func.id, {
            _option(word): ast.literal_eval(word.value) for word in call.keywords
        }
    except (SyntaxError, ValueError) as error:
        raise ValueError(
            f'{PREFIX}{press} is no scorer: write {PREFIX}CLASS, or {PREFIX}CLASS(option=value)'
        ) from error


def _option(word: ast.keyword) -> str:
    if word.arg is None:
        raise ValueError('it has ** in place of an option')
    return word.arg


def _package(press: str) -> ModuleType:
    """Raises ValueError with what is missing: kvpress, or what kvpress needs."""
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
