"""Helpers of the group tests; each letter has its own direction in the embedding."""

import numpy as np

from embodied_kv.memory.groups import Grouping, Groups

WIDTH = 8


def towards(letter, tilt=0.0):
    """Return a letter's direction; a to h are orthogonal, and a tilt turns it to the next."""
    vector = np.zeros(WIDTH, np.float32)
    axis = ord(letter) - ord('a')
    vector[axis], vector[(axis + 1) % WIDTH] = np.cos(tilt), np.sin(tilt)
    return vector


def filled(*ids, tokens=10, **grouping):
    """Return groups of segments whose meaning is the first letter of their id, added at step 0."""
    groups = Groups(WIDTH, Grouping(**grouping))
    for id in ids:
        groups.put(id, towards(id[0]), tokens, 0)
    return groups


def members(groups):
    return sorted(groups.ids(group) for group in groups)


def advance(groups, steps):
    """Advance one step at a time and return all transitions."""
    made = []
    for step in range(groups.step + 1, groups.step + 1 + steps):
        made += groups.advance(step)
    return made
