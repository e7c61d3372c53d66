"""Groups of segments by the node's encoder or by true links, and the pieces of their prompts.

The judges' tokens have no meaning, so each gets a name or a number, and a segment becomes a
sentence of the kind that a robot's memory holds. Encoder and parameters of grouping are the
defaults of the memory node. Knows sentences and groups. Does not know judges or methods of reuse.

Source: KEEP, section 4.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from embodied_kv.demo.sim.scene import COLOURS, MOVABLE
from embodied_kv.memory.encoder import Encoder
from embodied_kv.memory.groups import Groups
from embodied_kv.memory.prompt import Piece
from embodied_kv.planning.config import PlanningConfig
from training.judge.chains import END, KEYS, POINTER
from training.planner.household import CARRIERS, LIDDED
from training.records.records import ATTRIBUTES, DITTO, VALUE, VALUES

SHAPES = (*MOVABLE, *CARRIERS, *LIDDED, 'mug', 'tray', 'basket')
NAMES = tuple(map(' '.join, product(COLOURS, SHAPES)))
assert len(NAMES) >= KEYS
MEASURES = ('weight', 'size', 'age', 'price')  # of the attributes of a record
assert len(MEASURES) == ATTRIBUTES


def chain_sentence(key: int, value: int) -> str:
    """Return the sentence of a segment of chains."""
    if value >= END:
        return f'{NAMES[key]}: on shelf {value - END}'
    return f'{NAMES[key]}: in the {NAMES[value - POINTER]}'


def record_sentence(name: int, like: int, said: Sequence[int]) -> str:
    """Return the sentence of a record. like: the name of its antecedent, -1 for none.

    said: tokens of its attributes, [4].
    """
    head = f'{NAMES[name]}: ' + (f'like the {NAMES[like]}, ' if like >= 0 else '')
    values = ('the same' if token >= DITTO else str((token - VALUE) % VALUES) for token in said)
    pairs = zip(MEASURES, values, strict=True)
    return head + ', '.join(f'{measure} {value}' for measure, value in pairs)


def encoded_groups(encoder: Encoder, sentences: Sequence[str], tokens: int) -> np.ndarray:
    """Return the first segment of the group of each segment, int64 [S].

    The segments arrive in order, each with that many tokens, and are then left unchanged until all
    groups are static.
    """
    grouping = PlanningConfig().grouping
    groups = Groups(encoder.width, grouping)
    for i, vector in enumerate(encoder.encode(sentences)):
        groups.put(str(i), vector, tokens, step=0)
    groups.advance(grouping.stable_steps)
    return np.array([int(groups.ids(groups.of(str(i)))[0]) for i in range(len(sentences))])


def linked_groups(link: Sequence[int]) -> np.ndarray:
    """Return the first segment of the group of each segment, int64 [S], by true links.

    link: the earlier segment that each one depends on, or -1. A segment joins the group of that
    segment unless the group has as many members as the node allows.
    """
    most, first, members = PlanningConfig().grouping.max_members, [], {}
    for i, earlier in enumerate(link):
        home = first[earlier] if earlier >= 0 and members[first[earlier]] < most else i
        members[home] = members.get(home, 0) + 1
        first.append(home)
    return np.array(first)


def pieces_of(ids: Sequence[Sequence[int]], first: np.ndarray, static: np.ndarray) -> list[Piece]:
    """Return the pieces of a prompt, named by their index among the segments.

    ids: tokens of each segment. first: the first segment of its group, [S]. static: whether that
    group is static, bool [S]: such a group is one unit, at the place of its first segment in the
    prompt. The other segments are units of their own.
    """
    index = np.arange(len(ids))
    seen: dict[str, int] = {}
    pieces = []
    for i in np.lexsort((index, np.where(static, first, index))):
        unit = f'group {first[i]}' if static[i] else ' '.join(map(str, ids[i]))
        pieces.append(Piece(str(i), ids[i], unit, seen.get(unit, 0)))
        seen[unit] = seen.get(unit, 0) + len(ids[i])
    return pieces
