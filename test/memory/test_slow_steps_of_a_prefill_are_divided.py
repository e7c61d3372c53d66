"""A prefill whose steps take longer than their target divides those of the next prompt."""

import time

import pytest
import torch
from memory_cases import KvOfUnits, make_planner, make_prefill, make_prompt

from embodied_kv.memory import prefill as module
from embodied_kv.memory.reuse import FullRecompute


@pytest.fixture
def prompt():
    return make_prompt(segments=15)


def widths(monkeypatch, prompt, seconds, runs, block=32, longest=0.02):
    """Return the largest number of tokens of a step in each run, and the last hidden state.

    seconds: duration of a step by its tokens, on a simulated clock.
    """
    clock, model = [0.0], make_planner()
    made = make_prefill(model, KvOfUnits(model, prompt), block=block, longest=longest)
    monkeypatch.setattr(module, 'time', type(time)('clock'))
    module.time.perf_counter = lambda: clock[0]
    layer, largest = model.layer, []

    def timed(number, hidden, *rest):
        clock[0] += seconds(hidden.shape[1])
        largest[-1] = max(largest[-1], hidden.shape[1])
        return layer(number, hidden, *rest)

    monkeypatch.setattr(model, 'layer', timed)
    for _ in range(runs):
        largest.append(0)
        hidden, _ = made.run(prompt, FullRecompute())
    return largest, hidden


def test_steps_have_as_many_tokens_as_their_duration_allows(monkeypatch, prompt):
    monkeypatch.setattr(module, 'LEAST_BLOCK', 4)
    assert widths(monkeypatch, prompt, lambda n: n / 1000, 4)[0] == [32, 16, 16, 16]
    assert widths(monkeypatch, prompt, lambda n: 1.0, 3)[0] == [32, 4, 4]


def test_steps_of_a_prompt_that_is_shorter_than_a_block_are_divided(monkeypatch, prompt):
    monkeypatch.setattr(module, 'LEAST_BLOCK', 4)
    length = prompt.length
    found = widths(monkeypatch, prompt, lambda n: n / 1000, 3, block=256)[0]
    assert found == [length, 16, 16]


def test_steps_grow_again_once_the_machine_is_fast(monkeypatch, prompt):
    monkeypatch.setattr(module, 'LEAST_BLOCK', 4)
    slow = iter([1.0] * 8)
    found = widths(monkeypatch, prompt, lambda n: next(slow, n / 10_000), 4)[0]
    assert found[0] == 32 and min(found[1:3]) < 32 and found[-1] == 32


def test_fast_steps_keep_their_size(monkeypatch, prompt):
    assert widths(monkeypatch, prompt, lambda n: 0.01, 3)[0] == [32, 32, 32]


def test_one_slow_step_divides_nothing(monkeypatch, prompt):
    slow = iter([1.0])
    assert widths(monkeypatch, prompt, lambda n: next(slow, 0.001), 3)[0] == [32, 32, 32]


def test_divided_steps_compute_the_same(monkeypatch, prompt):
    monkeypatch.setattr(module, 'LEAST_BLOCK', 4)
    _, whole = widths(monkeypatch, prompt, lambda n: 0.0, 1)
    _, divided = widths(monkeypatch, prompt, lambda n: 1.0, 4)
    torch.testing.assert_close(divided, whole, atol=2e-5, rtol=0)
