"""Every buffer that an engine writes between two steps belongs to a part of the capsule."""

from collections.abc import Iterator

import numpy as np
import torch
from capsule_sessions import begin, scratch
from torch import Tensor

from embodied_kv.kv.views import PrefixWrite, SuffixRead, TailAppend
from embodied_kv.runtime.inputs import Field, StepInputs

PLAIN = (str, bytes, int, float, complex, bool, type(None), range)
VIEWS = (PrefixWrite, SuffixRead, TailAppend, StepInputs, Field)  # written before each replay


def walk(thing: object, path: str, seen: set[int]) -> Iterator[tuple[str, Tensor | np.ndarray]]:
    """Yield every array that can be reached from an object, with its path."""
    if id(thing) in seen or isinstance(thing, PLAIN + VIEWS) or callable(thing):
        if not isinstance(thing, torch.nn.Module) or id(thing) in seen:
            return
    seen.add(id(thing))
    if isinstance(thing, Tensor | np.ndarray):
        yield path, thing
    elif isinstance(thing, dict):
        for key, value in thing.items():
            yield from walk(value, f'{path}[{key!r}]', seen)
    elif isinstance(thing, list | tuple | set | frozenset):
        for i, value in enumerate(thing):
            yield from walk(value, f'{path}[{i}]', seen)
    elif hasattr(thing, '__dict__'):
        for name, value in vars(thing).items():
            yield from walk(value, f'{path}.{name}', seen)


def address(array: Tensor | np.ndarray) -> int:
    if isinstance(array, Tensor):
        return array.untyped_storage().data_ptr()
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.__array_interface__['data'][0]


def unregistered(engine) -> list[str]:
    """Return the paths of live buffers that belong to no part of a capsule.

    Weights and tables are never written. Other inputs of graphs are written before each replay, as
    test_graphs_read_what_was_written_for_them.py proves.
    """
    constants = {address(a) for _, a in walk(engine.policy, 'policy', set())}
    constants |= {address(a) for _, a in walk(engine._denoiser._steps, 'steps', set())}
    read = {b.tensor.untyped_storage().data_ptr() for b in scratch(engine)}
    live = [*engine.kv.memory, *engine.states.values()]
    known = constants | read | set(map(address, live))
    return [path for path, a in walk(engine, 'engine', set()) if address(a) not in known]


def test_no_live_buffer_is_left_out(make_engine, observe):
    engine = make_engine()
    begin(engine, observe(1))
    assert unregistered(engine) == []


def test_the_walk_finds_one_that_is(make_engine, observe):
    engine = make_engine()
    begin(engine, observe(1))
    engine.kv.forgotten = {'somewhere': [torch.zeros(3)]}
    engine.budget.also = np.zeros(2)
    assert sorted(unregistered(engine)) == [
        'engine.budget.also',
        "engine.kv.forgotten['somewhere'][0]",
    ]
