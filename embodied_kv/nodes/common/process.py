"""Lock files and exit of the processes of a suite. Imports neither ROS nor the engine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from embodied_kv import storage


def lock_path(namespace: str, domain: int, name: str) -> Path:
    """Return the file that a node of this name locks in its namespace of a ROS domain."""
    place = f'{domain}{namespace.replace("/", ".")}'
    return storage.runtime_folder() / f'embodied_kv.{os.getuid()}.{place}.{name}.lock'


def leave(code: int) -> None:
    """End the process at once, without the exit handlers of Python and of native libraries.

    Call it when everything is closed. Threads of the DDS implementation can outlive the ROS
    context. If static objects are destroyed while they run, a process that has done all its work
    ends with the status of a crash (rmw_fastrtps, issue 761).
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
