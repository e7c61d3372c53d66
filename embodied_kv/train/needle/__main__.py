"""`python -m embodied_kv.train.needle`: trains a small model to read codes off a page."""

from pathlib import Path

from embodied_kv.train.common.command import parser, run
from embodied_kv.train.needle.trainer import NeedleRecipe, train


def main() -> None:
    """Parse the command line and train."""
    command = parser('needle', __doc__)
    command.add_argument('--out', type=Path, default=Path('out/train/needle'), help='folder')
    command.add_argument('--minutes', type=float, default=600.0, help='that this may take')
    run(command, NeedleRecipe, lambda args, recipe: train(args.out, recipe, args.minutes))


if __name__ == '__main__':
    main()
