"""The executable `robot`: all nodes of a suite in one process with one engine."""

from __future__ import annotations

from embodied_kv.nodes.action import Action
from embodied_kv.nodes.common import executable
from embodied_kv.nodes.language import Language
from embodied_kv.nodes.memory import Memory
from embodied_kv.nodes.mission import Mission
from embodied_kv.nodes.perception import Perception
from embodied_kv.nodes.recorder import Recorder
from embodied_kv.nodes.session import Session


def main() -> None:
    """Run the executable `robot`."""
    executable.run(
        perception=Perception,
        action=Action,
        language=Language,
        session=Session,
        memory=Memory,
        mission=Mission,
        recorder=Recorder,
    )


if __name__ == '__main__':
    main()
