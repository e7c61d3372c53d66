"""The robot: perception, action and language in one process, on one engine."""

from __future__ import annotations

from embodied_kv.nodes import process
from embodied_kv.nodes.action import Action
from embodied_kv.nodes.language import Language
from embodied_kv.nodes.perception import Perception


def main() -> None:
    """Run the executable `robot`."""
    process.run(Perception, Action, Language)


if __name__ == '__main__':
    main()
