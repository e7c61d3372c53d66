"""`python -m training.planner.mission_exam`: whole missions, planned step by step.

Tables and missions are unseen. Each step is asked for behind a plain causal prefill of the whole
current memory, and executed by a simulated executor that fails at times. A mission is right if
every answer up to its end is that of the rules; the first other answer ends it. In addition the
planner is asked about missions whose first part has an unknown word. No KV is reused.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from embodied_kv.model.planner_checkpoint import bundled_planner, load_planner
from training.common import command
from training.planner.exam import UNSEEN, Reader
from training.planner.household import any_of
from training.planner.mission_cases import (
    UNKNOWN,
    case_of,
    garble,
    in_some_order,
    question_of,
)
from training.planner.mission_draws import RECORDS, draw_mission, draw_part, draw_table
from training.planner.mission_oracle import Progress, begin
from training.planner.mission_phrases import say_mission
from training.planner.mission_rollout import Turn, roll_out
from training.planner.missions import KINDS, Mission, Part
from training.planner.simulated_table import SimulatedTable

SUCCESS = 0.8  # probability that a step succeeds
REFUSED = f'impossible: {UNKNOWN}'


@dataclass(frozen=True)
class Rolled:
    """A planned mission. words: its text. records: number at its start. turns: to its end."""

    mission: Mission
    words: str
    records: int
    turns: tuple[Turn, ...]

    @property
    def right(self) -> bool:
        return all(turn.said == turn.right.text for turn in self.turns)


Ask = Callable[[Sequence[str], str], str]  # segments and a question -> the answer


def plan_missions(
    ask: Ask | None, missions: int, records: tuple[int, int], seed: int
) -> Iterator[Rolled]:
    """Plan missions; the kinds of their first parts rotate.

    ask: None for the rules themselves. records: fewest and most. The missions do not depend on
    `ask`.
    """
    for i in range(missions):
        rng, order = (np.random.default_rng((UNSEEN, seed, i, which)) for which in (0, 1))
        count = int(rng.integers(*records, endpoint=True))
        table = draw_table(rng, count)
        mission = draw_mission(rng, table, kind=KINDS[i % len(KINDS)])
        words = ''.join(say_mission(mission, rng))
        plan = ask and partial(_plan, ask, words, order)
        yield Rolled(mission, words, count, tuple(roll_out(mission, table, rng, SUCCESS, plan)))


def ask_unknown_words(
    ask: Ask, count: int, records: tuple[int, int], seed: int
) -> Iterator[tuple[str, str]]:
    """Yield question and answer for `count` missions with a word without meaning."""
    for i in range(count):
        rng = np.random.default_rng((UNSEEN, seed, i, 2))
        table = draw_table(rng, int(rng.integers(*records, endpoint=True)))
        part = draw_part(rng, table, any_of(rng, ('next', 'push', 'back')))
        case = garble(rng, case_of(rng, table, Mission((part,)), begin(table)))
        texts = [fact.text for fact in in_some_order(rng, table.facts())]
        yield case.question, ask(texts, case.question)


def _plan(
    ask: Ask, words: str, order: np.random.Generator, table: SimulatedTable, progress: Progress
) -> str:
    texts = [fact.text for fact in in_some_order(order, table.facts())]
    return ask(texts, question_of(words, progress))


def report(
    found: Sequence[Rolled], unknown: Sequence[tuple[str, str]] = ()
) -> tuple[str, dict[str, float]]:
    """Return a table of answers by what is asked, and of whole missions; and its cells in percent.

    unknown: result of `ask_unknown_words`.
    """
    steps, wholes = defaultdict(list), defaultdict(list)
    for _, said in unknown:
        steps['unknown words'].append(said == REFUSED)
    for one in found:
        for turn in one.turns:
            exact = turn.said == turn.right.text
            rows = [f'answer {turn.right.kind}', 'all answers']
            if turn.progress.part < len(one.mission.parts):
                part = one.mission.parts[turn.progress.part]
                rows += [f'part {part.kind}', *_meant_by(part)]
            if turn.progress.tail:
                rows.append('after a failure')
            for row in rows:
                steps[row].append(exact)
        wholes[f'missions of {len(one.mission.parts)}'].append(one.right)
        wholes[f'missions up to {10 * -(-one.records // 10)} records'].append(one.right)
        wholes['all missions'].append(one.right)
    rows = {**dict(sorted(steps.items())), **dict(sorted(wholes.items()))}
    cells = {row: round(100 * float(np.mean(right)), 2) for row, right in rows.items()}
    lines = [f'{row:28} {cells[row]:6.1f} {len(right):6d}' for row, right in rows.items()]
    return '\n'.join([f'{"":28} {"right":>6} {"n":>6}', *lines]), cells


def _meant_by(part: Part) -> Iterator[str]:
    """Yield rows of a part, by how its words select things."""
    which = part.which
    if which.word:
        yield 'by colour or shape'
    if which.place:
        yield 'by where they are'
    if part.excludes:
        yield 'by what is not meant'


def main() -> None:
    """Parse the command line, plan, and print a table, then a JSON line."""
    parser = command.parser('planner.mission_exam', __doc__)
    parser.add_argument('--planner', type=Path, help='its folder; without it, the bundled one')
    parser.add_argument('--missions', type=int, default=210, help='how many')
    parser.add_argument('--records', type=int, nargs=2, default=RECORDS, help='fewest and most')
    parser.add_argument('--seed', type=int, default=0, help='of tables and missions')
    parser.add_argument('--wrong', type=int, default=0, help='wrong answers to show')
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    try:
        planner = load_planner(arguments.planner or bundled_planner('planner_missions'))
        drawn = arguments.missions, tuple(arguments.records), arguments.seed

        def ask(texts: Sequence[str], question: str) -> str:
            return Reader(planner, texts).ask(question)

        found, unknown = list(plan_missions(ask, *drawn)), list(ask_unknown_words(ask, *drawn))
    except ValueError as error:
        parser.exit(2, f'{parser.prog}: {error}\n')
    table, cells = report(found, unknown)
    print(table)
    for one in [one for one in found if not one.right][: arguments.wrong]:
        turn = one.turns[-1]
        print(f'{question_of(one.words, turn.progress)}: {turn.said!r}, not {turn.right.text!r}')
    seconds = round(time.perf_counter() - began, 1)
    print(json.dumps({'right_percent': cells, 'missions': len(found), 'seconds': seconds}))


if __name__ == '__main__':
    main()
