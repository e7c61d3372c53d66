"""With real threads a layer's computation starts once all its KV is loaded; errors are raised."""

import threading
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.memory.load_policies import POLICIES, PolicyQueue
from benchmarks.memory.spans import COMPUTE, LOAD, TimedLoader
from embodied_kv.memory.loader import Loader, LoadQueue
from embodied_kv.runtime.stream import Stream

UNITS = [f'unit {i}' for i in range(5)]
LAYERS = 6


def one_pass(policy, at, load, compute=lambda layer: None):
    """Run all layers; a unit is dropped from layer `at[unit]` on. Return the loader."""
    with TimedLoader(PolicyQueue(LAYERS, UNITS, policy), load) as loader:
        loader.drop([u for u in UNITS if at[u] == 0], 0)
        for layer in range(LAYERS):
            with loader.computing(layer):
                compute(layer)
                loader.drop([u for u in UNITS if at[u] == layer + 1], layer + 1)
    return loader


@pytest.mark.parametrize('policy', POLICIES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_layers_have_their_loads_for_any_durations(policy, data):
    at = {u: data.draw(st.integers(0, LAYERS)) for u in UNITS}
    naps = data.draw(st.lists(st.sampled_from([0, 1e-4, 1e-3]), min_size=7, max_size=7))
    done, seen = set(), []

    def load(unit, layer):
        time.sleep(naps[(layer + len(unit)) % 7])
        done.add((layer, unit))

    def compute(layer):
        seen.append({unit for at_layer, unit in set(done) if at_layer == layer})
        time.sleep(naps[layer])

    loader = one_pass(policy, at, load, compute)
    assert seen == [{u for u in UNITS if at[u] <= layer} for layer in range(LAYERS)]
    assert done == {(layer, u) for u in UNITS for layer in range(at[u], LAYERS)}
    starts = [span.start for span in loader.timeline.lane(COMPUTE)]
    loads = loader.timeline.lane(LOAD)
    assert len(loads) == len(done) and len(starts) == LAYERS
    if Stream.emulated is None:  # a late device notes a load after its layer may start
        assert all(span.end <= starts[span.layer] for span in loads)


def test_balanced_loads_while_a_layer_computes():
    loaded = []
    enough = threading.Event()

    def load(unit, layer):
        loaded.append((layer, unit))
        if len(loaded) == 2 * (LAYERS - 1):
            enough.set()

    with Loader(LoadQueue(LAYERS, UNITS), load) as loader:
        loader.drop(UNITS[:2], 1)
        with loader.computing(0):
            assert enough.wait(10), 'the first layer is over before all is preloaded'
    assert loaded == [(layer, unit) for layer in range(1, LAYERS) for unit in UNITS[:2]]


@pytest.mark.parametrize(('policy', 'wanted'), [('separate', []), ('next_layer', [1] * 5)])
def test_the_others_stay_behind(policy, wanted):
    loaded = []
    with Loader(
        PolicyQueue(LAYERS, UNITS, policy), lambda u, layer: loaded.append(layer)
    ) as loader:
        loader.drop(UNITS, 1)
        with loader.computing(0):
            until = time.monotonic() + 10
            while loaded != wanted and time.monotonic() < until:
                time.sleep(1e-3)
            time.sleep(0.02)
            assert loaded == wanted


@pytest.mark.parametrize('policy', POLICIES)
def test_an_error_of_a_load_surfaces_where_its_layer_is_asked_for(policy):
    def load(unit, layer):
        if layer == 3:
            raise OSError('the disk is gone')

    with pytest.raises(OSError, match='the disk is gone'):
        one_pass(policy, dict.fromkeys(UNITS, 1), load)
    assert not [t for t in threading.enumerate() if t.name == 'memory-loader']


def test_an_error_that_no_layer_met_surfaces_at_the_end():
    failed = threading.Event()

    def load(unit, layer):
        failed.set()
        raise OSError('the disk is gone')

    with (
        pytest.raises(OSError, match='the disk is gone'),
        Loader(LoadQueue(LAYERS, UNITS), load) as loader,
    ):
        loader.drop(UNITS, 1)
        with loader.computing(0):
            failed.wait(10)


def test_an_error_of_the_computation_is_the_one_that_is_raised():
    with (
        pytest.raises(ZeroDivisionError),
        Loader(LoadQueue(LAYERS, UNITS), lambda *_: 1 / 0) as it,
    ):
        it.drop(UNITS, 1)
        with it.computing(0):
            time.sleep(0.01)
            raise ZeroDivisionError('of the computation')


def test_loads_may_write_what_was_made_for_inference():
    with torch.inference_mode():
        row = torch.zeros(LAYERS)

    def load(unit, layer):
        row[layer] += 1

    one_pass('balanced', dict.fromkeys(UNITS, 1), load)
    assert row.tolist() == [0, 5, 5, 5, 5, 5]


def test_loader_works_only_inside_its_context():
    loader = Loader(LoadQueue(LAYERS, UNITS), lambda *_: None)
    with pytest.raises(RuntimeError, match='must be used as a context'), loader.computing(0):
        pass
