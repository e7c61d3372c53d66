"""A prefill with a loading thread equals one that loads between layers, bit for bit."""

import threading
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_cases import B, KvOfUnits, make_arena, make_planner, make_prompt

from benchmarks.memory.reuse_variants import Epic, VariedKeep, named_schedule
from benchmarks.memory.spans import COMPUTE, LOAD, TimedLoader
from embodied_kv.kv.views import SparsePositionView
from embodied_kv.memory.keep import Keep
from embodied_kv.memory.prefill import KvLostError, Prefill
from embodied_kv.memory.reuse import FullRecompute, LayerState, PrefixCaching, Reuse
from embodied_kv.memory.rotate import Rotation
from embodied_kv.memory.segment import RobotMemoryError
from embodied_kv.model.layers import wavelengths

LAYERS = B.layers
MOVE = Rotation(wavelengths(B.head_dim, B.rope_theta)[None])
FALLING = named_schedule('falling', LAYERS, 0.5)
METHODS = {
    'full_reuse': Reuse,
    'full': FullRecompute,
    'prefix': PrefixCaching,
    'epic': lambda: Epic(2),
    'keep': lambda: Keep(0.4),
    'keep that drops in each layer': lambda: VariedKeep(schedule=FALLING),
}


@torch.inference_mode()
def recording(prefill):
    """Return a list that receives the loader of each run."""
    made = []

    def timed(*given, **named):
        made.append(TimedLoader(*given, **named))
        return made[-1]

    prefill.loader = timed
    return made


def one_by_one(model, arena, load, prompt, reuse):
    """Run the same prefill on one thread: load what a layer needs, compute it, choose."""
    length, resident = prompt.length, reuse.resident(prompt)
    arena.set_length(0, length)
    mask = reuse.first(prompt)
    mask[:resident] = False
    positions = mask.nonzero()[:, 0]
    hidden = model.embed(prompt.ids[positions][None])

    def stored(i, layer):
        piece = prompt.pieces[i]
        tokens = slice(piece.offset, piece.offset + len(piece.ids))
        k, v = (part[:, tokens] for part in load(piece.unit, layer))
        return MOVE(k, prompt.starts[i] - piece.offset), v

    for layer in range(LAYERS):
        view = SparsePositionView(arena, 0).bind(positions)
        for i, start in enumerate(prompt.starts):
            absent = ~mask[start : start + len(prompt.pieces[i].ids)]
            if start >= resident and absent.any():
                view.put(layer, start, *stored(i, layer))
        rope = model.rope(positions[None])
        hidden = model.layer(layer, hidden, view, rope)
        if layer + 1 < LAYERS:
            own = positions, view.queries, view.sums, view.keys(layer)
            state = LayerState(prompt, layer, *own)
            mask = reuse.after(state, mask)
            stays = mask[positions]
            positions, hidden = positions[stays], hidden[:, stays]
    return hidden[:, -1:]


@pytest.mark.parametrize('method', METHODS)
@settings(deadline=None, max_examples=6)
@given(
    seed=st.integers(0, 99), segments=st.integers(0, 8), together=st.booleans(), nap=st.booleans()
)
def test_result_and_row_are_bit_for_bit_the_same(method, seed, segments, together, nap):
    model, prompt = make_planner(), make_prompt(3, segments, together, seed)
    units = KvOfUnits(model, prompt)

    def slowly(unit, layer):
        time.sleep(nap * 1e-4 * (layer % 2))
        return units(unit, layer)

    arena, other = make_arena(), make_arena()
    wanted = one_by_one(model, arena, units, prompt, METHODS[method]())
    prefill = Prefill(model, other, 0, slowly, MOVE)
    timed = recording(prefill)
    hidden, work = prefill.run(prompt, METHODS[method]())
    assert torch.equal(hidden, wanted)
    assert all(map(torch.equal, other.row(0), arena.row(0)))
    timeline = timed[0].timeline
    loads = timeline.lane(LOAD)
    sizes = {piece.segment: len(piece.ids) for piece in prompt.pieces}
    for layer in range(LAYERS):
        assert work.loaded[layer] == sum(sizes[s.unit] for s in loads if s.layer == layer)
    assert [span.layer for span in timeline.lane(COMPUTE)] == list(range(LAYERS))


