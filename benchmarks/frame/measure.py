"""The points of a grid, and every way measured at each of them.

Knows the ways and their clock. Does not know tables or files.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from benchmarks.frame.modes import PER_FRAME, Setting, make_mode
from benchmarks.frame.predict import attention_loss, predict
from embodied_kv.config import preset
from embodied_kv.model.policy import Policy

GRID_TOKENS, GRID_STEPS, GRID_CHUNK_SIZES = (10, 30, 100, 200), (1, 5, 10), (10, 15, 50)


def grid(args: argparse.Namespace) -> list[tuple[int, list[Setting]]]:
    """Return groups of one N and one chunk size, each with every k.

    The settings of a group are timed together, frame by frame in turn.

    The grid has every N and k at the preset's chunk size, and one point at the other ones;
    everything with --full; for the real pi05 one point, as its frames take minutes on a CPU.
    """
    native = preset(args.preset).chunk_size
    if args.preset == 'pi05' and not args.full:
        tokens, steps, sizes = args.tokens or [10], args.steps or [5], args.chunk_sizes or [native]
    else:
        tokens, steps = args.tokens or GRID_TOKENS, args.steps or GRID_STEPS
        sizes = args.chunk_sizes or (GRID_CHUNK_SIZES if args.full else [native])
    groups = [(h, [Setting(n, k, h) for k in steps]) for h in sizes for n in tokens]
    if args.preset != 'pi05' and not (args.full or args.chunk_sizes or args.tokens or args.steps):
        groups += [(h, [Setting(30, 5, h)]) for h in GRID_CHUNK_SIZES if h != native]
    return groups


def run(
    policy: Policy, settings: list[Setting], modes: list[str], frames: int, compile: str = 'off'
) -> list[dict]:
    """Measure frames of every way and every k, and return a row per k.

    The ways take turns, so that a drift of the machine affects all. compile: of all engines, which
    then have one size, so that they share what is compiled.
    """
    room = 0 if compile == 'off' else max(setting.live for setting in settings)
    runners = {
        (m, s): make_mode(m, policy, s, compile, room)
        for m in modes
        for s in (settings if m in PER_FRAME else settings[:1])
    }
    times = {key: [] for key in runners}
    done = {}
    warmup = min(1, frames - 1)  # a single frame is requested where frames take minutes
    for frame in range(warmup + frames):
        for key, runner in runners.items():
            began = time.perf_counter()
            done[key] = runner.frame(frame)
            times[key].append(time.perf_counter() - began)
    ms = {key: 1e3 * statistics.median(seconds[warmup:]) for key, seconds in times.items()}
    managed = {
        key: 1e3 * statistics.median(runner.managed[warmup:])
        for key, runner in runners.items()
        if runner.managed
    }
    rows = []
    for setting in settings:
        keys = {m: (m, setting if m in PER_FRAME else settings[0]) for m in modes}
        actions = [done[key][0] for key in keys.values()]
        row = dict(N=setting.tokens, k=setting.steps, chunk=setting.chunk_size)
        row |= {f'{m}_ms': ms[key] for m, key in keys.items()}
        row['actions_equal'] = all(np.array_equal(actions[0], other) for other in actions[1:])
        if 'batched' in modes:
            row |= figures(policy, setting, ms[keys['batched']], managed[keys['batched']], frames)
            row['tokens_s'] = done[keys['batched']][1] * row['frames_s']
        if 'isolated' in modes and 'batched' in modes:
            row['speedup'] = row['isolated_ms'] / row['batched_ms']
        if 'copying' in modes:
            row['copying_pct'] = 100 * managed[keys['copying']] / row['copying_ms']
        rows.append(row)
    for runner in runners.values():
        runner.close()
    return rows


def figures(policy: Policy, setting: Setting, ms: float, managed: float, frames: int) -> dict:
    """Return the figures of a batched frame of `ms` ms, `managed` ms of them for the cache."""
    device = policy.model.device.type
    predicted = predict(policy, setting, device, frames)
    lost = 1e3 * max(0.0, attention_loss(policy, setting, device))
    return dict(
        streams=setting.live,
        frames_s=1e3 / ms,
        actions_s=1e3 * setting.chunk_size / ms,
        predicted_ms=predicted,
        of_predicted=predicted / ms,
        management_pct=100 * (managed + lost) / ms,
    )
