"""`python -m training.evaluate.chance`: tasks that refer to the past, with and without a memory.

The scripted expert, which knows the past, is a bound. A guess has the expert's movements, but its
goal is a random one of those that the instruction and the current frame allow. Prints a table: the
successes of both, and the probability with which a guess succeeds, in the mean of all episodes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace

import numpy as np

from embodied_kv.demo.sim.scene import SceneConfig
from embodied_kv.demo.sim.tasks import MEMORY_FAMILIES, Task
from training.evaluate import report
from training.evaluate.actors import Expert
from training.evaluate.cases import Case, Choice, Frame, Setting
from training.evaluate.memory import any_of, chance, guesses
from training.evaluate.worlds import World, run

DT, LATENCY, CHUNK = 0.1, 0.04, 10  # s, s, actions
ROBOTS = 20  # worlds in lockstep
GUESS_RNG = 4  # random stream of a scene


class Guesser:
    """The expert with a goal that is drawn from the possible ones of an episode's first frame.

    chances: by case, the probability that such a goal is right.
    """

    def __init__(self, chunk_size: int) -> None:
        self._expert = Expert(chunk_size)
        self._goals: dict[Case, Task] = {}
        self.chances: dict[Case, float] = {}

    def act(self, frames: Sequence[Frame]) -> list[Choice]:
        """Return a choice for each frame."""
        for frame in frames:
            if frame.case not in self._goals:
                rng = np.random.default_rng((frame.scene, GUESS_RNG))
                self._goals[frame.case] = any_of(guesses(frame.told, frame.truth), rng)
                self.chances[frame.case] = chance(frame.told, frame.truth)
        return self._expert.act([replace(f, told=self._goals[f.case]) for f in frames])

    def finish(self) -> None:
        """Do nothing."""


def measure(family: str, episodes: int, seed: int) -> dict:
    """Return the successes of the expert and of a guess, and the mean probability of a guess."""
    cases = [Case(family, seed, episode) for episode in range(episodes)]
    guesser, setting = Guesser(CHUNK), Setting(DT, LATENCY)
    with ExitStack() as stack:
        worlds = [
            stack.enter_context(closing(World(SceneConfig.image_size, setting)))
            for _ in range(min(ROBOTS, episodes))
        ]
        expert = run(worlds, cases, Expert(CHUNK))
        guessed = run(worlds, cases, guesser)
    return dict(
        family=family,
        episodes=episodes,
        expert=sum(outcome.success for outcome in expert),
        expert_wrong=sum(outcome.wrong for outcome in expert),
        guess=sum(outcome.success for outcome in guessed),
        chance=float(np.mean([guesser.chances[case] for case in cases])),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and print the table."""
    command = argparse.ArgumentParser(
        prog='python -m training.evaluate.chance',
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument('--episodes', type=int, default=60, help='per family')
    command.add_argument('--seed', type=int, default=0, help='of the set of scenes')
    args = command.parse_args(arguments)
    if args.episodes < 1:
        command.error('--episodes is at least 1')
    rows = [measure(family, args.episodes, args.seed) for family in MEMORY_FAMILIES]
    report.show('tasks that refer to the past', rows)


if __name__ == '__main__':
    main()
