"""Fixed blocks hold segments in order of arrival; a change recomputes only what follows it."""

import numpy as np
import torch
from memory_bench_cases import opened, small

from benchmarks.memory.blocks import Blocks
from benchmarks.memory.ways import Way
from embodied_kv.memory.groups import retrieve

THREE = Way('three', 'full_reuse', 3)
NAMES = ('red', 'green', 'blue', 'white', 'black')


def facts(*names, where='left'):
    return [(name, 'object', f'{name} cube: on the {where} table') for name in names]


def fresh(planning):
    before = planning.fresh_tokens
    planning.warm()
    return planning.fresh_tokens - before


def test_segments_come_into_blocks_as_they_come():
    blocks = Blocks(4, 2)
    for i, name in enumerate('abcde'):
        assert blocks.put(name, np.eye(4)[i % 4], 5, i) == 0
    blocks.put('b', np.eye(4)[3], 7, 9)
    assert blocks.units() == [('a', 'b'), ('c', 'd'), ('e',)] and len(blocks) == 3
    assert blocks.tokens('b') == 7 and blocks.of('b').tokens == 12 and blocks.advance(10) == ()
    found = retrieve(blocks, np.eye(4)[2], tokens=100, segments=1)
    assert [f.ids for f in found] == [('c', 'd')]


def test_what_lies_behind_a_change_equals_the_whole_computed_anew(tmp_path):
    settings = small(tmp_path)
    with opened(THREE, tmp_path, settings) as planning:
        planning.upsert(*facts(*NAMES))
        size = [planning.memory.groups.tokens(name) for name in NAMES]
        assert fresh(planning) == sum(size)
        planning.upsert(*facts('green', where='right'))
        new = planning.memory.groups.tokens('green')
        assert fresh(planning) == new + size[2]
        planning.upsert(*facts('grey'))
        assert fresh(planning) == planning.memory.groups.tokens('grey')
        kept = {unit.ids: stored(planning, unit) for unit in planning.memory.units()}
    (tmp_path / 'again').mkdir()
    with opened(THREE, tmp_path / 'again', settings) as planning:
        planning.upsert(*facts('red'), *facts('green', where='right'))
        planning.upsert(*facts('blue', 'white', 'black', 'grey'))
        planning.warm()
        for unit in planning.memory.units():
            torch.testing.assert_close(kept[unit.ids], stored(planning, unit))


def stored(planning, unit):
    layers = range(planning._planner.config.backbone.layers)
    load = planning.memory.store.load_memory
    return torch.stack([torch.stack(load(unit.key, layer)) for layer in layers])


def test_updates_lose_the_rest_of_their_block(tmp_path):
    with opened(THREE, tmp_path, small(tmp_path)) as planning:
        planning.upsert(*facts(*NAMES))
        planning.advance()
        assert planning.lost == 0
        behind = sum(planning.memory.groups.tokens(name) for name in ('green', 'blue'))
        planning.upsert(*facts('green', where='right'))
        planning.advance()
        assert planning.lost == behind


def test_keys_that_are_not_turned_stay_as_they_were(tmp_path):
    settings, said = small(tmp_path), {}
    for rotate in (True, False):
        way = Way(f'turned {rotate}', 'full_reuse', rotate=rotate)
        with opened(way, tmp_path, settings) as planning:
            planning.upsert(*facts(*NAMES))
            planning.plan('Where is the red cube?')
            said[rotate] = planning.row.arena.row(0)[0].clone()
            unit = planning.memory.units()[1]
            k, _ = planning.memory.store.load_memory(unit.key, 0)
            start = planning._prompts.prompt(planning.memory.units(), [1]).starts[1]
            same = torch.equal(said[rotate][0, :, start : start + k.shape[1]], k)
            assert same is not rotate
