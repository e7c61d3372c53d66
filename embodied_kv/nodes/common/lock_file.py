"""Where a process keeps the lock that makes its nodes unique in their namespace."""

from __future__ import annotations

import os
from pathlib import Path

from embodied_kv import storage


def lock_path(namespace: str, domain: int, name: str) -> Path:
    """Return the file that a node of this name locks in its namespace of a ROS domain."""
    place = f'{domain}{namespace.replace("/", ".")}'
    return storage.runtime_folder() / f'embodied_kv.{os.getuid()}.{place}.{name}.lock'
