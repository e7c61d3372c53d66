"""Drive a simulated robot by a policy server with openpi's own client; the world does not wait.

While a chunk is computed the robot follows the previous one. With `--pace virtual` the world
advances by as many steps as the answer took by the clock, plus the added latency; the duration of
the simulation itself does not count. With `--pace real` all times are those of the clock.

Runs in the simulator's environment, while `python -m embodied_kv.serving --contract …` runs.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import cv2
import numpy as np
from openpi_client.websocket_client_policy import WebsocketClientPolicy

Z = 1.96  # of a 95% interval
TICK = 1e-9  # s; closer times are equal
SIDE = 240  # pixels of a picture in the video
UNSEEN = 1_000_000  # seed of starts that are in no recording


class Robot(Protocol):
    """A simulated robot. rate: steps per second; ticks: steps per action; seconds: at most.

    steps: since the start. done: whether its task is. stages: progress, 0 or 1 by name.
    """

    rate: int
    ticks: int
    seconds: float
    steps: int
    done: bool
    stages: dict[str, int]

    def reset(self, seed: int) -> np.ndarray:
        """Reset to a start. Returns the action that holds it there, in the policy's numbers."""

    def request(self) -> dict:
        """Return the observation, with the names of the contract's section openpi."""

    def step(self, action: np.ndarray) -> None:
        """Take one step of the world towards this set-point in the policy's numbers."""

    def pictures(self) -> list[np.ndarray]:
        """Return the images for the video, all of one size."""


@dataclass
class Counted:
    """Counts for one latency.

    done: s of each success. took: s of each request. starved: steps for which no action was left.
    late: steps that began more than a step late.
    """

    done: list[float] = field(default_factory=list)
    stages: Counter[str] = field(default_factory=Counter)
    took: list[float] = field(default_factory=list)
    steps: int = 0
    starved: int = 0
    late: int = 0


class Virtual:
    """A pending chunk in simulated time.

    latency: s that are added to the duration of a request. counts: s that replace the measured
    duration; None to measure.
    """

    def __init__(
        self,
        policy: WebsocketClientPolicy,
        latency: float,
        took: list[float],
        counts: float | None,
    ) -> None:
        self._policy, self._latency, self._took, self._counts = policy, latency, took, counts
        self._due, self._chunk = 0.0, None

    def ask(self, request: dict, now: float) -> None:
        """Request a chunk for the observation at `now`, s."""
        began = time.monotonic()
        self._chunk = self._policy.infer(request)['actions']
        self._took.append(time.monotonic() - began)
        counts = self._took[-1] if self._counts is None else self._counts
        self._due = now + counts + self._latency

    def answer(self, now: float) -> np.ndarray | None:
        """Return the chunk if it has arrived by `now`, else None."""
        return self._chunk if now >= self._due - TICK else None

    def wait(self, now: float) -> float:
        """Wait until the period begins, and return by how many s it is late."""
        return 0.0


class Real:
    """A pending chunk in real time."""

    def __init__(self, policy: WebsocketClientPolicy, latency: float, took: list[float]) -> None:
        self._policy, self._latency, self._took = policy, latency, took
        self._thread, self._coming, self._began = ThreadPoolExecutor(1), None, time.monotonic()

    def ask(self, request: dict, now: float) -> None:
        self._coming = self._thread.submit(self._infer, request)

    def answer(self, now: float) -> np.ndarray | None:
        return self._coming.result() if self._coming.done() else None

    def wait(self, now: float) -> float:
        if now == 0:
            self._began = time.monotonic()
        early = self._began + now - time.monotonic()
        time.sleep(max(0.0, early))
        return max(0.0, -early)

    def _infer(self, request: dict) -> np.ndarray:
        began = time.monotonic()
        actions = self._policy.infer(request)['actions']
        self._took.append(time.monotonic() - began)
        time.sleep(self._latency)
        return actions


def episode(
    robot: Robot, way: Virtual | Real, seed: int, counted: Counted, every: int
) -> Iterator[None]:
    """Run an episode, and yield after each step. every: steps between two requests, at least.

    An action is reached `ticks` steps after it is due; until then the set-point moves there
    linearly. Images are rendered for requests only, because rendering takes most of a step.
    """
    held = robot.reset(seed)
    chunk, since, asked = None, 0, None
    while robot.steps < robot.seconds * robot.rate and not robot.done:
        now = robot.steps / robot.rate
        counted.late += way.wait(now) > 1 / robot.rate
        if asked is not None and (found := way.answer(now)) is not None:
            chunk, since, asked = found, asked, None
        if asked is None and (chunk is None or robot.steps - since >= every):
            way.ask(robot.request(), now)
            asked = robot.steps
        if chunk is not None:
            place, tick = divmod(robot.steps - since, robot.ticks)
            counted.starved += place >= len(chunk)
            held = held + (chunk[min(place, len(chunk) - 1)] - held) / (robot.ticks - tick)
        robot.step(held)
        counted.steps += 1
        yield
    while asked is not None and way.answer(math.inf) is None:
        time.sleep(0.01)  # the connection takes one request at a time
    counted.stages.update(robot.stages)
    if robot.done:
        counted.done.append(robot.steps / robot.rate)


