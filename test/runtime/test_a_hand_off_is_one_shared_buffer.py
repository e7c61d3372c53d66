"""A planner and an actor, each a graph, share one buffer: the subgoal.

The next replay of the actor reads what the planner wrote; nothing is captured again or copied.

Source: Execution-State Capsules, section 6, planner-actor hand-off.
"""

import pytest
import torch
from captures import capture, watched

from embodied_kv.runtime.buffer import Buffer


class Robot:
    """subgoal = tanh(instruction @ plan); action = subgoal - position."""

    def __init__(self, device):
        plan = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).to(device)
        self.graphs = watched(device)
        self.instruction, self.subgoal, self.position, self.action = (
            Buffer(name, torch.zeros((size,), dtype=torch.float32, device=device))
            for name, size in dict(instruction=6, subgoal=3, position=3, action=3).items()
        )

        def think():
            self.subgoal.write(torch.tanh(self.instruction.tensor @ plan))

        def act():
            torch.sub(self.subgoal.tensor, self.position.tensor, out=self.action.tensor)

        said, heard = [self.instruction, self.subgoal], [self.subgoal, self.position, self.action]
        self.planner = capture(self.graphs, 'planner', think, said)
        self.actor = capture(self.graphs, 'actor', act, heard)

    def addresses(self):
        graphs = self.planner, self.actor
        return {b.name: b.tensor.data_ptr() for graph in graphs for b in graph.buffers}

    def tick(self, position):
        self.position.write(position)
        self.actor.replay()
        return self.action.tensor.clone()


@pytest.fixture
def robot(device):
    return Robot(device)


def test_both_graphs_name_the_same_memory(robot):
    assert robot.planner.buffers['subgoal'] is robot.actor.buffers['subgoal']
    assert len(set(robot.addresses().values())) == len(robot.addresses()) == 4


def test_a_subgoal_written_by_the_planner_is_read_by_the_next_tick(robot, device):
    addresses, captures = robot.addresses(), robot.graphs.captures
    before = robot.tick(torch.ones(3))
    robot.instruction.write(torch.arange(6.0))
    robot.planner.replay()
    after = robot.tick(torch.ones(3))
    ones = torch.ones(3, device=device)
    assert torch.equal(before, -ones)
    assert torch.equal(after, robot.subgoal.tensor - ones)
    assert robot.subgoal.tensor.any()
    assert robot.addresses() == addresses
    assert robot.graphs.captures == captures == 2
    assert (robot.planner.replays, robot.actor.replays) == (1, 2)


def test_the_actor_ticks_many_times_on_one_subgoal(robot, device):
    robot.instruction.write(torch.ones(6))
    robot.planner.replay()
    subgoal = robot.subgoal.tensor.clone()
    for position in torch.randn(4, 3):
        assert torch.equal(robot.tick(position), subgoal - position.to(device))
    assert (robot.planner.replays, robot.actor.replays) == (1, 4)


def test_an_interrupt_overwrites_the_subgoal_between_two_ticks(robot, device):
    robot.instruction.write(torch.ones(6))
    robot.planner.replay()
    robot.tick(torch.zeros(3))
    addresses = robot.addresses()
    correction = torch.tensor([0.5, -0.5, 0.25])
    robot.subgoal.write(correction)
    assert torch.equal(robot.tick(torch.zeros(3)), correction.to(device))
    robot.planner.replay()  # and the planner takes over again
    assert torch.equal(robot.tick(torch.zeros(3)), robot.subgoal.tensor)
    assert not torch.equal(robot.subgoal.tensor, correction.to(device))
    assert robot.addresses() == addresses
    assert robot.graphs.captures == 2
