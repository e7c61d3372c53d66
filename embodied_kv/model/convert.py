"""Write a JAX checkpoint of openpi as safetensors: `python -m embodied_kv.model.convert STEP OUT`.

A step folder can be served unconverted; this is for machines without the extra 'jax', and for a
faster start. OUT has the weights, with adapters added, under openpi's names in PyTorch, and copies
of the statistics and of the tokenizer. Exit status: 0, or 2 if STEP cannot be converted.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from embodied_kv import storage
from embodied_kv.config import DTYPES
from embodied_kv.model.checkpoints.openpi import ASSETS, TOKENIZERS, statistics_path
from embodied_kv.model.checkpoints.openpi_jax import JaxWeights, is_jax
from embodied_kv.model.weights import CheckpointError, write_weights


def convert(step: Path, out: Path, dtype: str) -> None:
    """Write `out`. dtype: of the weights. Raises CheckpointError."""
    if not is_jax(step):
        raise CheckpointError(
            f'{step} must be a step folder of openpi in JAX, with its folder params; other '
            'checkpoints are served as they are'
        )
    if out.exists():
        raise CheckpointError(f'{out} must not exist; choose another folder')
    statistics_path(step)
    weights = JaxWeights(step)
    if unknown := weights.unknown:
        raise CheckpointError(f'{step}: not supported: {", ".join(unknown)}')
    state = {name: weights.read(name).to(getattr(torch, dtype)) for name in weights.names}
    settings = {'action_dim': weights.action_dim, 'precision': dtype}
    with storage.replaced_folder(out) as new:
        write_weights(new / 'model.safetensors', state, {})
        (new / 'config.json').write_text(json.dumps(settings, indent=1))
        shutil.copytree(step / ASSETS, new / ASSETS)
        for name in TOKENIZERS:
            if (step / name).is_file():
                shutil.copy(step / name, new / name)
    size = sum(tensor.nbytes for tensor in state.values())
    print(f'{out}: {len(state)} tensors, {size / 2**30:.2f} GiB in {dtype}')


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog='python -m embodied_kv.model.convert',
        description='Write a JAX checkpoint of openpi as safetensors.',
    )
    parser.add_argument('step', type=Path, help='folder of a step, with params and assets')
    parser.add_argument('out', type=Path, help='folder to write, which must not exist')
    parser.add_argument(
        '--dtype', choices=DTYPES, default='bfloat16', help='of the weights (default: %(default)s)'
    )
    args = parser.parse_args(arguments)
    try:
        convert(args.step, args.out, args.dtype)
    except CheckpointError as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    return 0


if __name__ == '__main__':
    sys.exit(main())
