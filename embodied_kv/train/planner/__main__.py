"""`python -m embodied_kv.train.planner`: trains the memory's planner on drawn households."""

from pathlib import Path

from embodied_kv.train.common.command import parser, run
from embodied_kv.train.planner.trainer import PlannerRecipe, train


def main() -> None:
    """Parse the command line and train."""
    command = parser('planner', __doc__)
    command.add_argument('--out', type=Path, default=Path('out/train/planner'), help='folder')
    command.add_argument('--minutes', type=float, default=600.0, help='that this may take')
    run(command, PlannerRecipe, lambda args, recipe: train(args.out, recipe, args.minutes))


if __name__ == '__main__':
    main()
