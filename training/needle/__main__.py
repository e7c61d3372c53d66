"""`python -m training.needle`: train a small model to read codes off a page."""

from training.common.command import run_for_minutes
from training.needle.trainer import NeedleRecipe, train


def main() -> None:
    """Parse the command line and train."""
    run_for_minutes('needle', __doc__, NeedleRecipe, train)


if __name__ == '__main__':
    main()