@pytest.mark.at_once
def test_no_layer_starts_before_its_loads_end():
    model, prompt = make_planner(), make_prompt(segments=6)
    keep = VariedKeep(schedule=FALLING)
    prefill = Prefill(model, make_arena(), 0, KvOfUnits(model, prompt), MOVE)
    timed = recording(prefill)
    prefill.run(prompt, keep)
    timeline = timed[0].timeline
    starts = {span.layer: span.start for span in timeline.lane(COMPUTE)}
    assert timeline.lane(LOAD)
    assert all(span.end <= starts[span.layer] for span in timeline.lane(LOAD))


def test_what_is_dropped_is_loaded_while_layers_compute():
    """Full reuse can load all KV before layer 1; only layer 0 has to wait."""
    model, prompt = make_planner(), make_prompt(segments=4)
    units, loaded, everything = KvOfUnits(model, prompt), [], threading.Event()

    def load(unit, layer):
        loaded.append(layer)
        if len(loaded) == LAYERS * len(prompt.pieces):
            everything.set()
        return units(unit, layer)

    def step(work):
        done = work()
        if loaded:
            assert everything.wait(10), 'loads do not go on beside a step'
        return done

    Prefill(model, make_arena(), 0, load, MOVE, step).run(prompt, Reuse())
    assert loaded == sorted(loaded)


def test_everything_is_computed_in_steps_and_nothing_is_loaded_in_them():
    model, prompt = make_planner(), make_prompt(segments=4)
    units, steps, inside = KvOfUnits(model, prompt), [], threading.local()

    def load(unit, layer):
        assert not getattr(inside, 'now', False)
        return units(unit, layer)

    def step(work):
        assert not torch.is_inference_mode_enabled()
        inside.now = True
        steps.append(work)
        try:
            return work()
        finally:
            inside.now = False

    keep = VariedKeep(schedule=FALLING)
    wanted, _ = Prefill(model, make_arena(), 0, units, MOVE).run(prompt, keep)
    hidden, work = Prefill(model, make_arena(), 0, load, MOVE, step=step).run(prompt, keep)
    assert torch.equal(hidden, wanted) and len(steps) == 1 + 2 * LAYERS
    assert len(work.chosen) == LAYERS - 1
    assert all(choice.hops >= 1 for choice in work.chosen)


@pytest.mark.parametrize('method', ['full_reuse', 'keep'])
def test_error_of_lost_kv_names_its_unit(method):
    model, prompt = make_planner(), make_prompt(segments=5)
    units = KvOfUnits(model, prompt)

    def load(unit, layer):
        if unit == 'u3' and layer >= 1:
            raise RobotMemoryError('no KV of this unit')
        return units(unit, layer)

    keep = Keep(0.0)
    reuse = keep if method == 'keep' else METHODS[method]()
    prefill = Prefill(model, make_arena(), 0, load, MOVE)
    with pytest.raises(KvLostError, match='no KV of this unit') as lost:
        prefill.run(prompt, reuse)
    assert lost.value.unit == 'u3'
    assert not [t for t in threading.enumerate() if t.name == 'memory-loader']
    again = Prefill(model, make_arena(), 0, units, MOVE).run(prompt, Reuse())[0]
    prefill._load = units
    assert torch.equal(prefill.run(prompt, Reuse())[0], again), 'the row can be filled again'


@pytest.mark.parametrize('method', METHODS)
def test_a_layer_in_blocks_is_the_same_layer(method):
    model, prompt = make_planner(), make_prompt(segments=6)
    units, arenas, made = KvOfUnits(model, prompt), (make_arena(), make_arena()), []
    for arena, block in zip(arenas, (999, 3), strict=True):
        prefill = Prefill(model, arena, 0, units, MOVE, block=block)
        made.append(prefill.run(prompt, METHODS[method]()))
    (whole, work), (hidden, others) = made
    assert others.computed == work.computed
    torch.testing.assert_close(hidden, whole, atol=2e-5, rtol=0)
    for one, other in zip(*(arena.row(0) for arena in arenas), strict=True):
        torch.testing.assert_close(other, one, atol=2e-5, rtol=0)
