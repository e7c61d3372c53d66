"""Small settings for tests of `benchmarks.memory`: few facts, short questions, random planners."""

from dataclasses import replace

import torch
import yaml

from benchmarks.memory import settings as fixed
from benchmarks.memory.ways import open_way, timed

SMALL = dict(
    retrieved=[4, 9],
    world=dict(facts=14, before=6),
    construction=dict(block=3, stable_steps=3, similarity=0.2, encoder='hashing'),
    reuse=dict(share=0.3),
    accuracy=dict(households=1, questions=3, answer_tokens=2),
    speed=dict(questions=1, tokens=1600, segment_tokens=64),
    planner=dict(width=32, layers=4, heads=4, kv_heads=2, head_dim=8, mlp=48, max_tokens=1800),
    ablations=dict(
        retrieved=6, blocks=[1, 5], recompute_ratios=[0.5], households=1, questions=1, timed=1
    ),
    timeline=dict(retrieved=6, repeats=1),
    churn=dict(
        retrieved=6,
        updates=[2, 4],
        loads=[0.1, 0.5],
        questions=1,
        warm=1,
        width=16,
        measured_updates=[2],
        measured_loads=[0.5],
    ),
)


def small_file(folder):
    """Write a complete settings file with the small numbers; its quick run uses them too."""
    data = yaml.safe_load(fixed.PATH.read_text()) | dict(quick=SMALL)
    path = folder / 'small.yaml'
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    return path


def small(folder):
    torch.set_num_threads(1)
    return fixed.load_settings(small_file(folder), quick=True)


def opened(way, folder, settings, **numbers):
    """Return the planning of a way, with the planner that is timed."""
    side = replace(settings.speed, **numbers)
    return open_way(way, timed(settings), folder / way.name, settings, side)
