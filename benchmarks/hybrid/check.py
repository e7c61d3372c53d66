"""Check that saved tensors and facts are the whole state of one session at one boundary.

The check changes nothing, so a refusal leaves the live state as it was.

Source: Execution-State Capsules, section 5: keys and values are positional, but the fold is a
function of the whole prefix; restoring the one without the other's prefix is wrong, not slow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
from torch import Tensor

from benchmarks.hybrid.state import HybridState

Mark = dict[str, int | str]  # length: tokens folded. digest: of these tokens
NEEDED, OPTIONAL = ('kv', 'fold', 'head'), 'checkpoint'  # parts


def marks(tokens: Tensor, aligned: int | None) -> dict[str, Mark]:
    """Return the facts of all parts after tokens int64 [length]; each token is read once.

    aligned: tokens that the checkpoint has folded; None where there is no checkpoint.
    """
    data = np.ascontiguousarray(tokens.cpu().numpy(), '<i8')
    digest = hashlib.sha256(data[: aligned or 0])
    checkpoint = {} if aligned is None else {OPTIONAL: _mark(aligned, digest)}
    digest.update(data[aligned or 0 :])
    return dict.fromkeys(NEEDED, _mark(len(data), digest)) | checkpoint


def _mark(length: int, digest: hashlib._Hash) -> Mark:
    return dict(length=length, digest=digest.hexdigest()[:32])


def check(state: Mapping[str, Tensor], facts: Mapping[str, Mark], live: HybridState) -> None:
    """Raise ValueError with the reason if `state` cannot become `live`."""
    _check_names(state, live)
    _check_facts(state, facts, live)
    valid = live.valid(facts['kv']['length'])
    for name, tensor in state.items():
        want = valid[name]
        if (tensor.shape, tensor.dtype) != (want.shape, want.dtype):
            raise ValueError(
                f'{name} is {tensor.dtype} {list(tensor.shape)}, '
                f'not {want.dtype} {list(want.shape)}'
            )
    _check_tokens(state, facts)


def _check_names(state: Mapping[str, Tensor], live: HybridState) -> None:
    some = any(name in state for name in live.names(OPTIONAL))
    parts = (*NEEDED, OPTIONAL) if some else NEEDED
    names = [name for part in parts for name in live.names(part)]
    if missing := [name for name in names if name not in state]:
        raise ValueError(
            f'a partial state: {_some(missing)} missing; '
            'keys and values alone do not continue a recurrent fold'
        )
    if unknown := sorted(state.keys() - set(names)):
        raise ValueError(f'no buffer of this planner: {_some(unknown)}')


def _check_facts(
    state: Mapping[str, Tensor], facts: Mapping[str, Mark], live: HybridState
) -> None:
    """Check that every part is there, at a boundary that this planner supports."""
    if missing := {name.split('/')[0] for name in state} - facts.keys():
        raise ValueError(f'no facts of: {", ".join(sorted(missing))}')
    length, capacity = facts['kv']['length'], live.config.capacity
    if not 0 <= length <= capacity:
        raise ValueError(f'{length} tokens do not fit into {capacity}')
    if OPTIONAL in facts:
        aligned, block = facts[OPTIONAL]['length'], live.config.block
        if not 0 <= aligned <= length or aligned % block:
            raise ValueError(
                f'a checkpoint at {aligned} of {length} tokens; blocks have {block} tokens'
            )


def _check_tokens(state: Mapping[str, Tensor], facts: Mapping[str, Mark]) -> None:
    """Check that every part has folded the tokens that are stored with keys and values."""
    tokens = state['kv/tokens']
    if int(state['kv/length']) != len(tokens):
        raise ValueError(f'kv/length says {int(state["kv/length"])}, facts say {len(tokens)}')
    aligned = facts[OPTIONAL]['length'] if OPTIONAL in facts else None
    for part, folded in marks(tokens, aligned).items():
        if facts[part] != folded:
            raise ValueError(f'{part} has folded another prompt than its keys and values')


def _some(names: list[str]) -> str:
    """Return the first names, and how many there are."""
    return ', '.join(names[:3]) + (f', ... ({len(names)} in all)' if len(names) > 3 else '')
