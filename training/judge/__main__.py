"""`python -m training.judge`: train a small planner to follow chains over segments."""

from pathlib import Path

from training.common.command import parser, run
from training.judge.trainer import JudgeRecipe, train


def main() -> None:
    """Parse the command line and train."""
    command = parser('judge', __doc__)
    out = Path('out/train/judge.safetensors')
    command.add_argument('--out', type=Path, default=out, help='file')
    command.add_argument('--problems', type=int, default=500, help='of each cell of the exam')
    run(command, JudgeRecipe, lambda args, recipe: train(args.out, recipe, args.problems))


if __name__ == '__main__':
    main()
