"""`python -m training.records`: train a planner of 8 layers on records, or continue a run."""

from training.common.command import run_for_minutes
from training.records.trainer import RecordsRecipe, train


def main() -> None:
    """Parse the command line and train."""
    run_for_minutes('records', __doc__, RecordsRecipe, train)


if __name__ == '__main__':
    main()
