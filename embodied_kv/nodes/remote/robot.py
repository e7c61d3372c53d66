"""A robot without a model: what acts, speaks, keeps capsules and records, by a policy server."""

from __future__ import annotations

from embodied_kv.nodes.common import executable
from embodied_kv.nodes.recorder import Recorder
from embodied_kv.nodes.remote.action import action
from embodied_kv.nodes.remote.language import language
from embodied_kv.nodes.remote.memory import memory
from embodied_kv.nodes.remote.session import mission, session


def main() -> None:
    """Run the executable `remote_robot`."""
    executable.run(action, language, session, memory, mission, Recorder)


if __name__ == '__main__':
    main()
