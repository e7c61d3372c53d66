"""Benchmarks with their plans cut down, to run their code on a machine without a card.

Their figures have no meaning. `python -m benchmarks.gpu.dry capsule|compress.speed [--json]` runs
that benchmark on a CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from unittest import mock

from benchmarks.common import reading
from embodied_kv.config import TINY
from embodied_kv.kernels.dense import dense_form
from embodied_kv.runtime.buffer import Buffers
from embodied_kv.runtime.compiled import Compiler, Computation


@contextmanager
def narrow(dry: bool) -> Iterator[None]:
    """Measure the ceilings of the machine by small matrices, which is quick, if `dry`."""
    with mock.patch.object(reading, 'WIDTH', 128) if dry else nullcontext():
        yield


@contextmanager
def uncompiled(dry: bool) -> Iterator[None]:
    """Run what would be compiled as it is, in the form that a compiler gets, if `dry`."""
    if not dry:
        yield
        return

    def uncompiled_form(_: Compiler, name: str, fn: Computation, buffers: Buffers) -> Computation:
        def run() -> None:
            with dense_form():
                fn()

        return run

    with mock.patch.object(Compiler, 'compile', uncompiled_form):
        yield


def capsule(words: Sequence[str]) -> None:
    """Run the capsule benchmark with two prefixes, few contexts, one row."""
    from benchmarks.capsule import measure, planner
    from benchmarks.capsule.__main__ import main

    small = measure.Plan(
        prefixes={64: 1, 128: 1}, context=64, sets=(1, 3), kept=2, rounds=1, actions=1, copied=2,
        rows=('tiny',), sentences=(10, 1000),
    )  # fmt: skip
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(measure.PLANS, quick=small))
        stack.enter_context(mock.patch.object(planner, 'FEWEST_VISITS', 2))
        tiny = ('--preset', 'tiny', '--planner', 'planner_tiny', '--threads', '1')
        main(['--quick', '--device', 'cpu', *tiny, *words])


def compression(words: Sequence[str]) -> None:
    """Run the compression benchmark with one model, short prefixes and answers."""
    from benchmarks.compress.speed import __main__ as speed
    from benchmarks.compress.speed import deferred, models, scene
    from benchmarks.compress.speed.plan import Steps

    steps = {models.SMALL: Steps((500,), (1, 2), 1)}
    plan = replace(speed.QUICK, steps=steps, shared=500, sharing=(2,), batches=(1,), cache=8)
    backbones = dict.fromkeys(models.BACKBONES, TINY.backbone)
    with ExitStack() as stack:
        stack.enter_context(narrow(True))
        stack.enter_context(mock.patch.object(models, 'BACKBONES', backbones))
        stack.enter_context(mock.patch.object(scene, 'ANSWER', deferred.SAID + 1))
        stack.enter_context(mock.patch.object(speed, 'QUICK', plan))
        speed.main(['--quick', '--device', 'cpu', *words])


BENCHES = {'capsule': capsule, 'compress.speed': compression}


if __name__ == '__main__':
    BENCHES[sys.argv[1]](sys.argv[2:])
