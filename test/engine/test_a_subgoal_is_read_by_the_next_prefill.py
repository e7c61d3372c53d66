"""Planner-actor hand-off: the planner writes its subgoal into the prompt that the engine reads.

Both are graphs over one buffer, the text: nothing is captured again, nothing is copied.
Source: Execution-State Capsules, section 6, planner-actor hand-off.
"""

import torch

from benchmarks.hybrid.config import PLANNER_TINY
from benchmarks.hybrid.planner import HybridPlanner
from benchmarks.hybrid.weights import random_hybrid
from embodied_kv.config import TINY
from embodied_kv.engine.shapes import Kind
from embodied_kv.runtime.graph_cache import GraphCache, Shape
from embodied_kv.runtime.inputs import StepInputs

BEGIN, WORDS = 3, 6  # first token and length of the subgoal in the prompt


class Robot:
    """A hybrid planner that decodes `WORDS` tokens into the engine's prompt."""

    def __init__(self, engine, frame):
        self.engine = engine
        (self.handle,) = engine.prefill([frame])
        self.actor = next(
            graph
            for shape in engine.graphs.shapes
            if shape.kind is Kind.PREFILL and (graph := engine.graphs[shape]).replays
        )
        self.text = self.actor.buffers['text']
        self.planner = HybridPlanner(PLANNER_TINY, random_hybrid(PLANNER_TINY, seed=2))

        def think(text):
            words = torch.tensor(self.planner.decode(WORDS))
            text.values[0, BEGIN : BEGIN + WORDS] = words % TINY.backbone.vocab_size

        shape, text = Shape('planner', 1), Text(self.text.tensor)
        self.think = GraphCache().capture(shape, think, text, writes=[self.text])

    def row(self):
        return self.engine.kv.prefixes.k[:, self.handle.row].clone()


class Text:
    """The view through which the planner writes the prompt's tokens; there is nothing to bind."""

    fits_compiled, buffers = False, ()

    def __init__(self, values):
        self.values, self.inputs = values, StepInputs('cpu', {})


def test_the_next_replay_reads_the_subgoal(make_engine, observe):
    robot = Robot(make_engine(), observe(1))
    captures, address = robot.engine.graphs.captures, robot.text.tensor.data_ptr()
    before = robot.row()
    robot.planner.prefill([5, 6, 7])
    robot.think.replay()
    assert torch.equal(robot.row(), before)  # the planner wrote the prompt, not the cache
    robot.actor.replay()
    after, words = robot.row(), robot.text.tensor[0, BEGIN : BEGIN + WORDS].tolist()
    assert not torch.equal(after, before)
    assert robot.text.tensor.data_ptr() == address
    assert robot.engine.graphs.captures == captures
    assert len(set(words)) > 1


def test_it_equals_a_prompt_that_said_so_from_the_start(make_engine, observe, policy, monkeypatch):
    robot = Robot(make_engine(), observe(1))
    robot.planner.prefill([5, 6, 7])
    robot.think.replay()
    robot.actor.replay()
    words = robot.text.tensor[0, BEGIN : BEGIN + WORDS].tolist()
    ids = policy.prompt_ids(observe(1).instruction, observe(1).state)
    told = [*ids[:BEGIN], *words, *ids[BEGIN + WORDS :]]
    monkeypatch.setattr(type(policy), 'prompt_ids', lambda self, instruction, state: told)
    cold = make_engine()
    (handle,) = cold.prefill([observe(1)])
    length = handle.length
    ours, theirs = robot.row()[:, :, :length], cold.kv.prefixes.k[:, handle.row, :, :length]
    assert torch.equal(ours, theirs)