def interval(done: int, of: int) -> tuple[float, float]:
    """Return Wilson's 95% interval of a share."""
    share, most = done / of, Z * Z / of
    middle = (share + most / 2) / (1 + most)
    half = math.sqrt(share * (1 - share) * most + most * most / 4) / (1 + most)
    return max(0.0, middle - half), min(1.0, middle + half)


class Video:
    """An MP4 with all images in a row. Without a codec it prints a message instead."""

    def __init__(self, path: Path, rate: float, pictures: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        code = cv2.VideoWriter_fourcc(*'mp4v')
        self._out = cv2.VideoWriter(str(path), code, rate, (pictures * SIDE, SIDE))
        if not self._out.isOpened():
            print(f'{path}: OpenCV cannot write it, so there is no video', file=sys.stderr)

    def add(self, pictures: list[np.ndarray]) -> None:
        shown = [cv2.resize(picture, (SIDE, SIDE)) for picture in pictures]
        self._out.write(cv2.cvtColor(np.hstack(shown), cv2.COLOR_RGB2BGR))

    def close(self) -> None:
        self._out.release()


def measure(
    robot: Robot, policy: WebsocketClientPolicy, told: argparse.Namespace, name: str, ms: float
) -> dict[str, object]:
    """Run all starts with a latency and return the results. name: of the video."""
    counted = Counted()
    way: Virtual | Real = Real(policy, ms / 1000, counted.took)
    if told.pace == 'virtual':
        counts = None if told.inference is None else told.inference / 1000
        way = Virtual(policy, ms / 1000, counted.took, counts)
    path = told.out / f'{name}_{ms:g}ms.mp4'
    video = Video(path, robot.rate / robot.ticks, len(robot.pictures()))
    for start in range(told.starts):
        for _ in episode(robot, way, told.seed + start, counted, told.every):
            if start < told.videos and robot.steps % robot.ticks == 0:
                video.add(robot.pictures())
    video.close()
    done = len(counted.done)
    low, high = interval(done, told.starts)
    return {
        'latency_ms': ms,
        'done': done,
        **counted.stages,
        'starts': told.starts,
        'interval': [round(low, 3), round(high, 3)],
        'seconds': round(float(np.mean(counted.done)), 2) if done else None,
        'infer_ms_p50': round(float(np.median(counted.took)) * 1000, 1),
        'infer_ms_p95': round(float(np.quantile(counted.took, 0.95)) * 1000, 1),
        'starved': round(counted.starved / counted.steps, 4),
        'late_steps': counted.late,
    }


def run(begin: Callable[[int], Robot], description: str, name: str, done: str, every: int) -> None:
    """Parse the command line and run the trial.

    begin: creates a robot with images of the given side, pixels. done: word for success. name: of
    the videos. every: default number of steps between requests.
    """
    parser = argparse.ArgumentParser(prog='eval', description=description)
    parser.add_argument('--host', default='127.0.0.1')
    parser.add_argument('--port', type=int, default=8000)
    parser.add_argument('--starts', type=int, default=100)
    parser.add_argument('--seed', type=int, default=UNSEEN, help='of the first start')
    parser.add_argument('--latency', type=float, nargs='+', default=[0.0], help='ms, added')
    parser.add_argument('--pace', choices=('virtual', 'real'), default='virtual')
    parser.add_argument(
        '--inference', type=float, help='virtual: ms that one counts, whatever it took'
    )
    parser.add_argument(
        '--every', type=int, default=every, help='steps between requests, at least'
    )
    parser.add_argument('--size', type=int, default=96, help="pixels of a picture's side")
    parser.add_argument('--videos', type=int, default=5, help='starts that are shown')
    parser.add_argument('--out', type=Path, default=Path('out'))
    told = parser.parse_args()
    if told.starts < 1:
        parser.error(f'--starts {told.starts}: at least one')
    try:
        policy = WebsocketClientPolicy(told.host, told.port)
    except OSError as error:
        parser.exit(1, f'no policy server on {told.host}:{told.port}: {error}\n')
    robot, found = begin(told.size), []
    for ms in told.latency:
        found.append(row := measure(robot, policy, told, name, ms))
        low, high = (100 * end for end in row['interval'])
        stages = ''.join(f', {stage} {row.get(stage, 0)}' for stage in robot.stages)
        print(
            f'+{ms:g} ms: {done} {row["done"]} of {row["starts"]} ({low:.0f} to {high:.0f}%)'
            f'{stages}, inference {row["infer_ms_p50"]} ms',
            flush=True,
        )
    print(json.dumps({'eval': found, 'pace': told.pace, 'every': told.every}))
