"""`python -m embodied_kv.train.planner`: trains the memory's planner on drawn households."""

from embodied_kv.train.common.command import run_for_minutes
from embodied_kv.train.planner.trainer import PlannerRecipe, train


def main() -> None:
    """Parse the command line and train."""
    run_for_minutes('planner', __doc__, PlannerRecipe, train)


if __name__ == '__main__':
    main()
