"""Scorers of kvpress work as methods; a stand-in replaces the package, with its conventions."""

import importlib
import sys
from dataclasses import dataclass
from types import ModuleType

import pytest
import torch
from compress_cases import make_statistics

from embodied_kv.compress.registry import method

SIZES = dict(heads=4, kv_heads=2, head_dim=8, longest=100)


@dataclass
class ScorerPress:
    """As in kvpress: score(module, hidden_states, keys, values, attentions, kwargs)."""

    compression_ratio: float = 0.0

    def __post_init__(self):
        assert 0 <= self.compression_ratio < 1, 'Compression ratio must be between 0 and 1'

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        raise NotImplementedError


@dataclass
class KnormPress(ScorerPress):
    order: float = 2.0

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        return -keys.norm(self.order, dim=-1)


@dataclass
class RandomPress(ScorerPress):
    seed: int | None = None

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        return torch.rand(keys.shape[:-1], generator=torch.Generator().manual_seed(self.seed))


@dataclass
class ObservedAttentionPress(ScorerPress):
    """Scores by the mean over the n ... 1 queries that see a token in causal attention."""

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        assert attentions is not None, 'Set attn_implementation="eager" to use this hook'
        n = keys.shape[2]
        scores = attentions.sum(2) / torch.arange(n, 0, -1)
        return scores.view(1, keys.shape[1], -1, n).mean(2)


@dataclass
class SnapKVPress(ScorerPress):
    """Scores tokens before a window by their mean attention, and the window above all else."""

    window_size: int = 64

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        n, window = hidden_states.shape[1], self.window_size
        assert n > window, f'Query length {n} should be greater than the window size {window}'
        scores = attentions[..., -window:, :-window].mean(-2)
        scores = scores.view(1, keys.shape[1], -1, n - window).mean(2)
        return torch.nn.functional.pad(scores, (0, window), value=scores.max().item() + 1)


@dataclass
class AskingPress(ScorerPress):
    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        return module.q_proj(hidden_states)


@dataclass
class UndefinedPress(ScorerPress):
    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        scores = keys.sum(-1)
        scores[..., 3] = float('nan')
        return scores


class ComposedPress:
    """A press that is no scorer."""


SCORERS = (KnormPress, RandomPress, ObservedAttentionPress, SnapKVPress, AskingPress)


@pytest.fixture
def package(monkeypatch):
    module = ModuleType('kvpress')
    for cls in (ScorerPress, *SCORERS, UndefinedPress, ComposedPress):
        setattr(module, cls.__name__, cls)
    monkeypatch.setitem(sys.modules, 'kvpress', module)


def statistics(**others):
    keys, values = torch.randn(2, 3, 2, 100, 8, generator=torch.Generator().manual_seed(0))
    return make_statistics(layers=3, n=100, **dict(keys=keys, values=values) | others)


def test_a_scorer_of_keys_selects_like_a_method(package):
    press, stats = method('kvpress:KnormPress(order=1.0)', recent=0), statistics()
    assert press.name == 'kvpress:KnormPress' and press.queries is None and press.reads_kv
    for layer, part in enumerate(press.select(stats, 0.2)):
        best = (-stats.keys[layer].norm(1, dim=-1)).topk(20).indices.sort(-1).values
        assert torch.equal(part, best)


def test_a_scorer_of_attention_divides_it_by_n_to_1(package):
    press, stats = method('kvpress:ObservedAttentionPress'), statistics()
    assert press.queries == 'all'
    wanted = stats.grouped(stats.columns / torch.arange(100, 0, -1))
    torch.testing.assert_close(press.scores(stats), wanted)


def test_a_scorer_of_a_window_gets_its_mean_and_keeps_it(package):
    press, stats = method('kvpress:SnapKVPress(window_size=10)'), statistics(queries=10)
    assert press.queries == 'window' and press.window == 10
    scores = press.scores(stats)
    torch.testing.assert_close(scores[..., :-10], stats.grouped(stats.columns / 10)[..., :-10])
    for part in press.select(stats, 0.2):
        assert part[:, -10:].tolist() == [list(range(90, 100))] * 2


def test_a_prefix_no_longer_than_the_window_is_kept_whole(package):
    press, stats = method('kvpress:SnapKVPress(window_size=100)'), statistics()
    assert [part.shape[1] for part in press.select(stats, 0.2)] == [100] * 3


def test_a_window_that_no_prefix_exceeds_is_refused(package):
    with pytest.raises(ValueError, match='prefix of 100 tokens .got 100.*window_size'):
        method('kvpress:SnapKVPress(window_size=100)').validate_model(**SIZES)
    method('kvpress:SnapKVPress(window_size=99)').validate_model(**SIZES)


def test_random_scorer_draws_from_seed_0_by_default(package):
    stats = statistics()
    picks = [
        method(f'kvpress:RandomPress{seed}').select(stats, 0.2)[0]
        for seed in ('', '(seed=0)', '(seed=1)')
    ]
    assert torch.equal(*picks[:2]) and not torch.equal(*picks[1:])


@pytest.mark.parametrize('name', ['Asking', 'Scorer'])
def test_a_scorer_that_needs_more_is_refused_before_anything_is_served(package, name):
    with pytest.raises(ValueError, match=f'kvpress:{name}Press cannot score a prefix here'):
        method(f'kvpress:{name}Press').validate_model(**SIZES)


def test_error_of_a_failed_assertion_names_the_scorer(package):
    press = method('kvpress:SnapKVPress')
    press.press.window_size = 200
    with pytest.raises(ValueError, match=r'kvpress:SnapKVPress .*AssertionError: Query length'):
        press.scores(statistics(queries=64))


def test_score_that_is_not_a_number_counts_as_the_lowest(package):
    press = method('kvpress:UndefinedPress', recent=0)
    assert all(3 not in part for part in press.select(statistics(), 0.9))


def test_statistics_without_keys_are_refused(package):
    with pytest.raises(ValueError, match='needs keys and values; put them in the statistics'):
        method('kvpress:KnormPress').select(statistics(keys=None), 0.2)


@pytest.mark.parametrize('name', ['NoPress', 'ComposedPress'])
def test_class_that_is_not_a_scorer_is_refused(package, name):
    with pytest.raises(ValueError, match=f"a ScorerPress of kvpress .got '{name}'."):
        method(f'kvpress:{name}')


@pytest.mark.parametrize('text', ['', 'Knorm Press', 'KnormPress(2)', 'KnormPress(order=x)'])
def test_error_of_an_unreadable_option_states_the_syntax(package, text):
    with pytest.raises(
        ValueError, match=r'must be kvpress:CLASS or kvpress:CLASS\(option=value\)'
    ):
        method(f'kvpress:{text}')


@pytest.mark.parametrize('options', ['(length=2)', '(compression_ratio=2)'])
def test_options_that_a_scorer_does_not_take_are_refused(package, options):
    with pytest.raises(ValueError, match='kvpress:KnormPress.* cannot be made: '):
        method(f'kvpress:KnormPress{options}')


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, 'kvpress', None)
    with pytest.raises(ValueError, match='needs the package kvpress, which is not installed'):
        method('kvpress:KnormPress')


def test_missing_dependency_of_the_package_is_named(monkeypatch):
    def lacking(name):
        raise ModuleNotFoundError("No module named 'requests'", name='requests')

    monkeypatch.setattr(importlib, 'import_module', lacking)
    with pytest.raises(ValueError, match="installed, but cannot be imported.*'requests'"):
        method('kvpress:KnormPress')
