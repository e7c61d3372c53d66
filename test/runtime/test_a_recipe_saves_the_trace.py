"""A computation that was traced before is loaded by its recipe, if its results are the same."""

import json
import shutil
from functools import partial

import pytest
import torch
from torch import nn

from embodied_kv.runtime import recipes
from embodied_kv.runtime.buffer import Buffer, Buffers
from embodied_kv.runtime.compiled import Compiler

FACTS = 'sources of today'


class Work:
    """x <- tanh(l2(l1(x)) / 2), with two linear layers that differ only in their values."""

    def __init__(self, width=8):
        self.x = torch.linspace(-1, 1, width)[None]
        self.layers = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width)])
        generator = torch.Generator().manual_seed(0)
        for parameter in self.layers.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)
            parameter.requires_grad_(False)
        self.scale = None
        self.buffers = Buffers([Buffer('x', self.x)])

    def step(self):
        if self.scale is None:  # created by the first run, as in some modules
            self.scale = torch.full((1,), 0.5)
        first, second = self.layers
        self.x.copy_(torch.tanh(second(first(self.x)) * self.scale))


Work.__module__ = 'embodied_kv.work'


@pytest.fixture(scope='module')
def kept(tmp_path_factory):
    """Return a folder with one package and its recipe."""
    folder, work = tmp_path_factory.mktemp('recipes') / 'kept', Work()
    compiler = Compiler(say=print, folder=folder, facts=FACTS)
    assert (
        compiler.compile('work', partial(type(work).step, work), work.buffers)
        and compiler.traced == 1
    )
    return folder


@pytest.fixture
def again(kept, tmp_path):
    """Return a function that compiles the work as a later process does.

    The function returns compiler, work, run and lines.
    """

    def run(work=None, facts=FACTS, folder=None):
        work, said = work or Work(), []
        compiler = Compiler(say=said.append, folder=folder or kept, builds=False, facts=facts)
        made = compiler.compile('work', partial(type(work).step, work), work.buffers)
        return compiler, work, made, said

    return run


@pytest.fixture
def copied(kept, tmp_path):
    """Return a copy of the folder, and its recipe."""
    folder = shutil.copytree(kept, tmp_path / 'kept')
    (recipe,) = folder.glob('*.json')
    return folder, recipe


@torch.inference_mode()
def test_package_is_loaded_without_a_trace_and_equals_the_computation(again):
    compiler, work, run, said = again()
    assert (compiler.traced, said, list(compiler.packages)) == (0, [], ['work'])
    other = Work()
    assert torch.equal(work.x, other.x), 'loading leaves no trace in memory'
    for _ in range(3):
        run()
        other.step()
        torch.testing.assert_close(work.x, other.x, atol=1e-6, rtol=0)
    for one in (work, other):  # weights are shared, not copied
        one.layers[0].weight.mul_(0.5)
    run()
    other.step()
    torch.testing.assert_close(work.x, other.x, atol=1e-6, rtol=0)


def test_other_facts_and_other_layouts_are_traced(again, copied):
    folder, _ = copied
    compiler, _, run, _ = again(facts='sources of tomorrow', folder=folder)
    assert compiler.traced == 1 and run is not None, 'the same trace has the same package'
    compiler, _, run, _ = again(Work(width=16), folder=folder)
    assert (compiler.traced, run) == (1, None) and compiler.missing


def test_without_facts_everything_is_traced(again):
    assert again(facts='')[0].traced == 1


@torch.inference_mode()
def test_inputs_in_a_wrong_order_are_found_out(again, copied):
    folder, path = copied
    recipe = json.loads(path.read_text())
    weights = [i for i, inner in enumerate(recipe['inputs']) if inner.endswith('[weight]')]
    assert len(weights) == 2
    first, second = weights
    inputs = recipe['inputs']
    inputs[first], inputs[second] = inputs[second], inputs[first]
    path.write_text(json.dumps(recipe))
    compiler, work, run, said = again(folder=folder)
    assert compiler.traced == 1 and 'does not fit: its results differ' in said[0]
    other = Work()
    run()
    other.step()
    torch.testing.assert_close(work.x, other.x, atol=1e-6, rtol=0)
    assert again(folder=folder)[0].traced == 0, 'the recipe was written again'


