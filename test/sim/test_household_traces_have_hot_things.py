"""Most updates touch few things, and most facts stay unchanged for long."""

from collections import Counter

import numpy as np

from benchmarks.memory.household_traces import TraceConfig, draw_trace
from training.planner.household import draw_household


def trace(seed, updates=200, segments=40, **config):
    rng = np.random.default_rng(seed)
    household = draw_household(rng, segments)
    return household, list(draw_trace(rng, household, updates, TraceConfig(**config)))


def test_a_seed_gives_one_trace():
    first, again, other = ([(u.words, u.changed) for u in trace(seed)[1]] for seed in (0, 0, 1))
    assert first == again != other


def test_hot_things_take_most_changes_and_most_facts_none():
    for seed in range(5):
        household, updates = trace(seed, cold=0.0)
        touched = Counter(fact.id for update in updates for fact in update.changed)
        hottest = sum(count for _, count in touched.most_common(10))
        assert hottest > 0.8 * touched.total()
        untouched = [fact for fact in household.facts() if fact.id not in touched]
        assert len(untouched) > 0.5 * len(household.facts())


def test_cold_updates_touch_others_too():
    _, few = trace(3, cold=0.0)
    _, many = trace(3, cold=0.5)
    few, many = ({fact.id for u in updates for fact in u.changed} for updates in (few, many))
    assert len(many) > len(few)


def test_every_sort_of_update_occurs():
    words = {update.words.split()[0] for update in trace(0)[1]}
    assert words == {'pick', 'put', 'open', 'close', 'move'}
