"""Cost of a batch of robots on this engine, written as the profile by which a fleet places work.

Observations of 1, 2, 4 ... robots go through prefill and all Euler steps, as the fleet's server
sends them. The frames are black and have the longest prompt, so no real batch takes longer.

Physics: a batch reads every weight once, whatever its size, and computes for each robot. While the
reading of weights dominates (small models on a GPU, any model at batch 1), a larger batch is
nearly free; from the size on where arithmetic dominates, it takes its share of time. There the
profile saturates: the next size serves less than 15% more robots a second. On a CPU that is soon.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.common import report
from benchmarks.common.command import command
from embodied_kv.config import preset
from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig
from embodied_kv.fleet import profile
from embodied_kv.fleet.profile import Profile
from embodied_kv.model.dtype import served
from embodied_kv.model.policy import Policy
from embodied_kv.serving.batch import batch_seconds, profile_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument('--preset', default='tabletop', help='dimensions of the model')
    parser.add_argument('--robots', type=int, default=8, help='the largest batch')
    parser.add_argument('--steps', type=int, default=10, help='Euler steps of a chunk')
    parser.add_argument('--repeats', type=int, default=15, help='of each size')
    parser.add_argument('--device', default='cpu', help='cpu or cuda')
    parser.add_argument('--threads', type=int, default=1, help='of torch')
    parser.add_argument('--out', type=Path, help='the YAML file; left out: only shown')


def measure(args: argparse.Namespace) -> Profile:
    """Return the profile of an engine with random weights, whose values do not affect times."""
    torch.set_num_threads(args.threads)
    model = served(preset(args.preset), args.device)
    config = EngineConfig(
        max_batch_robots=args.robots,
        rows=2 * args.robots + 2,
        streams=1,
        compressed_rows=0,
        euler_steps=args.steps,
        min_euler_steps=min(4, args.steps),
        device=args.device,
    )
    engine = Engine(Policy.random(model, device=args.device), config)
    return profile_of(model, batch_seconds(engine, args.repeats))


def rows(found: Profile) -> list[dict]:
    """Return a row per batch size."""
    return [
        dict(robots=n, ms=s * 1e3, robots_per_second=n / s, saturation=n == found.saturation)
        for n, s in zip(found.sizes, found.seconds, strict=True)
    ]


def run(args: argparse.Namespace) -> dict:
    """Measure, write the profile, print the table, and return all figures."""
    found = measure(args)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        profile.write(found, args.out)
    if not args.json:
        report.show(f'fleet.profile: a batch on {found.engine}', rows(found))
    return dict(engine=found.engine, batches=rows(found))


main = command('fleet.profile', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
