"""Long answers from compressed prefixes: all codes of a page, in the order of the question.

Source: VL-Cache, section 5.1, with answers that continue long after the compression.

A question names the seven colours of a page of 1,024 patches in a random order. The answer has
each colour and the three digits of its code: 34 tokens, of which 21 are digits, each read from its
own patch (`training.needle.lists`). An answer is decoded greedily, and its score is graded: the
share of the 21 digits that stand at their place behind the name of their colour, whatever else the
answer has.

Settings, fixed before any result:
- Questions: one about each of 120 unseen pages (seed 6_000_029, order of the colours by the number
  of the page), with keep ratios of 10%, 25% and 50%.
- Choices: after the prompt (one copy per frame, `row`); after the question, before the first token
  of the answer (the end of the prefill in the paper); after n = 2 tokens, where the engine chooses
  by default. All are served as by the engine: the token that follows the choice reads the whole.
- Methods: the engine's default; the paper's (`vl_cache`: the text behind the images scores, layers
  share by density), with equal layers, too; `h2o` and `streaming_llm`, which reads no attention,
  with equal layers; random tokens.
- Comparison: paired with the whole cache, question by question. Intervals are bootstrapped over
  pages (95%, 10,000 draws).
- Success: the score is non-inferior within 2 points, that is, the one-sided 95% bound of the
  difference is above -2 points. The test is valid if the whole cache scores at least 90% and
  `streaming_llm` is inferior at 10%.

Physics: the digits are 2% of the prefix, so that a tenth of the cache has room for all of them in
every layer and head. A method fails if its scoring queries do not attend to patches that later
tokens of the answer need. Digits are drawn from ten, so a guess has a score of 10%.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress

from benchmarks.common.command import command
from benchmarks.common.paired import bootstrap
from benchmarks.common.report import show
from benchmarks.compress.cache import Harness
from benchmarks.compress.kept import kept_by
from benchmarks.compress.needle import observed, share, unseen
from benchmarks.compress.tally import MARGIN, WHOLE
from benchmarks.compress.ways import OURS, ROW, STREAM, Way, default
from embodied_kv.demo.sim.scene import COLOURS
from embodied_kv.engine_config import EngineConfig
from embodied_kv.model.policy import Policy
from training.needle.lists import LISTS, load_lists
from training.needle.reading import list_question

PAGES, SEED = 120, 6_000_029
KEEP_RATIOS = (0.1, 0.25, 0.5)
MAX_TOKENS = 48
LEAST_WHOLE = 0.9
AFTER = EngineConfig.compression_after_tokens


@dataclass
class Scores:
    """Scores of the answers to the same questions, in each way and from the whole (None).

    score: share of the digits that are right. places: the same by place of the code in the answer,
    [7]. needles: share of the patches with digits that a way kept. tokens: of the answers from the
    whole.
    """

    score: dict[Way | None, list[float]] = field(default_factory=lambda: defaultdict(list))
    places: dict[Way | None, list[np.ndarray]] = field(default_factory=lambda: defaultdict(list))
    kept: dict[Way | None, list[float]] = field(default_factory=lambda: defaultdict(list))
    needles: dict[Way, list[float]] = field(default_factory=lambda: defaultdict(list))
    tokens: list[int] = field(default_factory=list)


def ways(keep_ratios: Sequence[float] = KEEP_RATIOS) -> list[Way]:
    """Return all ways: for each choice, the methods at each keep ratio."""
    found = []
    for by, after in ((ROW, 0), (STREAM, 0), (STREAM, AFTER)):
        for ratio in keep_ratios:
            ours = default(by, ratio)
            methods = ((ours.method, ours.shares), (OURS, 'own'), (OURS, 'equal'), ('h2o', 'own'))
            methods += (('streaming_llm', 'own'), ('random', 'own'))
            found += [Way(name, ratio, by, shares=s, after=after) for name, s in methods]
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this part."""
    parser.add_argument('--weights', type=Path, default=LISTS, help='folder of the model')
    parser.add_argument('--pages', type=int, default=PAGES, help='one question about each')


def run(args: argparse.Namespace) -> dict:
    """Ask for all lists, print the tables, and return all figures."""
    torch.set_num_threads(1)
    found = collect(load_lists(args.weights), ways(), args.pages)
    made = rows(found)
    result = dict(
        settings=dict(pages=args.pages, seed=SEED, margin=MARGIN),
        tokens_per_answer=float(np.mean(found.tokens)),
        valid=is_valid(made),
        rows=made,
    )
    if not args.json:
        title = f'digits right, %, of answers of {result["tokens_per_answer"]:.1f} tokens'
        note = 'in brackets: one-sided 95% bound of the difference to the whole, points'
        show(f'{title}; the test is {"" if result["valid"] else "not "}valid', table(made), note)
        show('digits right by place of the code, and digits kept, %', by_place(made))
    return result


