"""The chunking methods ("ways") for late chunks, and the actor of each.

- off: a chunk takes over by time; its actions that are already past are never executed.
- guided: denoising is pulled towards the leftover actions of the running chunk. The Jacobian is
  taken as the identity, as LeRobot does and as the suite serves it.
- vjp: the same with the Jacobian, as published; only in this benchmark.
- trained: the first actions are given, and the policy was trained to continue from them.
- ensemble: temporal ensembling of the chunks of `off`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from benchmarks.latency.backward import Backward
from benchmarks.latency.ensemble import Ensemble
from embodied_kv.model.policy import Policy
from training.evaluate.actors import Chunking, Served
from training.evaluate.cases import Actor

OFF, TRAINED = 'off', 'trained'


def served(policy: Policy, robots: int, chunking: Chunking) -> Served:
    """Return an actor that uses the suite's own engine, without language streams."""
    return Served(policy, 'silent', robots, 1, 1, chunking=chunking)


def ensemble(policy: Policy, robots: int, chunking: Chunking) -> Ensemble:
    return Ensemble(served(policy, robots, chunking))


ACTORS: dict[str, Callable[[Policy, int, Chunking], Actor]] = {
    OFF: served,
    'guided': served,
    'vjp': Backward,
    TRAINED: served,
    'ensemble': ensemble,
}
WAYS = tuple(ACTORS)


def chunking_of(way: str, steps: int, guidance: Chunking) -> Chunking:
    """Return how the chunks of a way are made.

    guidance: parameters of the guided ways; the others do not read them.
    """
    if way in ('guided', 'vjp'):
        return replace(guidance, euler_steps=steps, rtc='guided')
    return Chunking(steps, TRAINED if way == TRAINED else OFF)
