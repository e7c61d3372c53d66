"""Evaluate how often a policy follows instructions and answers correctly, in unseen scenes.

`python -m training.evaluate`: closed loop through the serving engine in simulated time. The robot
keeps moving while a chunk is computed, for as long as that takes here for one robot (rounded up to
the next set-point, so that two runs agree). Noise, scenes and questions depend on the episode
only, so that serving modes are compared on the same ones. Prints tables, and with --json the same
figures as the last line.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch

from training.evaluate import evaluation, report


def show(figures: dict, note: str) -> None:
    """Print the figures as tables."""
    if 'expert' in figures:
        report.show_actions('expert', figures['expert'], note)
    for mode, rows in figures['modes'].items():
        report.show_actions(f'policy, {mode}', rows['actions'], note)
        if rows['text']:
            report.show_text(f'what it said, {mode}', rows['text'])
    if figures['pairs']:
        report.show('the same episodes, served in two ways', figures['pairs'])


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and evaluate."""
    command = evaluation.parser(__doc__)
    args = command.parse_args(arguments)
    torch.set_num_threads(max(1, args.threads))
    try:
        policy = evaluation.load(args.checkpoint)
        evaluation.check(args, policy.config.action_dt)
    except (ValueError, OSError) as error:
        command.exit(2, f'evaluate: {error}\n')
    with evaluation.Evaluation(args, policy) as made:
        figures, latency = made.run(), made.setting.latency * 1e3
    measured = made.measured
    origin = 'given' if measured is None else f'{measured:.1f} ms measured'
    show(
        figures,
        f'control: {args.control}; latency: {latency:.0f} ms ({origin}); wrong object: the same '
        'was done to another; seconds and path: medians of successes',
    )
    if args.json:
        settings = vars(args) | dict(
            checkpoint=args.checkpoint or 'bundled',
            latency_ms=round(latency, 3),
            first_scene=made.cases[0].scene_seed,
        )
        timings = dict(latency_ms=measured, seconds=made.seconds)
        print(json.dumps(dict(evaluate=settings, **figures, timings=timings)))


if __name__ == '__main__':
    main()