def collect(policy: Policy, ways: Sequence[Way], pages: int, seed: int = SEED) -> Scores:
    """Ask one question about each of `pages` pages, in all ways; progress goes to stderr."""
    harness, found = Harness(policy, ways, MAX_TOKENS), Scores()
    names = np.array(list(COLOURS))
    with Progress(console=Console(stderr=True)) as bar:
        turns = bar.track(unseen(policy.config, pages, seed), total=pages)
        for number, page in enumerate(turns):
            order = np.random.default_rng((seed, number, 1)).permutation(len(names))
            codes, patches = page.codes[0][order], torch.from_numpy(page.at[0]).flatten()
            recorded = harness.prefill(observed(page, policy.config))
            asked = harness.ask(recorded, list_question(names[order]))
            replies = harness.answers(asked, (None, *ways))
            found.tokens.append(replies[None].tokens)
            for way, reply in replies.items():
                right = digits_right(reply.text, names[order], codes)
                found.score[way].append(float(right.mean()))
                found.places[way].append(right.mean(1))
                found.kept[way].append(reply.kept)
                if way:
                    found.needles[way].append(share(kept_by(way, recorded, asked), patches))
            harness.release(recorded)
    return found


def digits_right(text: str, colours: Sequence[str], codes: np.ndarray) -> np.ndarray:
    """Return which digits of an answer are right, bool [colours, 3].

    codes: int [colours, 3]. The first entry of a colour counts, and of it the first three words.
    """
    entries = [entry.split() for entry in text.split(',')]
    given = {words[0]: words[1:] for words in reversed(entries) if words}
    right = np.zeros(codes.shape, bool)
    for row, colour, code in zip(right, colours, codes, strict=True):
        for place, (word, digit) in enumerate(zip(given.get(colour, ()), code, strict=False)):
            row[place] = word == str(digit)
    return right


def rows(found: Scores) -> list[dict]:
    """Return a row of the whole cache, then one of each way, with its difference to the whole."""
    whole, made = np.array(found.score[None]), []
    for way, scores in found.score.items():
        differs = bootstrap(np.array(scores) - whole)
        made.append(
            asdict(way or WHOLE)
            | dict(
                label=(way or WHOLE).method + _shared(way),
                score=float(np.mean(scores)),
                kept=float(np.mean(found.kept[way])),
                needles=float(np.mean(found.needles[way])) if way else 1.0,
                places=np.mean(found.places[way], 0).tolist(),
                non_inferior=differs['bound'] > -MARGIN,
            )
            | differs
        )
    return made


def _shared(way: Way | None) -> str:
    return ', equal' if way and way.shares == 'equal' else ''


def is_valid(made: Sequence[dict]) -> bool:
    """Return whether the whole cache is good enough and a tenth without attention is inferior."""
    blind = [r for r in made if r['method'] == 'streaming_llm' and r['keep_ratio'] == 0.1]
    return made[0]['score'] >= LEAST_WHOLE and not any(r['non_inferior'] for r in blind)


def choice(row: dict) -> str:
    """Return where a row's tokens are chosen."""
    if row['by'] == ROW:
        return 'after the prompt'
    return f'after {row["after"]} tokens' if row['after'] else 'after the question'


def table(made: Sequence[dict]) -> list[dict]:
    """Return a row per choice and method, with a column per keep ratio and one of the whole."""
    shown: dict[tuple[str, str], dict] = {}
    for r in made[1:]:
        key = choice(r), r['label']
        line = shown.setdefault(key, dict(zip(('chosen', 'method'), key, strict=True)))
        star = '*' * r['non_inferior']
        cell = f'{100 * r["score"]:.1f}{star} ({100 * r["bound"]:.1f})'
        line[f'{r["keep_ratio"]:.0%}'] = cell
    return [line | {'100%': f'{100 * made[0]["score"]:.1f}'} for line in shown.values()]


def by_place(made: Sequence[dict]) -> list[dict]:
    """Return a row per way at a tenth: digits right of each code of the list, and digits kept."""
    return [
        dict(chosen=choice(r) if r['by'] else '', method=r['label'])
        | {f'code {i}': 100 * right for i, right in enumerate(r['places'], 1)}
        | dict(kept=100 * r['needles'])
        for r in made
        if r['keep_ratio'] in (0.1, 1.0)
    ]


main = command('compress.lists', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
