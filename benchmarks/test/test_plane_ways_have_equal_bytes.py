"""A shared KV budget and fixed shares run the same story in equal bytes and do not exceed them."""

from dataclasses import replace

import pytest

from benchmarks.plane import figures
from benchmarks.plane.settings import load_settings
from benchmarks.plane.story import story
from benchmarks.plane.world import Way, World
from embodied_kv.capsule.tiers import Tier
from embodied_kv.kv.eviction import EvictionOrder

SETTINGS = replace(load_settings(quick=True), seconds=3.0, phase_seconds=1.0)
SHARED = Way(order=EvictionOrder.read())
FIXED = list(figures.splits(SETTINGS))


def test_fixed_shares_are_the_whole_budget():
    assert len(FIXED) == 3  # ways to split four parts among three pools
    assert {way.language + way.memory + way.capsules for way in FIXED} == {SETTINGS.budget}


@pytest.mark.parametrize('way', [SHARED, FIXED[0]], ids=['shared', 'fixed'])
def test_no_moment_holds_more_than_the_budget(way):
    world = World(SETTINGS, way)
    for number, tick in enumerate(story(SETTINGS, 1, shifting=True)):
        world.live([tick], first=number)
        assert world.now == number / SETTINGS.rate
        used = sum(pool.bytes_reserved for pool in world.kv.pools)
        on_device = world.registry.used(Tier.DEVICE)
        assert used + world.cache.bytes + on_device <= SETTINGS.budget


def test_every_way_hears_the_same_story_and_refuses_no_frame():
    asked = ('frames', 'questions', 'units', 'snapshots', 'restores')
    heard = set()
    for way in (SHARED, *FIXED):
        counts = World(SETTINGS, way).live(story(SETTINGS, 2, shifting=True)).counts
        heard.add(tuple(counts[name] for name in asked))
        assert counts['frames refused'] == 0
    ((*all_of_it,),) = heard
    assert all(all_of_it)


def test_what_is_loaded_twice_is_lost_once_where_there_is_room():
    world = World(SETTINGS, SHARED)
    (tick,) = list(story(SETTINGS, 3, shifting=False))[:1]
    unit = ('unit 1', 2**20)
    world.live([replace(tick, questions=(), units=(unit, unit), snapshots=(), restores=())])
    assert world.lost == {'memory': SETTINGS.costs.load_mib} and world.counts['hits'] == 1


def test_differences_are_of_pairs():
    runs, others = [dict(lost=1.0), dict(lost=3.0)], [dict(lost=2.0), dict(lost=4.0)]
    assert figures.difference(runs, others, 'lost') == (-1.0, 0.0)
