"""`python -m embodied_kv.train.records`: trains a planner of 8 layers on records; it goes on."""

from embodied_kv.train.common.command import run_for_minutes
from embodied_kv.train.records.trainer import RecordsRecipe, train


def main() -> None:
    """Parse the command line and train."""
    run_for_minutes('records', __doc__, RecordsRecipe, train)


if __name__ == '__main__':
    main()
