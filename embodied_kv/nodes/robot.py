"""The robot: perception, action, language, capsules and memory in one process, on one engine."""

from __future__ import annotations

from embodied_kv.nodes import process
from embodied_kv.nodes.action import Action
from embodied_kv.nodes.capsules import Capsules
from embodied_kv.nodes.language import Language
from embodied_kv.nodes.memory import Memory
from embodied_kv.nodes.perception import Perception


def main() -> None:
    """Run the executable `robot`."""
    process.run(Perception, Action, Language, Capsules, Memory)


if __name__ == '__main__':
    main()
