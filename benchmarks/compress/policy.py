"""The policy whose cache is compressed: its command line, and how its figures are printed."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

import torch

from benchmarks.common import report
from benchmarks.common.weights import weights_of
from embodied_kv.config import preset
from embodied_kv.model.checkpoints.open import open_checkpoint
from embodied_kv.model.dtype import served
from embodied_kv.model.policy import Policy


def add_policy(parser: argparse.ArgumentParser, frames: int) -> None:
    """Add --preset, --checkpoint, --frames and --threads; frames: the default."""
    parser.add_argument('--preset', default='tabletop')
    parser.add_argument(
        '--checkpoint', help="file or folder, or 'random'; else the bundled one of the preset"
    )
    parser.add_argument('--frames', type=int, default=frames)
    parser.add_argument('--threads', type=int, default=1)


def load(args: argparse.Namespace) -> Policy:
    """Load the policy.

    Raises ValueError if there is none, if it does not have the preset's dimensions, or if --frames
    is below 1.
    """
    torch.set_num_threads(args.threads)
    if args.frames < 1:
        raise ValueError('--frames is at least 1')
    config = served(preset(args.preset), 'cpu')
    if args.checkpoint == 'random':
        return Policy.random(config)
    checkpoint = open_checkpoint(args.checkpoint or weights_of(args.preset), config=config)
    return checkpoint.load(dtype=config.dtype)


def settings(args: argparse.Namespace) -> dict:
    """Return the settings, with which a result begins."""
    options = {name: value for name, value in vars(args).items() if name != 'json'}
    return dict(settings=options)


def show(part: str, args: argparse.Namespace, tables: Mapping[str, Sequence[dict]]) -> None:
    """Print the tables that have rows."""
    for title, rows in tables.items():
        if rows:
            report.show(f'{part}, {args.preset}: {title}', rows)
