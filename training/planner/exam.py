"""`python -m training.planner.exam`: answers of a planner with the whole memory computed.

The households are unseen, of every size; each question is answered greedily behind a plain causal
prefill of the whole memory. The only KV that is reused is that of the memory by its questions,
which changes nothing: a causal prefill does not see later tokens.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from embodied_kv.model.planner_checkpoint import LoadedPlanner, bundled_planner, load_planner
from embodied_kv.model.planner_prompts import HEAD, question_words, segment_words
from training.common import command
from training.common.views import dense_attention, seen
from training.planner.household import draw_household
from training.planner.household_questions import KINDS, answer, draw_question
from training.planner.lessons import in_some_order

UNSEEN = 2_000_003  # seed of households that training uses neither to learn nor to validate
LONGEST = 16  # tokens of an answer


@dataclass(frozen=True)
class Answered:
    """segments: of the household. truth, said: the correct answer, and that of the planner."""

    segments: int
    kind: str
    hops: int
    question: str
    truth: str
    said: str

    @property
    def exact(self) -> bool:
        return self.truth == self.said


class GrowingCache:
    """K and V of one sequence, in every layer; each token sees those before it, and itself."""

    def __init__(self) -> None:
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def cut(self, length: int) -> None:
        """Drop all tokens from `length` on."""
        self._layers = {i: (k[:, :length], v[:, :length]) for i, (k, v) in self._layers.items()}

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if layer in self._layers:
            past = self._layers[layer]
            k, v = (torch.cat(pair, dim=1) for pair in zip(past, (k, v), strict=True))
        self._layers[layer] = k, v
        tokens, length = q.shape[1], k.shape[1]
        mask = torch.ones(tokens, length, dtype=torch.bool).tril(length - tokens)
        return dense_attention(q, k, v, seen(mask)[None])


class Reader:
    """A planner with a prefilled memory that answers questions."""

    @torch.inference_mode()
    def __init__(self, planner: LoadedPlanner, texts: Sequence[str]) -> None:
        """Prefill the memory. texts: of the segments, in the order of the prompt."""
        self._planner, self._cache = planner, GrowingCache()
        encode = planner.tokenizer.encode
        ids = encode(HEAD, bos=True)
        for text in texts:
            ids += encode(segment_words(text))
        self.length = len(ids)
        self._read(ids, 0)

    def _read(self, ids: list[int], start: int) -> int:
        """Compute tokens at `start` and return the most probable next token."""
        model = self._planner.model
        places = torch.arange(start, start + len(ids))[None]
        hidden = model(torch.tensor([ids]), places, self._cache)
        return int(model.logits(hidden[:, -1]).argmax())

    @torch.inference_mode()
    def ask(self, question: str) -> str:
        """Return the greedy answer, and drop its tokens from the cache."""
        tokenizer, said = self._planner.tokenizer, []
        ids = tokenizer.encode(question_words(question))
        token, length = self._read(ids, self.length), self.length + len(ids)
        while token != tokenizer.eos and len(said) < LONGEST:
            said.append(token)
            token, length = self._read([token], length), length + 1
        self._cache.cut(self.length)
        return tokenizer.decode(said).strip()


def examine(
    planner: LoadedPlanner, households: int, questions: int, segments: tuple[int, int], seed: int
) -> Iterator[Answered]:
    """Yield answers to `questions` questions of each kind on each of `households` households.

    segments: fewest and most segments of a household.
    """
    for i, size in enumerate(np.linspace(*segments, households).round().astype(int).tolist()):
        rng = np.random.default_rng((UNSEEN, seed, i))
        household = draw_household(rng, size)
        reader = Reader(planner, [fact.text for fact in in_some_order(rng, household)])
        for kind in KINDS * questions:
            question = draw_question(rng, household, kind)
            truth = answer(question, household)
            said = reader.ask(question.text)
            yield Answered(size, question.kind, truth.hops, question.text, truth.text, said)


def report(found: Sequence[Answered], edges: Sequence[int]) -> tuple[str, dict[str, float]]:
    """Return a table of exact answers by kind and hops, and by size; and its totals, in percent.

    edges: sizes at which a column ends, ascending.
    """
    cells = defaultdict(list)
    for one in found:
        column = f'<= {next(edge for edge in edges if one.segments <= edge)}'
        for row in (f'{one.kind} {one.hops}', 'all'):
            cells[row, column].append(one.exact)
            cells[row, 'all'].append(one.exact)
    columns = [*(f'<= {edge}' for edge in edges), 'all']
    rows = [*sorted({row for row, _ in cells} - {'all'}), 'all']
    lines = [' '.join(['segments  ', *(f'{column:>6}' for column in columns), '     n'])]
    share = {key: 100 * float(np.mean(values)) for key, values in cells.items()}
    for row in rows:
        shown = (f'{share[row, c]:6.1f}' if (row, c) in share else '     -' for c in columns)
        lines.append(' '.join([f'{row:10}', *shown, f'{len(cells[row, "all"]):6d}']))
    return '\n'.join(lines), {row: round(share[row, 'all'], 2) for row in rows}


def main() -> None:
    """Parse the command line, ask, and print a table, then a JSON line."""
    parser = command.parser('planner.exam', __doc__)
    parser.add_argument('--planner', type=Path, help='its folder; without it, the bundled one')
    parser.add_argument('--households', type=int, default=72, help='of all sizes')
    parser.add_argument('--questions', type=int, default=4, help='of each kind and household')
    parser.add_argument('--segments', type=int, nargs=2, default=(10, 80), help='fewest and most')
    parser.add_argument('--seed', type=int, default=0, help='of households and questions')
    parser.add_argument('--wrong', type=int, default=0, help='wrong answers to show')
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    try:
        planner = load_planner(arguments.planner or bundled_planner('planner_missions'))
        found = list(
            examine(
                planner,
                arguments.households,
                arguments.questions,
                tuple(arguments.segments),
                arguments.seed,
            )
        )
    except ValueError as error:
        parser.exit(2, f'{parser.prog}: {error}\n')
    fewest, most = arguments.segments
    edges = sorted({*(edge for edge in (20, 40, 60) if fewest <= edge < most), most})
    table, cells = report(found, edges)
    print(table)
    for one in [one for one in found if not one.exact][: arguments.wrong]:
        print(f'{one.segments} segments: {one.question} {one.said!r}, not {one.truth!r}')
    seconds = round(time.perf_counter() - began, 1)
    print(json.dumps({'exact_percent': cells, 'questions': len(found), 'seconds': seconds}))


if __name__ == '__main__':
    main()
