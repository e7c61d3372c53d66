"""Scorers of kvpress as methods, with a stand-in for the package of the same interface."""

import sys
from dataclasses import dataclass
from types import ModuleType

import pytest
import torch
from compress_cases import make_statistics

from embodied_kv.compress.registry import method


@dataclass
class ScorerPress:
    """As in kvpress: score(module, hidden_states, keys, values, attentions, kwargs)."""

    compression_ratio: float = 0.0

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        raise NotImplementedError


@dataclass
class KnormPress(ScorerPress):
    order: float = 2.0

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        return -keys.norm(self.order, dim=-1)


@dataclass
class ObservedAttentionPress(ScorerPress):
    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        scores = attentions.sum(2)
        return scores.view(1, keys.shape[1], -1, hidden_states.shape[1]).mean(2)


@dataclass
class SnapKVPress(ScorerPress):
    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        return module.q_proj(hidden_states)


class ComposedPress:
    """A press that scores nothing."""


@pytest.fixture
def package(monkeypatch):
    module = ModuleType('kvpress')
    for cls in (ScorerPress, KnormPress, ObservedAttentionPress, SnapKVPress, ComposedPress):
        setattr(module, cls.__name__, cls)
    monkeypatch.setitem(sys.modules, 'kvpress', module)


def statistics(**others):
    keys, values = torch.randn(2, 3, 2, 100, 8, generator=torch.Generator().manual_seed(0))
    return make_statistics(layers=3, n=100, **dict(keys=keys, values=values) | others)


def test_a_scorer_of_keys_selects_like_a_method(package):
    press, stats = method('kvpress:KnormPress', recent=0, options=dict(order=1)), statistics()
    assert press.name == 'kvpress:KnormPress' and press.queries is None
    for layer, part in enumerate(press.select(stats, 0.2)):
        best = (-stats.keys[layer].norm(1, dim=-1)).topk(20).indices.sort(-1).values
        assert torch.equal(part, best)


def test_a_scorer_of_attention_gets_the_accumulated_attention(package):
    press, stats = method('kvpress:ObservedAttentionPress', queries='all'), statistics()
    assert press.queries == 'all'
    for a, b in zip(press.select(stats, 0.2), method('h2o').select(stats, 0.2), strict=True):
        assert torch.equal(a, b)


def test_a_scorer_that_needs_a_model_is_refused(package):
    with pytest.raises(ValueError, match="asks for more of a model.*'q_proj'.*only scorers"):
        method('kvpress:SnapKVPress').select(statistics(), 0.2)


def test_statistics_without_keys_are_refused(package):
    with pytest.raises(ValueError, match='looks at keys and values: put them in the statistics'):
        method('kvpress:KnormPress').select(statistics(keys=None), 0.2)


@pytest.mark.parametrize('name', ['NoPress', 'ComposedPress'])
def test_what_is_no_scorer_is_refused(package, name):
    with pytest.raises(ValueError, match=f"kvpress has no ScorerPress named '{name}'"):
        method(f'kvpress:{name}')


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, 'kvpress', None)
    with pytest.raises(ImportError, match='needs the package kvpress, which is not installed'):
        method('kvpress:KnormPress')
