"""The points of a grid, and every way measured at each of them.

Knows the ways and their clock. Does not know tables or files.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.common.clock import order
from benchmarks.common.ratio import ratio
from benchmarks.frame.modes import PER_FRAME, Mode, Setting, make_mode
from benchmarks.frame.predict import attention_loss, predict
from embodied_kv.config import preset
from embodied_kv.model.policy import Policy

GRID_TOKENS, GRID_STEPS, GRID_CHUNK_SIZES = (10, 30, 100, 200), (1, 5, 10), (10, 15, 50)
QUICK_TOKENS, QUICK_STEPS = (30,), (1, 5)


def grid(args: argparse.Namespace) -> list[tuple[int, list[Setting]]]:
    """Return groups of one N and one chunk size, each with every k.

    The settings of a group are timed together, frame by frame in turn.

    The grid has every N and k at the preset's chunk size, and one point at the other ones;
    everything with --full, two points with --quick; for the real pi05 one point, as its frames
    take minutes on a CPU.
    """
    native = preset(args.preset).chunk_size
    if args.preset == 'pi05' and not args.full:
        tokens, steps, sizes = args.tokens or [10], args.steps or [5], args.chunk_sizes or [native]
    elif args.quick:
        tokens, steps = args.tokens or QUICK_TOKENS, args.steps or QUICK_STEPS
        sizes = args.chunk_sizes or [native]
    else:
        tokens, steps = args.tokens or GRID_TOKENS, args.steps or GRID_STEPS
        sizes = args.chunk_sizes or (GRID_CHUNK_SIZES if args.full else [native])
    groups = [(h, [Setting(n, k, h) for k in steps]) for h in sizes for n in tokens]
    chosen = args.full or args.quick or args.chunk_sizes or args.tokens or args.steps
    if args.preset != 'pi05' and not chosen:
        groups += [(h, [Setting(30, 5, h)]) for h in GRID_CHUNK_SIZES if h != native]
    return groups


class Timed:
    """A way of computing frames, and the seconds of each frame: by its own clock and on the wall.

    Args:
        mode: The way.
        skip: First frames that do not count.
    """

    def __init__(self, mode: Mode, skip: int) -> None:
        self.mode, self._skip = mode, skip
        self._own: list[float] = []
        self._wall: list[float] = []

    def frame(self, number: int) -> tuple[np.ndarray, int]:
        """Compute and time frame `number`; return its actions and the number of tokens."""
        wall, own = time.perf_counter(), self.mode.timer()
        done = self.mode.frame(number)
        self._own.append(self.mode.timer() - own)
        self._wall.append(time.perf_counter() - wall)
        return done

    @property
    def own(self) -> list[float]:
        """Return the seconds of each counted frame by the way's own clock (`Mode.timer`)."""
        return self._own[self._skip :]

    @property
    def wall(self) -> list[float]:
        """Return the wall seconds of each counted frame."""
        return self._wall[self._skip :]

    @property
    def ms(self) -> float:
        """Return the median of a counted frame (ms), by the way's own clock."""
        return 1e3 * statistics.median(self.own)

    @property
    def managed(self) -> float:
        """Return the median ms of a counted frame that were spent on the cache."""
        return 1e3 * statistics.median(self.mode.managed[self._skip :])


def run(
    policy: Policy,
    settings: Sequence[Setting],
    modes: Sequence[str],
    frames: int,
    compile: str = 'off',
) -> tuple[list[dict], list[dict]]:
    """Measure frames of every way and every k; return a row per k, and rows of `compared`.

    The ways take turns, in reversed order in odd frames, so that a drift of the machine affects
    all. compile: of all engines, which then have one size, so that they share what is compiled.
    """
    room = 0 if compile == 'off' else max(setting.live for setting in settings)
    skip = min(1, frames - 1)  # a single frame is requested where frames take minutes
    runners = {
        (m, s): Timed(make_mode(m, policy, s, compile, room), skip)
        for m in modes
        for s in (settings if m in PER_FRAME else settings[:1])
    }
    done = {}
    for frame in range(skip + frames):
        for key in order(runners, frame):
            done[key] = runners[key].frame(frame)
    rows, ratios = [], []
    for setting in settings:
        keys = {m: (m, setting if m in PER_FRAME else settings[0]) for m in modes}
        ways = {m: runners[key] for m, key in keys.items()}
        point = dict(N=setting.tokens, k=setting.steps, chunk=setting.chunk_size)
        actions = [done[key][0] for key in keys.values()]
        row = point | {f'{m}_ms': way.ms for m, way in ways.items()}
        row['actions_equal'] = all(np.array_equal(actions[0], other) for other in actions[1:])
        if 'batched' in modes:
            row |= figures(policy, setting, ways['batched'], frames)
            row['tokens_s'] = done[keys['batched']][1] * row['frames_s']
            ratios += [point | other for other in compared(ways)]
        if 'copying' in modes:
            row['copying_pct'] = 100 * ways['copying'].managed / row['copying_ms']
        rows.append(row)
    for runner in runners.values():
        runner.mode.close()
    return rows, ratios


def compared(ways: Mapping[str, Timed]) -> list[dict]:
    """Return how many times as long as `batched` the other ways take, each with a 95% interval.

    ratio: of CPU time of the process; None where one of the two is not measured by it. wall: of
    wall time. Both are medians of the frames' own ratios.
    """
    batched = ways['batched']
    rows = []
    for name, way in ways.items():
        if way is batched:
            continue
        alone = way.mode.timer is batched.mode.timer is time.process_time
        own = ratio(way.own, batched.own) if alone else dict.fromkeys(('ratio', 'low', 'high'))
        wall = ratio(way.wall, batched.wall)
        rows.append(
            dict(way=name, **own, wall=wall['ratio'], wall_low=wall['low'], wall_high=wall['high'])
        )
    return rows


def figures(policy: Policy, setting: Setting, batched: Timed, frames: int) -> dict:
    """Return the rates of a batched frame, its predicted time, and the share of the cache."""
    device = policy.model.device.type
    predicted = predict(policy, setting, device, min(frames, 3))
    lost = 1e3 * max(0.0, attention_loss(policy, setting, device))
    return dict(
        streams=setting.live,
        frames_s=1e3 / batched.ms,
        actions_s=1e3 * setting.chunk_size / batched.ms,
        predicted_ms=predicted,
        of_predicted=predicted / batched.ms,
        management_pct=100 * (batched.managed + lost) / batched.ms,
    )
