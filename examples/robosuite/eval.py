"""openpi's own client drives robosuite's Lift by a policy server, and the world does not wait.

Run it, beside `python -m embodied_kv.serving --contract examples/robosuite/lift.yaml …`:
`.venv-robosuite/bin/python examples/robosuite/eval.py --latency 0 100 200`.

While a chunk is on its way the arm follows the one before. With `--pace virtual` the world goes
on by as many periods as the answer took by the clock, and the latency that is added; how long the
simulation itself takes counts nothing. With `--pace real` all of it is the clock's.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np
from openpi_client.websocket_client_policy import WebsocketClientPolicy
from panda_lift import FPS, INSTRUCTION, OPEN, PandaLift, Seen

SECONDS = 10.0  # of an episode, at most
Z = 1.96  # of a 95% interval
TICK = 1e-9  # s; moments closer than this are the same
SIDE = 240  # pixels of a picture in the video
UNSEEN = 1_000_000  # no recording begins there


@dataclass
class Counted:
    """Of one latency. took: s of each request; starved: steps for which no action was left."""

    lifted: list[float] = field(default_factory=list)
    starts: int = 0
    took: list[float] = field(default_factory=list)
    steps: int = 0
    starved: int = 0
    late: int = 0


class Virtual:
    """A chunk on its way, in the world's own time: latency, s, is added to what it took.

    counts: s that are taken for an inference instead, whatever the clock says.
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
        """For what is seen at `now`, s."""
        began = time.monotonic()
        self._chunk = self._policy.infer(request)['actions']
        self._took.append(time.monotonic() - began)
        counts = self._took[-1] if self._counts is None else self._counts
        self._due = now + counts + self._latency

    def answer(self, now: float) -> np.ndarray | None:
        """The chunk, if it is there by now."""
        return self._chunk if now >= self._due - TICK else None

    def wait(self, now: float) -> float:
        """Until the period begins; s that it began late."""
        return 0.0


class Real:
    """A chunk on its way, by the clock."""

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
    lift: PandaLift, way: Virtual | Real, seed: int, counted: Counted, every: int
) -> Iterator[None]:
    """Goes on by a step at a time. every: steps between two requests, at least.

    What is seen is drawn only for a request: drawing takes most of a step.
    """
    lift.reset(seed)
    chunk, since, asked = None, 0, None
    held = np.append(lift.joints, 0.0)  # until the first chunk; fingers open
    counted.starts += 1
    while lift.steps < SECONDS * FPS and not lift.is_lifted:
        now = lift.steps / FPS
        counted.late += way.wait(now) > 1 / FPS
        if asked is not None and (found := way.answer(now)) is not None:
            chunk, since, asked = found, asked, None
        if asked is None and (chunk is None or lift.steps - since >= every):
            way.ask(request(lift.see()), now)
            asked = lift.steps
        if chunk is not None:
            counted.starved += lift.steps - since >= len(chunk)
            held = chunk[min(lift.steps - since, len(chunk) - 1)]
        lift.step(held[:7], OPEN * (1 - held[7]))
        counted.steps += 1
        yield
    while asked is not None and way.answer(math.inf) is None:
        time.sleep(0.01)  # the connection takes one request at a time
    if lift.is_lifted:
        counted.lifted.append(lift.steps / FPS)


def request(seen: Seen) -> dict:
    """As the contract's section openpi names it, in the policy's units."""
    return {
        'observation/image': seen.pictures['front'],
        'observation/wrist_image': seen.pictures['wrist'],
        'observation/joint_position': seen.joints,
        'observation/gripper_position': np.array([1 - seen.finger / OPEN]),
        'prompt': INSTRUCTION,
    }


def interval(done: int, of: int) -> tuple[float, float]:
    """Wilson's, of a share: 95%."""
    share, most = done / of, Z * Z / of
    middle = (share + most / 2) / (1 + most)
    half = math.sqrt(share * (1 - share) * most + most * most / 4) / (1 + most)
    return max(0.0, middle - half), min(1.0, middle + half)


class Video:
    """Both cameras beside each other, in an MP4; where there is no codec, that is said."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        code = cv2.VideoWriter_fourcc(*'mp4v')
        self._out = cv2.VideoWriter(str(path), code, FPS, (2 * SIDE, SIDE))
        if not self._out.isOpened():
            print(f'{path}: OpenCV cannot write it, so there is no video', file=sys.stderr)

    def add(self, seen: Seen) -> None:
        both = [cv2.resize(picture, (SIDE, SIDE)) for picture in seen.pictures.values()]
        self._out.write(cv2.cvtColor(np.hstack(both), cv2.COLOR_RGB2BGR))

    def close(self) -> None:
        self._out.release()


def measure(
    lift: PandaLift, policy: WebsocketClientPolicy, told: argparse.Namespace, ms: float
) -> dict[str, object]:
    """All starts with a latency, and what came of it."""
    counted = Counted()
    way: Virtual | Real = Real(policy, ms / 1000, counted.took)
    if told.pace == 'virtual':
        counts = None if told.inference is None else told.inference / 1000
        way = Virtual(policy, ms / 1000, counted.took, counts)
    video = Video(told.out / f'lift_{ms:g}ms.mp4')
    for start in range(told.starts):
        for _ in episode(lift, way, told.seed + start, counted, told.every):
            if start < told.videos:
                video.add(lift.see())
    video.close()
    done = len(counted.lifted)
    low, high = interval(done, told.starts)
    return {
        'latency_ms': ms,
        'lifted': done,
        'starts': told.starts,
        'interval': [round(low, 3), round(high, 3)],
        'seconds': round(float(np.mean(counted.lifted)), 2) if done else None,
        'infer_ms_p50': round(float(np.median(counted.took)) * 1000, 1),
        'infer_ms_p95': round(float(np.quantile(counted.took, 0.95)) * 1000, 1),
        'starved': round(counted.starved / counted.steps, 4),
        'late_steps': counted.late,
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog='eval', description=__doc__.splitlines()[0])
    parser.add_argument('--host', default='127.0.0.1')
    parser.add_argument('--port', type=int, default=8000)
    parser.add_argument('--starts', type=int, default=100)
    parser.add_argument('--seed', type=int, default=UNSEEN, help='of the first start')
    parser.add_argument('--latency', type=float, nargs='+', default=[0.0], help='ms, added')
    parser.add_argument('--pace', choices=('virtual', 'real'), default='virtual')
    parser.add_argument(
        '--inference', type=float, help='virtual: ms that one counts, whatever it took'
    )
    parser.add_argument('--every', type=int, default=4, help='steps between requests, at least')
    parser.add_argument('--size', type=int, default=96, help="pixels of a picture's side")
    parser.add_argument('--videos', type=int, default=5, help='starts that are shown')
    parser.add_argument('--out', type=Path, default=Path('out/robosuite'))
    told = parser.parse_args()
    if told.starts < 1:
        parser.error(f'--starts {told.starts}: at least one')
    try:
        policy = WebsocketClientPolicy(told.host, told.port)
    except OSError as error:
        parser.exit(1, f'no policy server on {told.host}:{told.port}: {error}\n')
    lift = PandaLift(told.size)
    found = []
    for ms in told.latency:
        found.append(row := measure(lift, policy, told, ms))
        low, high = (100 * end for end in row['interval'])
        print(
            f'+{ms:g} ms: lifted {row["lifted"]} of {row["starts"]} '
            f'({low:.0f} to {high:.0f}%), inference {row["infer_ms_p50"]} ms',
            flush=True,
        )
    print(json.dumps({'eval': found, 'pace': told.pace, 'every': told.every}))


if __name__ == '__main__':
    main()
