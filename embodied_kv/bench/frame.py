"""One robot frame, done five ways: what sharing and batching one KV cache saves.

Source: OxyGen, section 4.

A frame: one observation, one chunk of H actions, one new language stream of N tokens.
- isolated: a prefill for the action, another for language, then N serial decode steps.
- shared: one prefill, then N serial decode steps.
- batched: one prefill; k decode steps of all live streams (about N / k of them) in one batch.
- copying: as batched, but caches are duplicated, concatenated and split every frame, as OxyGen
does.
- parallel: two processes, one acts and one speaks, each with a model and a prefill of its own.

Physics: a decode step reads all weights whatever the batch, so N serial steps cost N readings of
them and k batched steps k; a prefill is operations. The floor of a frame is max(operations / rate,
bytes / bandwidth) per phase. `parts` predicts the frame from separately timed phases with
contiguous caches; `management` is the share of the frame spent on rows, handles, views, stores of
K and V and token choice, plus what attention over rows in place loses against a contiguous batch.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time

import numpy as np
import torch

from embodied_kv.bench import physics, plots, report
from embodied_kv.bench.frame_modes import MODES, PER_FRAME, Setting, make_mode
from embodied_kv.bench.frame_parts import attention_loss, predict
from embodied_kv.bench.scene import FullPolicy
from embodied_kv.config import preset
from embodied_kv.model.dtype import served
from embodied_kv.model.policy import Policy

GRID_TOKENS, GRID_STEPS, GRID_HORIZONS = (10, 30, 100, 200), (1, 5, 10), (10, 15, 50)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument('--preset', default='pi05_small')
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--frames', type=int, default=3, help='counted frames per point')
    parser.add_argument('--tokens', type=int, nargs='+', help='N')
    parser.add_argument('--steps', type=int, nargs='+', help='k')
    parser.add_argument('--horizons', type=int, nargs='+', help='H')
    parser.add_argument('--modes', nargs='+', choices=MODES)
    parser.add_argument('--full', action='store_true', help='the whole grid and all modes')
    parser.add_argument('--json', action='store_true', help='no table, only the line')
    return parser.parse_args()


def grid(args: argparse.Namespace) -> list[tuple[int, list[Setting]]]:
    """Groups of one N and one H, each with every k.

    The settings of a group are timed together, frame by frame in turn.

    Every N and k at the preset's H, and one point at the other H; everything with --full; for the
    real pi05 one point, as its frames take minutes on a CPU.
    """
    native = preset(args.preset).horizon
    if args.preset == 'pi05' and not args.full:
        tokens, steps, horizons = args.tokens or [10], args.steps or [5], args.horizons or [native]
    else:
        tokens, steps = args.tokens or GRID_TOKENS, args.steps or GRID_STEPS
        horizons = args.horizons or (GRID_HORIZONS if args.full else [native])
    groups = [(h, [Setting(n, k, h) for k in steps]) for h in horizons for n in tokens]
    if args.preset != 'pi05' and not (args.full or args.horizons or args.tokens or args.steps):
        groups += [(h, [Setting(30, 5, h)]) for h in GRID_HORIZONS if h != native]
    return groups


def run(policy: Policy, settings: list[Setting], modes: list[str], frames: int) -> list[dict]:
    """Frames of every way and every k -> a row per k.

    They take turns, so that a drifting machine drifts for all.
    """
    runners = {
        (m, s): make_mode(m, policy, s)
        for m in modes
        for s in (settings if m in PER_FRAME else settings[:1])
    }
    times = {key: [] for key in runners}
    done = {}
    warmup = min(1, frames - 1)  # a single frame is asked for where frames take minutes
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
        row = dict(N=setting.tokens, k=setting.steps, H=setting.horizon)
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
    """Of a batched frame of so many ms, managed ms of which went into the cache."""
    device = policy.model.device.type
    predicted = predict(policy, setting, device, frames)
    lost = 1e3 * max(0.0, attention_loss(policy, setting, device))
    return dict(
        streams=setting.live,
        frames_s=1e3 / ms,
        actions_s=1e3 * setting.horizon / ms,
        predicted_ms=predicted,
        of_predicted=predicted / ms,
        management_pct=100 * (managed + lost) / ms,
    )


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    modes = args.modes or [
        m for m in MODES if m != 'parallel' or args.full or args.device == 'cuda'
    ]
    c = served(preset(args.preset), args.device)
    rows: list[dict] = []
    policy = None
    for horizon, settings in grid(args):
        if policy is None or horizon != policy.config.horizon:
            config = dataclasses.replace(c, horizon=horizon)
            policy = FullPolicy.random(config, device=args.device)
        with torch.inference_mode():
            rows += run(policy, settings, modes, args.frames)
        print(f'N={settings[0].tokens} H={horizon} done', file=sys.stderr, flush=True)
    if not args.json:
        title = f'frame, {args.preset}, {args.device}, {c.dtype}'
        report.show(title, rows, 'ms: median frame; rows of the steady state were pre-filled')
        plots.frame(rows)
    report.save(
        'frame',
        dict(
            bench='frame',
            preset=args.preset,
            prefilled_rows=True,
            machine=report.machine(args.device),
            ceilings=report.ceilings(getattr(torch, c.dtype), args.device),
            prefill_floor=physics.prefill(c, c.prefix_tokens, len(c.views)),
            rows=rows,
        ),
    )


if __name__ == '__main__':
    main()
