"""The ways to go on while a chunk is late: who acts in each, and what it depends on.

- off: a chunk takes over by time, and what of it has passed is never done.
- guided: denoising is pulled towards what is left of the running chunk; the Jacobian is taken as
  the identity, as LeRobot does and as the suite serves it.
- vjp: the same with the Jacobian, as it was published; in this benchmark alone.
- trained: the first actions are given, and the policy was trained to go on from them.
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
    """The suite's own engine; it says nothing."""
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
    """How chunks are made in a way. guidance: of those that are guided; the rest reads no more."""
    if way in ('guided', 'vjp'):
        return replace(guidance, euler_steps=steps, rtc='guided')
    return Chunking(steps, TRAINED if way == TRAINED else OFF)
