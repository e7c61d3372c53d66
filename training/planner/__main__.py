"""`python -m training.planner`: train the planner on households and missions."""

from pathlib import Path

from training.common.command import parser, run
from training.planner.trainer import PlannerRecipe, train


def main() -> None:
    """Parse the command line and train."""
    command = parser('planner', __doc__)
    command.add_argument('--out', type=Path, default=Path('out/train/planner'), help='folder')
    command.add_argument('--minutes', type=float, default=600.0, help='that this may take')
    command.add_argument('--init', type=Path, help='a planner to start from, with its words')
    run(command, PlannerRecipe, lambda a, recipe: train(a.out, recipe, a.minutes, init=a.init))


if __name__ == '__main__':
    main()
