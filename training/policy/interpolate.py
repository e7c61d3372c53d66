"""`python -m training.policy.interpolate FIRST SECOND SHARE OUT`: weights between two policies.

A policy that was trained further on other tasks often loses success on the earlier ones. Weights
between both keep much of each.

Source: WiSE-FT (Wortsman et al., "Robust fine-tuning of zero-shot models"), section 3.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from torch import Tensor

from embodied_kv import storage
from embodied_kv.model.checkpoints.own import (
    CONFIG,
    MAX_ACTION_PREFIX,
    MAX_MEMORY_ROWS,
    STATISTICS,
    TOKENIZER,
)
from embodied_kv.model.weights import Weights, write_weights
from training.common.command import parser
from training.common.learner import TRAINED

SAME = (CONFIG, MAX_ACTION_PREFIX, MAX_MEMORY_ROWS)  # metadata
FILES = (TOKENIZER, STATISTICS)


def interpolated(first: Weights, second: Weights, share: float) -> dict[str, Tensor]:
    """Return (1 - share) times the weights of `first`, and `share` times those of `second`.

    Raises ValueError for a share outside 0 to 1, and for other dimensions or limits.
    """
    if not 0 <= share <= 1:
        raise ValueError(f'share must be from 0 to 1 (got {share}); choose another one')
    for name in SAME:
        values = [weights.metadata.get(name) for weights in (first, second)]
        if values[0] != values[1]:
            raise ValueError(
                f'{name} of both policies must be equal (got {values}); choose others'
            )
    return {
        name: first.read(name).float().lerp(second.read(name).float(), share).bfloat16()
        for name in second.names
    }


def run(arguments: argparse.Namespace) -> None:
    """Write the policy between two others.

    Raises ValueError as `interpolated`, and for another tokenizer or other statistics.
    """
    folders = arguments.first, arguments.second
    first, second = map(Weights, folders)
    state = interpolated(first, second, arguments.share)
    for name in FILES:
        if len({(folder / name).read_bytes() for folder in folders}) > 1:
            raise ValueError(f'{name} of both policies must be equal; train one from the other')
    about = dict(second.metadata)
    about[TRAINED] = f'{about.get(TRAINED)}, then {arguments.share} of the way to them'
    with storage.replaced_folder(arguments.out) as new:
        for name in FILES:
            shutil.copyfile(arguments.second / name, new / name)
        write_weights(new / 'model.safetensors', state, about)


def main() -> None:
    """Parse the command line and write the policy."""
    command = parser('policy.interpolate', __doc__)
    command.add_argument('first', type=Path, help='folder of a policy')
    command.add_argument('second', type=Path, help='folder of a policy that was trained from it')
    command.add_argument('share', type=float, help='of the second one, 0 to 1')
    command.add_argument('out', type=Path, help='folder of the new policy')
    try:
        run(command.parse_args())
    except ValueError as error:
        sys.exit(f'{command.prog}: {error}')


if __name__ == '__main__':
    main()
