"""What a fleet lives in while it is measured: a tabletop for each robot, behind a connection.

Knows tasks and simulated time. The fleet itself, its node and robots, is another process
(`lockstep`), since ROS is its business alone; it asks for every image and every step.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import Pipe

import numpy as np

from benchmarks.common.workers import environment
from embodied_kv.demo.sim.rollout import SET_POINT
from embodied_kv.demo.sim.scene import CAMERAS
from training.evaluate.cases import Case, Setting
from training.evaluate.worlds import World

LOCKSTEP = 'benchmarks.fleet.serving.lockstep'
ENDING = 30.0  # s that the process may take to end


class Table(World):
    """A world of evaluation that moves on by set-points, and takes a chunk at any of them."""

    def __init__(self, image_size: int, dt: float) -> None:
        super().__init__(image_size, Setting(dt, latency=0.0))
        self._every = round(dt / SET_POINT)  # set-points between two actions, and two judgements

    def begin(self, case: Case) -> None:
        super().begin(case)
        self._moment = 0  # set-points since

    @property
    def instruction(self) -> str:
        return self._instruction

    def follow(self, actions: np.ndarray, began: int) -> None:
        """From now on, of these actions [n, 7] what is still to come; row 0 was due at `began`."""
        first = max(0, (self._moment - began) // self._every + 1)
        if first < len(actions):
            due = began + first * self._every
            self._rollout.follow(actions[first:], due * SET_POINT, self.setting.dt)

    def advance(self, moment: int) -> tuple[bool, bool]:
        """Up to so many set-points; whether the task is done, and whether its time is up."""
        while self._moment < moment:
            stop = min(moment, (self._moment // self._every + 1) * self._every)
            self._rollout.advance((stop - self._moment) * SET_POINT)
            self._moment = stop
            if stop % self._every == 0:
                self.period += 1
                self._truth = self._table.truth()
                self._judge.see(self._truth)
        return self._judge.done, self.period >= self._limit


class Tables:
    """One table for each robot, and the cases that the numbers of tasks mean. Close it."""

    def __init__(self, cases: Sequence[Case], robots: int, image_size: int, dt: float) -> None:
        self._cases = cases
        self._tables = [Table(image_size, dt) for _ in range(robots)]

    def begin(self, robot: int, task: int) -> str:
        self._tables[robot].begin(self._cases[task])
        return self._tables[robot].instruction

    def look(self, robot: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        seen = self._tables[robot].look().observation
        return dict(zip(CAMERAS, seen.images, strict=True)), seen.state

    def follow(self, robot: int, actions: np.ndarray, began: int) -> None:
        self._tables[robot].follow(actions, began)

    def advance(self, robot: int, moment: int) -> tuple[bool, bool]:
        return self._tables[robot].advance(moment)

    def close(self) -> None:
        for table in self._tables:
            table.close()


class Fleets:
    """A process in which fleets are run, one after another. Close it.

    Raises RuntimeError where it ends by itself; its own words are on stderr.
    """

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, '-m', LOCKSTEP, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment(OMP_NUM_THREADS='1'),
        )
        theirs.close()

    def run(self, order: dict, world: Tables, on_end: Callable[[], object]) -> dict:
        """What became of an order (`lockstep.Order`). on_end: of each task, once."""
        tasks, ended = {}, set()  # by robot; once all of a robot's are over, it repeats them
        try:
            self._connection.send(order)
            while True:
                name, arguments = self._connection.recv()
                if name == 'result':
                    return arguments[0]
                answer = getattr(world, name)(*arguments)
                if name == 'begin':
                    tasks[arguments[0]] = arguments[1]
                elif name == 'advance' and any(answer) and tasks[arguments[0]] not in ended:
                    ended.add(tasks[arguments[0]])
                    on_end()
                self._connection.send(answer)
        except (EOFError, OSError) as error:
            raise RuntimeError(
                f'the fleet ended with {self._ended()}, for the reason above: is ROS 2 sourced? '
                'tools/env COMMAND does'
            ) from error

    def close(self) -> None:
        """Ends the process; one that does not end is killed, so what was measured is kept."""
        if self._process.poll() is None:
            with suppress(OSError):
                self._connection.send(None)
            self._ended()
        self._connection.close()

    def _ended(self) -> int:
        """The exit status, after ENDING at the latest."""
        try:
            return self._process.wait(ENDING)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
