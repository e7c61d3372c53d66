"""The end of a process of the suite. Imports neither ROS nor the engine."""

from __future__ import annotations

import os
import sys


def leave(code: int) -> None:
    """End the process at once, without the exit handlers of Python and of native libraries.

    To be called when everything is closed. Threads of the DDS implementation can outlive the ROS
    context. If static objects are destroyed beside them, a process that has done all its work
    ends with the status of a crash (rmw_fastrtps, issue 761).
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
