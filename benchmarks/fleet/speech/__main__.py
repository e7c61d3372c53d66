"""A fleet with language: its cost for actions, and the words it generates, in virtual time.

Closed fleets of the tabletop policy, served as in `fleet.serving`: the fleet without language
(mute), the same one with language (speaking), and, for words, robots with an engine of their own
each at equal total cores (each engine so many times slower as there are robots). The contract's
prompts begin with every round, within two streams of a robot, so there is always language work. A
chunk takes the time of a measured profile, a query and a decode step their measured times; the
engine is taken so many times faster that the fleet asks for the given share of its peak. Language
work begins by the fleet's own rule: while no request waits, and if it ends before one is expected.

Dispatchers serve at once, or hold a request for a fuller batch (`max_queue_delay`): then batches
cost less for each request, which leaves more idle time, but every request waits longer.

Physics: a step of decoding reads the weights once for all streams, so a batch over robots
generates more words in the same idle time than many engines, each with its own weights to read;
that bounds the gain to seconds(1) n / seconds(n) of a step, less what each query costs alone. Idle
time is where no request waits. A dispatcher that keeps its engine busy with small batches leaves
little of it, long before the peak: with batches of one from seconds(1) x requests per second = 1
on. An unexpected request waits for one unit of language work at most.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.common import report
from benchmarks.common.command import BenchmarkError, command
from benchmarks.fleet.serving import measure as serving
from benchmarks.fleet.speech import figures, measure
from benchmarks.fleet.speech.measure import DELAYS, LOADS, ROBOTS, Plan
from embodied_kv.fleet import profile
from training.evaluate import evaluation

QUICK = Plan(robots=(4,), loads=(0.35,), delays=(0.0,), tasks=4, alone=1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument('--robots', type=int, nargs='+', help=f'fleets; left out: {ROBOTS}')
    parser.add_argument('--loads', type=float, nargs='+', help=f'of the peak; left out: {LOADS}')
    parser.add_argument('--delays', type=float, nargs='+', help=f's; left out: {DELAYS}')
    parser.add_argument('--quick', action='store_true', help='one small fleet, a task each')
    parser.add_argument('--checkpoint', default='', help="file or folder, or 'random'")
    parser.add_argument('--profile', type=Path, help='of a chunk; else it is measured')
    parser.add_argument('--words', type=Path, help='costs of words; else they are measured')


def run(args: argparse.Namespace) -> dict:
    """Run every fleet, print the tables, and return all figures."""
    given = QUICK if args.quick else Plan()
    robots, loads = tuple(args.robots or given.robots), tuple(args.loads or given.loads)
    if min(robots) < 1 or not 0 < min(loads) <= max(loads) < 1:
        raise BenchmarkError('--robots are at least 1, --loads between 0 and 1')
    delays = given.delays if args.delays is None else tuple(args.delays)
    if not 0 <= min(delays) <= max(delays) <= 1:
        raise BenchmarkError('--delays are between 0 and 1 s')
    plan = replace(given, robots=robots, loads=loads, delays=delays)
    torch.set_num_threads(1)
    report.OUT.mkdir(parents=True, exist_ok=True)
    try:
        policy = evaluation.load(args.checkpoint or None)
        engine = serving.read(args.profile) if args.profile else serving.measured(policy)
        words = (
            measure.read_words(args.words)
            if args.words
            else measure.word_seconds(policy, plan.most)
        )
    except (ValueError, OSError) as error:
        raise BenchmarkError(str(error)) from error
    profile.write(engine, report.OUT / 'fleet_speech_profile.yaml')
    measure.write_words(words, report.OUT / 'fleet_speech_words.yaml')
    runs = measure.measure(plan, policy, engine, words, args.json)
    made = figures.rows(runs)
    if not args.json:
        figures.show(made)
    return dict(
        quick=args.quick,
        checkpoint=args.checkpoint or 'bundled',
        engine=dict(sizes=engine.sizes, seconds=engine.seconds),
        words=words,
        streams=measure.STREAMS,
        prompt_interval_frames=measure.PROMPT_INTERVAL,
        rows=made,
    )


main = command('fleet.speech', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
