"""Codes read from a page of 1,024 patches, from compressed prefixes.

Source: VL-Cache, sections 3.2 and 5.1, as a needle in a haystack.

A question names a colour. The answer is the three digits of that colour's code, each in a patch of
its own among similar patches (`training.needle.pages`). The prompt is the same for every page, so
only the question determines which patches matter: the text in the prefix, which scores by row,
cannot know them; the question, which scores by stream, can. In `stream` the first digit still
reads the whole prefix, as it is served; in `strict` every digit reads what was kept. Only the
query of the first digit is at the question's end: tokens that come after the choice attend to the
others.

The pages are unseen, and all seven colours of each are asked. An answer is decoded greedily; it is
right if every digit is, and nothing follows them. `needles` is the share, over layers and KV
heads, of the asked code's patches that were kept. `ways` has the methods, budgets and modes;
`tally` has the claim.

Physics: a code is 3 of the prefix's thousand tokens, and all codes are 21. At 1% of the cache, 10
tokens a layer, there is room for one code, but not for all.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from benchmarks.common.command import command
from benchmarks.compress.cache import Harness
from benchmarks.compress.kept import kept_by
from benchmarks.compress.policy import add_policy, load, settings, show
from benchmarks.compress.tally import Tally, pivot, row, verdict
from benchmarks.compress.ways import MODES, P, Way, all_ways, judged
from embodied_kv.config import ModelConfig
from embodied_kv.demo.sim.scene import COLOURS
from embodied_kv.model.policy import Policy
from embodied_kv.types import Observation
from training.needle.pages import DIGITS, Pages, draw_pages
from training.needle.reading import INSTRUCTION, answer, question

PAGES = 290  # of 7 questions each: more than 2,000
SEED = 2_000_003  # of pages; training uses others


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    add_policy(parser, PAGES)
    parser.set_defaults(preset='needle')


@dataclass
class NeedleTally(Tally):
    """A tally with the share of the asked code's patches that each way kept."""

    needles: dict[Way, list[float]] = field(default_factory=lambda: defaultdict(list))


def run(args: argparse.Namespace) -> dict:
    """Read all codes, print the tables, and return all figures."""
    policy, ways = load(args), all_ways(sweep=False)
    found = collect(policy, ways, args.frames)
    rows = [row(found, None) | dict(needles=1.0)]
    rows += [row(found, way) | dict(needles=float(np.mean(found.needles[way]))) for way in ways]
    result = settings(args) | dict(
        questions=len(found.kinds),
        rows=rows,
        verdicts=[verdict(found, way) for way in judged()],
    )
    if not args.json:
        tables = {f'codes read right, %, {by}': pivot(rows, by) for by in MODES}
        tables |= {f'needles kept, %, {by}': needles(rows, by) for by in MODES[1:]}
        show('needle', args, tables | dict(verdicts=result['verdicts']))
    return result


def unseen(config: ModelConfig, count: int, seed: int = SEED) -> Iterator[Pages]:
    """Yield pages one by one, each shown whole.

    Raises ValueError for a model without exactly 1 view, or without a token per patch.
    """
    vision = config.vision
    if len(config.views) != 1 or vision.merge != 1:
        raise ValueError(f'{config.name} sees no page: it needs 1 view, and a token per patch')
    side = vision.image_size // vision.patch_size
    for number in range(count):
        yield draw_pages(np.random.default_rng((seed, number)), 1, side, side * side)


def observed(page: Pages, config: ModelConfig) -> Observation:
    """Return the page as a frame of a robot that does not move."""
    state = np.zeros(config.state_dim, np.float32)
    moment = dict(stamp=time.time_ns(), deadline=time.monotonic(), sequence=0)
    return Observation(tuple(page.images()), state, INSTRUCTION, **moment)


def collect(policy: Policy, ways: Sequence[Way], pages: int, seed: int = SEED) -> NeedleTally:
    """Tally all codes of `pages` pages, in all ways; progress goes to stderr."""
    harness, found = Harness(policy, ways, DIGITS + 1), NeedleTally()
    with Progress(console=Console(stderr=True)) as bar:
        turns = bar.track(unseen(policy.config, pages, seed), total=pages)
        for number, page in enumerate(turns):
            recorded = harness.prefill(observed(page, policy.config))
            patches = torch.from_numpy(page.at[0])
            for colour, code, at in zip(COLOURS, page.codes[0], patches, strict=True):
                asked = harness.ask(recorded, question(colour))
                said = harness.answers(asked, (None, *ways))
                found.frames.append(number)
                found.kinds.append(colour)
                found.tokens.append(said[None].tokens)
                for way, reply in said.items():
                    found.right[way].append(reply.text.strip() == answer(code))
                    found.kept[way].append(reply.kept)
                    if way:
                        found.needles[way].append(share(kept_by(way, recorded, asked), at))
            harness.release(recorded)
    return found


def share(kept: Sequence[Tensor], patches: Tensor) -> float:
    """Return the share of patches [needles] among the kept positions, mean over layers and heads.

    kept: positions [kv_heads, tokens] of each layer.
    """
    return float(
        torch.stack([(layer[..., None] == patches).any(1).float().mean() for layer in kept]).mean()
    )


def needles(rows: Sequence[dict], by: str) -> list[dict]:
    """Return a row per label and a column per keep ratio, %."""
    shown: dict[str, dict] = {}
    for r in rows:
        if (r['by'], r['p']) == (by, P):
            line = shown.setdefault(r['label'], dict(method=r['label']))
            line[f'{r["keep_ratio"]:.0%}'] = 100 * r['needles']
    return list(shown.values())


main = command('compress.needle', __doc__, add_arguments, run)

if __name__ == '__main__':
    main()