@pytest.mark.parametrize(
    'text',
    ['', '{', '[]', '{}', '{"package": 1, "inputs": []}', '{"package": "x", "inputs": [1]}'],
)
def test_a_recipe_that_cannot_be_read_is_none(again, copied, text):
    folder, path = copied
    path.write_text(text)
    compiler, _, run, said = again(folder=folder)
    assert (compiler.traced, said) == (1, []) and run is not None


def test_a_recipe_of_a_package_that_is_gone_is_none(again, copied):
    folder, _ = copied
    for package in folder.glob('*.pt2'):
        package.unlink()
    compiler, _, run, _ = again(folder=folder)
    assert (compiler.traced, run, len(compiler.missing)) == (1, None, 1)


def test_a_tensor_that_is_not_reached_is_traced_each_time(tmp_path):
    hidden = {8: torch.ones(8)}

    class Hiding(Work):
        def step(self):
            self.x.add_(globals()['HIDDEN'])

    globals()['HIDDEN'] = hidden[8]
    Hiding.__module__ = 'embodied_kv.work'
    work = Hiding()
    compiler = Compiler(folder=tmp_path / 'kept', builds=False, facts=FACTS)
    compiler.compile('work', partial(type(work).step, work), work.buffers)
    assert compiler.traced == 1 and not list((tmp_path / 'kept').glob('*.json'))


def test_tensors_have_the_same_paths_in_every_process():
    def outer(work):
        inner = torch.zeros(3)

        def step():
            work.step()
            return inner

        return partial(step)

    first, second = (recipes.named_tensors(outer(Work())) for _ in range(2))
    assert list(first) == list(second) and len(first) == 6
    assert all(first[path].shape == second[path].shape for path in first)
    assert any(path.endswith('.inner') for path in first)
    circle = {}
    circle['self'] = circle
    assert recipes.named_tensors(circle) == {}


@torch.inference_mode()
def test_a_trace_that_is_deferred_leads_the_next_start_to_its_package(kept, tmp_path):
    folder = shutil.copytree(kept, tmp_path / 'kept')
    for recipe in folder.glob('*.json'):
        recipe.unlink()
    work, said = Work(), []
    options = dict(say=said.append, folder=folder, builds=False, facts=FACTS)
    first = Compiler(**options, defers=True)
    assert first.compile('work', partial(type(work).step, work), work.buffers) is None
    before = work.x.clone()
    assert (first.traced, len(first.pending)) == (0, 1) and not list(folder.glob('*.json'))
    first.trace_next()
    assert torch.equal(work.x, before), 'a trace leaves no trace in memory'
    assert (first.traced, first.pending, first.missing, said) == (1, [], [], [])
    second = Compiler(**options, defers=True)
    other = Work()
    assert second.compile('work', partial(type(other).step, other), other.buffers) is not None
    assert (second.traced, second.pending) == (0, [])


def test_a_deferred_computation_without_a_package_is_missing_once_it_is_traced(tmp_path):
    work = Work(width=16)
    compiler = Compiler(folder=tmp_path / 'kept', builds=False, facts=FACTS, defers=True)
    compiler.compile('work', partial(type(work).step, work), work.buffers)
    assert not compiler.missing
    compiler.trace_next()
    assert [job.name for job in compiler.missing] == ['work'] and not compiler.pending


def test_a_deferred_trace_that_fails_is_reported(tmp_path):
    said, runs = [], []
    work = Work()

    def step():
        runs.append(1)
        if len(runs) > 1:
            raise RuntimeError('no memory')
        work.step()

    compiler = Compiler(
        say=said.append, folder=tmp_path / 'kept', builds=False, facts=FACTS, defers=True
    )
    compiler.compile('work', step, work.buffers)
    compiler.trace_next()
    assert said == ['work is not compiled and runs eagerly: no memory'] and not compiler.missing
