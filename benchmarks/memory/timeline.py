"""Loads during computation, by load policy: figure 8, measured on this machine and predicted.

One question, with KEEP, on the same memory under each policy: separate loads between layers,
next_layer during the layer before, balanced during any layer. It is measured twice: with stored KV
in host memory, and with KV read at every load from files, which are in RAM if there is room.
`memory.pipeline` predicts the timelines from this machine's costs, measured undisturbed with the
policy separate, and from given costs. Which units each layer drops is taken from this plan.
`waiting` is the time for which computation waits for loads until the last layer begins.

Physics: no policy ends before its computation, nor before its loads; separate takes their sum.
Where computation and loads share the cores, loading during computation is no faster than between
layers.

Source: KEEP, section 4.3, figures 7 and 8.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.common import report
from benchmarks.common.command import command
from benchmarks.memory import plots
from benchmarks.memory.asking import Asked, Reply, ram, waiting
from benchmarks.memory.load_policies import POLICIES, SEPARATE, PolicyQueue
from benchmarks.memory.pipeline import simulate
from benchmarks.memory.settings import Settings, load_settings
from benchmarks.memory.spans import COMPUTE, LOAD, Timeline
from benchmarks.memory.story import draw_story
from benchmarks.memory.trace import add_common as add_arguments
from benchmarks.memory.trace import begin
from benchmarks.memory.ways import KEEP, Way, open_way, timed

SOURCES = {'host memory': None, 'files': 0}  # MiB of loaded layers; None: from the settings


@dataclass(frozen=True)
class Job:
    """The work of one plan.

    computed: tokens of each layer. tokens: of each unit. drops: the units that each layer drops.
    """

    computed: tuple[int, ...]
    tokens: Mapping[str, int]
    drops: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, reply: Reply, tokens: Mapping[str, int]) -> Job:
        """Return the job of a reply. The first layer that a unit is loaded for drops it."""
        first: dict[str, int] = {}
        for span in reply.plan.timeline.lane(LOAD):
            first[span.unit] = min(span.layer, first.get(span.unit, span.layer))
        layers = range(len(reply.plan.computed))
        drops = tuple(tuple(u for u, at in first.items() if at == layer) for layer in layers)
        order = {id: tokens[id] for id in reply.plan.segments}
        return cls(reply.plan.computed, order, drops)

    def foretold(self, compute: Sequence[float], load: Mapping[str, float]) -> dict[str, Timeline]:
        """Predict the timeline by policy. compute: s of each layer; load: s of each unit."""
        found = {}
        for policy in POLICIES:
            pending = PolicyQueue(len(compute), list(self.tokens), policy)
            found[policy] = simulate(pending, compute, lambda unit, _: load[unit], self.drops)
        return found


def run(args: argparse.Namespace) -> dict:
    """Measure, predict, print the table, draw, and return all figures."""
    result, settings = begin(args), load_settings(args.settings, args.quick)
    drawn: dict[str, dict[str, Timeline]] = {}
    for source, mib in SOURCES.items():
        job, drawn[source] = measure(settings, mib)
        drawn[f'{source}, foretold'] = job.foretold(*costs(drawn[source][SEPARATE], job))
    for name, cost in settings.timeline.costs.items():
        compute = [1e-6 * cost['compute'] * tokens for tokens in job.computed]
        load = {unit: 1e-6 * cost['load'] * tokens for unit, tokens in job.tokens.items()}
        drawn[name] = job.foretold(compute, load)
    result['load'].append(os.getloadavg()[0])
    result['rows'] = list(rows(drawn))
    result['computed'] = job.computed
    if not args.json:
        c, count = settings.planner, settings.timeline.retrieved
        size = f'{c.width} wide, {c.layers} layers, random weights'
        note = f'{count} segments asked for; planner {size}; separate_takes_x: its time by this'
        report.show('loads beside computation', result['rows'], note)
        plots.timelines(drawn)
    return result


def measure(settings: Settings, mib: int | None) -> tuple[Job, dict[str, Timeline]]:
    """Ask one question under each policy in turn, and return its job and the median runs.

    The first round does not count.
    """
    side, count = settings.speed, settings.timeline.retrieved
    story, planner = draw_story(settings.world, (settings.seed, 0), 1), timed(settings)
    (moment,) = story.moments
    with ExitStack() as stack:
        folder, asked = Path(stack.enter_context(TemporaryDirectory(dir=ram()))), {}
        for policy in POLICIES:
            numbers = dict(load_policy=policy) | ({} if mib is None else dict(host_cache_mib=mib))
            way = Way(policy, KEEP, numbers=numbers)
            planning = stack.enter_context(open_way(way, planner, folder / policy, settings, side))
            asked[policy] = one = Asked(way, planning)
            for facts in (story.first, *story.before, *moment.updates):
                one.learn(facts, side)
            one.settle()
        found: dict[str, list[Reply]] = {policy: [] for policy in POLICIES}
        for number in range(1 + settings.timeline.repeats):
            for policy in POLICIES if number % 2 else POLICIES[::-1]:
                found[policy].append(asked[policy].ask(moment, count, 0, number))
        groups = asked[SEPARATE].planning.memory.groups
        tokens = {id: groups.tokens(id) for id in found[SEPARATE][0].plan.segments}
        job = Job.of(found[SEPARATE][0], tokens)
    return job, {policy: _median(replies[1:]) for policy, replies in found.items()}


def costs(separate: Timeline, job: Job) -> tuple[list[float], dict[str, float]]:
    """Return the seconds of each layer, and of a load of each unit as a mean over the layers."""
    compute = [span.end - span.start for span in separate.lane(COMPUTE)]
    loads: dict[str, list[float]] = {unit: [] for unit in job.tokens}
    for span in separate.lane(LOAD):
        loads[span.unit].append(span.end - span.start)
    return compute, {unit: statistics.fmean(times or [0.0]) for unit, times in loads.items()}


def rows(drawn: Mapping[str, Mapping[str, Timeline]]) -> Iterator[dict]:
    """Yield a row for each source and policy."""
    for source, by_policy in drawn.items():
        for policy, timeline in by_policy.items():
            yield dict(
                source=source,
                policy=policy,
                ms=1e3 * timeline.end,
                compute_ms=1e3 * timeline.busy(COMPUTE),
                load_ms=1e3 * timeline.busy(LOAD),
                waiting_ms=1e3 * waiting(timeline),
                separate_takes_x=by_policy[SEPARATE].end / timeline.end,
            )


def _median(replies: Sequence[Reply]) -> Timeline:
    """Return the timeline with the median end."""
    ordered = sorted((reply.plan.timeline for reply in replies), key=lambda t: t.end)
    return ordered[len(ordered) // 2]


main = command('memory.timeline', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
