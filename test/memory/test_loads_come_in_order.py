"""The order and time of loads under each policy, on a simulated clock (figure 8 of the paper)."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.memory.load_policies import POLICIES, PolicyQueue
from benchmarks.memory.pipeline import simulate
from benchmarks.memory.spans import COMPUTE, LOAD, Span, Timeline
from embodied_kv.memory.loader import LoadQueue

UNITS = 'abcd'


def loads(policy, compute=(4, 4, 4, 4), drops=('', 'ab', 'c', 'd'), load=1.0, decided=1.0):
    made = simulate(PolicyQueue(4, UNITS, policy), compute, lambda *_: load, drops, decided)
    return made, [f'{span.unit}{span.layer}' for span in made.lane(LOAD)]


def test_separate_loads_between_layers():
    made, order = loads('separate')
    assert order == ['a1', 'b1', 'a2', 'b2', 'c2', 'a3', 'b3', 'c3', 'd3']
    assert made.end == 4 * 4 + 9
    for load in made.lane(LOAD):
        assert all(load.end <= c.start or load.start >= c.end for c in made.lane(COMPUTE))


def test_next_layer_loads_one_layer_ahead():
    made, order = loads('next_layer')
    assert order == ['a1', 'b1', 'a2', 'b2', 'c2', 'a3', 'b3', 'c3', 'd3']
    assert made.end == 4 * 4 + 2 + 1 + 1, 'what a layer drops is waited for'
    assert made.bubbles(LOAD) == ((0, 4), (8, 10), (14, 15), (16, 20))
    assert made.bubbles(COMPUTE) == ((4, 6), (10, 11), (15, 16))
    loading = {span.layer: span for span in made.lane(COMPUTE)}
    for load in made.lane(LOAD):
        assert load.start >= loading[load.layer - 1].start


def test_balanced_goes_on_with_later_layers():
    made, order = loads('balanced')
    assert order == ['a1', 'b1', 'a2', 'b2', 'a3', 'b3', 'c2', 'c3', 'd3']
    assert made.end == 4 * 4 + 2 + 1 + 1


def test_balanced_is_faster_where_loads_grow():
    """Figure 7: early layers compute much and load little, late layers do the opposite."""
    compute, drops = (8, 8, 2, 1), ('', 'abc', 'd', '')
    ends = {policy: loads(policy, compute, drops)[0].end for policy in POLICIES}
    assert ends['balanced'] < ends['next_layer'] < ends['separate']


def test_a_choice_during_the_layer_hides_its_loads():
    late, _ = loads('balanced')
    early, order = loads('balanced', decided=0.25)
    assert order[:2] == ['a1', 'b1'] and early.end == 16 < late.end


def test_full_reuse_loads_from_the_first_layer_on():
    made, order = loads('balanced', drops=('abcd', '', '', ''))
    assert order[:5] == ['a0', 'b0', 'c0', 'd0', 'a1'] and made.end == 4 + 16


def test_within_a_layer_the_order_is_that_of_the_prompt():
    pending = LoadQueue(2, UNITS)
    pending.drop('dc', 1)
    pending.drop('a', 1)
    assert [pending.next_load(0, True) for _ in range(4)] == [(1, 'a'), (1, 'c'), (1, 'd'), None]
    assert not pending.needs_load(1)


def test_a_unit_is_dropped_once():
    pending = LoadQueue(3, UNITS)
    pending.drop('a', 1)
    pending.drop('a', 2)
    assert [pending.next_load(0, True) for _ in range(3)] == [(1, 'a'), (2, 'a'), None]


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match='load_policy must be one of separate, next_layer, bal'):
        PolicyQueue(2, UNITS, 'fast')
    with pytest.raises(ValueError, match='units of a prompt must be distinct'):
        LoadQueue(2, 'aba')
    with pytest.raises(LookupError, match='x'):
        LoadQueue(2, UNITS).drop('x', 1)


def test_bubbles_are_where_a_lane_waits():
    spans = [Span(COMPUTE, 0, 11, 12), Span(COMPUTE, 1, 14, 15), Span(LOAD, 1, 12, 16, 'a')]
    made = Timeline.of(reversed(spans), origin=10)
    assert made.bubbles(COMPUTE) == ((0, 1), (2, 4), (5, 6)) and made.bubbles(LOAD) == ((0, 2),)
    assert made.busy(COMPUTE) == 2 and made.end == 6
    assert Timeline(()).bubbles(LOAD) == () and Timeline(()).end == 0


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_schedule_of_loads_keeps_the_laws(data):
    layers = data.draw(st.integers(1, 5))
    seconds = st.floats(0, 5)
    compute = data.draw(st.lists(seconds, min_size=layers, max_size=layers))
    cost = {u: data.draw(st.floats(0.1, 3)) for u in UNITS}
    at = {u: data.draw(st.integers(0, layers)) for u in UNITS}
    drops = [[u for u in UNITS if at[u] == layer] for layer in range(layers)]
    decided = data.draw(st.floats(0, 1))
    ends = {}
    for policy in POLICIES:
        made = simulate(
            PolicyQueue(layers, UNITS, policy), compute, lambda u, _: cost[u], drops, decided
        )
        ends[policy] = made.end
        spans = {(s.layer, s.unit): s for s in made.lane(LOAD)}
        assert set(spans) == {(i, u) for u in UNITS for i in range(at[u], layers)}
        starts = [s.start for s in made.lane(COMPUTE)]
        assert all(s.end <= starts[layer] + 1e-9 for (layer, _), s in spans.items())
        for lane in (LOAD, COMPUTE):
            work = made.lane(lane)
            assert all(a.end <= b.start + 1e-9 for a, b in itertools.pairwise(work))
    assert ends['next_layer'] <= ends['separate'] + 1e-6
    late = layers * max(cost.values())  # a needed load may wait behind one preload per layer
    assert ends['balanced'] <= ends['next_layer'] + late + 1e-6


@given(st.data())
def test_the_node_loads_balanced(data):
    layers = data.draw(st.integers(1, 5))
    node, balanced = LoadQueue(layers, UNITS), PolicyQueue(layers, UNITS, 'balanced')
    at = {u: data.draw(st.integers(0, layers - 1)) for u in UNITS}
    for layer in range(layers):
        for queue in (node, balanced):
            queue.drop([u for u in UNITS if at[u] == layer], layer)
        for _ in range(data.draw(st.integers(0, 4))):
            computing = data.draw(st.booleans())
            assert node.next_load(layer, computing) == balanced.next_load(layer, computing)
