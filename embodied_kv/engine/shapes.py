"""The shapes that an engine captures graphs for, and those that it compiles.

A batch is padded to the next larger shape, and a batch beyond the largest is refused. The most
used shapes of image encoding, prefill, denoising and decoding are compiled; they are few, because
each takes about half a minute to compile.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path

from embodied_kv.config import ModelConfig
from embodied_kv.engine.compression import Decisions
from embodied_kv.engine_config import EngineConfig
from embodied_kv.kernels.dense import dense_form
from embodied_kv.model import prepacked
from embodied_kv.model.policy import Policy
from embodied_kv.model.processing.prompt import RECALL_TOKENS
from embodied_kv.runtime.compiled import Compiler
from embodied_kv.runtime.graph_cache import Shape

LENGTHS = 16  # number of padded lengths of a prefix
ALIGNED = 8  # tokens; lengths of prefixes and queries are multiples of it, except the longest
COMPILED_SHARES = 1 / 2, 5 / 8, 3 / 4, 1  # of the longest prefix; shorter ones are padded to them
COMPILED_QUERY = 16  # tokens of a query
TRACED = 'engine', 'kernels', 'kv', 'model', 'runtime'  # packages whose code is traced


class Kind(str, Enum):
    """What a graph computes."""

    __str__ = str.__str__

    ENCODE_IMAGES = 'encode_images'  # pixels -> tokens
    PREFILL = 'prefill'  # tokens -> a prefix row
    APPEND_STATE = 'append_state'  # states -> the token behind each prefix
    START = 'start'  # noise and positions -> what the first Euler step reads
    DENOISE = 'denoise'  # one Euler step
    EXTEND = 'extend'  # a query or a token per stream -> the next token of each
    DRAW = 'draw'  # logits -> the next token of streams that are sampled
    RECALL = 'recall'  # instructions -> K and V of their recall tokens
    SCORED_PREFILL = 'scored_prefill'  # a prefill with its attention statistics
    SCORED_EXTEND = 'scored_extend'  # an extension with its attention statistics


def doubling(most: int) -> tuple[int, ...]:
    """Return 1, 2, 4 ... and `most`."""
    return (*(1 << i for i in range((most - 1).bit_length())), most)


def multiples(most: int, step: int) -> tuple[int, ...]:
    """Return step, 2 step ... up to the first that holds `most`."""
    return tuple(range(step, most + step, step))


def prefixes(longest: int) -> tuple[int, ...]:
    """Return about `LENGTHS` padded lengths, up to the longest prefix."""
    step = -(-longest // (LENGTHS * ALIGNED)) * ALIGNED
    return (*multiples(longest, step)[:-1], longest)


def queries(longest: int) -> tuple[int, ...]:
    """Return the padded lengths of a query, up to the longest."""
    return (*multiples(longest, ALIGNED)[:-1], longest)


def smallest(sizes: Sequence[int], needed: int, what: str, remedy: str) -> int:
    """Return the smallest of ascending sizes that holds so many.

    Raises ValueError with the remedy if none does.
    """
    for size in sizes:
        if size >= needed:
            return size
    raise ValueError(f'{needed} {what} do not fit into {sizes[-1]}: {remedy}')


def copy_capacity(c: ModelConfig, e: EngineConfig, keep_ratio: float) -> int:
    """Return the tokens in a layer of a compressed copy that compiled code reads.

    It is what every layer of the longest prefix keeps if all keep equally many tokens, or the
    longest prefix with all memory rows; 0 if there are no copies at the start. Longer copies are
    read by eager code.
    """
    if e.compile != 'off' and e.memory_rows:
        return -(-copied_tokens(c, e) // ALIGNED) * ALIGNED
    if e.compile == 'off' or keep_ratio == 1:
        return 0
    needed = math.ceil(keep_ratio * c.prefix_tokens) + c.state_tokens
    return min(-(-needed // ALIGNED) * ALIGNED, c.prefix_tokens)


def copied_tokens(c: ModelConfig, e: EngineConfig) -> int:
    """Return the tokens in a layer of the longest prefix between memory rows and recall tokens."""
    remembered = e.memory_rows * math.ceil(e.memory_keep_ratio * c.prefix_tokens)
    return remembered + c.prefix_tokens + RECALL_TOKENS


def compiled_shapes(c: ModelConfig, e: EngineConfig) -> list[Shape]:
    """Return the shapes to compile, in the order of their captures; none for compile: off."""
    if e.compile == 'off':
        return []
    lengths = prefixes(c.prefix_tokens)
    wanted = {smallest(lengths, math.ceil(s * lengths[-1]), '', '') for s in COMPILED_SHARES}
    queried = {COMPILED_QUERY} & set(queries(e.decode_tokens))
    prefills, extends = [Kind.PREFILL], [Kind.EXTEND]
    decided, most = Decisions.at_start(e), e.max_batch_robots * e.chunk_candidates
    prefills += [Kind.SCORED_PREFILL] if decided.scores_frame else []
    extends += [Kind.SCORED_EXTEND] if decided.is_scored and decided.by_question else []
    return [
        Shape(Kind.ENCODE_IMAGES, len(c.views)),
        *(Shape(kind, 1, tokens) for tokens in sorted(wanted) for kind in prefills),
        *(Shape(Kind.DENOISE, chunks) for chunks in doubling(most)),
        *(Shape(Kind.EXTEND, streams, 1) for streams in doubling(e.streams)),
        *(Shape(kind, 1, tokens) for kind in extends for tokens in queried),
        *(
            Shape(Kind.RECALL, robots, RECALL_TOKENS)
            for robots in doubling(e.max_batch_robots)
            if e.memory_rows
        ),
    ]


def compiler_for(
    policy: Policy, e: EngineConfig, say: Callable[[str], object] | None, defers: bool = False
) -> Compiler | None:
    """Return a compiler of these shapes; None if there are none. defers: see `Compiler`."""
    names = [str(shape) for shape in compiled_shapes(policy.config, e)]
    if not names:
        return None
    return Compiler(
        e.threads,
        say,
        names=names,
        lower=prepacked.lower,
        traced_form=dense_form,
        builds=e.compile == 'now',
        facts=trace_facts(policy, e),
        defers=defers and e.compile == 'auto',
    )


def trace_facts(policy: Policy, e: EngineConfig) -> str:
    """Return all that decides what an engine computes, except the layouts of its tensors."""
    sources = hashlib.blake2b(digest_size=16)
    root = Path(__file__).parents[1]
    for path in sorted(path for folder in TRACED for path in (root / folder).rglob('*.py')):
        sources.update(str(path.relative_to(root)).encode() + path.read_bytes())
    settings = replace(e, compile='off'), policy.config, policy.tokenizer.eos
    return f'{sources.hexdigest()} {settings}'
