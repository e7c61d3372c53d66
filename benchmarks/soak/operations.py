"""The operations, their weights, and the threads they run on.

Knows all operations. Does not know how they are done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from benchmarks.soak import capsules, frames, language, memories, pools
from benchmarks.soak.faults import was_injected
from benchmarks.soak.ledger import DONE, INJECTED, REFUSED
from benchmarks.soak.outcome import REFUSALS
from benchmarks.soak.world import World


@dataclass(frozen=True)
class Operation:
    """An operation of the soak.

    weight: relative frequency. worker: the thread that it runs on; '': the caller's.
    """

    run: Callable[[World, Random], object]
    weight: float
    worker: str = ''

    @property
    def name(self) -> str:
        return self.run.__name__.replace('_', ' ')

    def begin(self, world: World, seed: int) -> None:
        """Run the operation, or hand it over to its worker; the seed decides its details."""
        if self.worker:
            world.hand_over(self.worker, lambda: self._attempt(world, Random(seed)))
        else:
            self._attempt(world, Random(seed))

    def _attempt(self, world: World, random: Random) -> None:
        began = time.perf_counter()
        try:
            self.run(world, random)
            outcome = DONE
        except Exception as error:
            outcome = _judged(error)
            if outcome is None:
                law = f'{self.name}: done, or refused with a reason'
                world.ledger.breaks(law, f'{type(error).__name__}: {error}')
                return
        world.ledger.outcome(self.name, outcome, time.perf_counter() - began)


def is_expected(error: BaseException) -> bool:
    """Return whether an operation may raise this error."""
    return _judged(error) is not None


def _judged(error: BaseException) -> str | None:
    """Return the outcome of an error; None for one that no operation may raise."""
    if was_injected(error):
        return INJECTED
    return REFUSED if isinstance(error, REFUSALS) else None


FRAMES = (
    Operation(frames.frame, 70),
    Operation(frames.racing_frame, 14),
    Operation(frames.superseded_frame, 5),
    Operation(frames.batch, 5),
    Operation(frames.impossible_frame, 6),
)
OTHERS = (
    Operation(frames.expire, 3),
    Operation(frames.hold, 4),
    Operation(frames.let_go, 4),
    Operation(frames.stale_handle, 2),
    Operation(language.ask, 24),
    Operation(language.impossible_question, 2),
    Operation(language.cancel, 8),
    Operation(language.cancel_nobody, 1),
    Operation(language.limit, 2),
    Operation(language.impossible_limit, 1),
    Operation(language.keep_less, 5),
    Operation(language.impossible_share, 1),
    Operation(capsules.snapshot, 6, 'capsules'),
    Operation(capsules.restore, 2, 'capsules'),
    Operation(capsules.rollback, 2, 'capsules'),
    Operation(capsules.fork, 3, 'capsules'),
    Operation(capsules.replay, 1, 'capsules'),
    Operation(capsules.load, 2, 'capsules'),
    Operation(capsules.move, 4, 'capsules'),
    Operation(capsules.pin, 1, 'capsules'),
    Operation(capsules.unpin, 2, 'capsules'),
    Operation(capsules.drop, 3, 'capsules'),
    Operation(capsules.impossible_capsule, 1, 'capsules'),
    Operation(memories.tell, 3),
    Operation(memories.impossible_segment, 1),
    Operation(memories.forget, 1),
    Operation(memories.age, 2),
    Operation(memories.query, 1),
    Operation(memories.plan, 1, 'planner'),
    Operation(memories.warm, 1, 'planner'),
    Operation(memories.impossible_plan, 1, 'planner'),
    Operation(pools.evict, 4),
)
OFTEN = 0.4  # other operations per frame


def draw(operations: Sequence[Operation], random: Random) -> Operation:
    """Draw an operation by weight."""
    return random.choices(operations, [operation.weight for operation in operations])[0]
