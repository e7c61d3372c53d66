"""A robot without a model: what acts, speaks and records, on a policy server's chunks."""

from __future__ import annotations

from embodied_kv.nodes.common import executable
from embodied_kv.nodes.recorder import Recorder
from embodied_kv.nodes.remote.action import action
from embodied_kv.nodes.remote.language import language


def main() -> None:
    """Run the executable `remote_robot`."""
    executable.run(action, language, Recorder)


if __name__ == '__main__':
    main()
