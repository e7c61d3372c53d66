"""Location of what inductor needs to compile for a card: CUDA's headers, and the driver.

Torch expects CUDA where `nvcc` is, which may be a script elsewhere, and links with `libcuda.so`, a
name that a driver without CUDA's stubs need not have. Knows files and environment variables. Does
not import torch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

HEADERS = 'cuda.h', 'cuda_runtime.h'
ROOTS = Path('/usr/local/cuda'), Path('/opt/cuda')
DRIVER, LINKED = 'libcuda.so.1', 'libcuda.so'
FOLDERS = Path('/usr/local/nvidia/lib64'), Path('/usr/lib64'), Path('/usr/lib/x86_64-linux-gnu')


def environment(folder: Path) -> dict[str, str]:
    """Return variables for a compiler; none for what is not found.

    folder: for a link to the driver.
    """
    found: dict[str, str] = {}
    if home := cuda_home():
        found['CUDA_HOME'] = str(home)
    if driver := driver_library():
        folder.mkdir(parents=True, exist_ok=True)
        link = folder / LINKED
        link.unlink(missing_ok=True)  # of another machine
        link.symlink_to(driver)
        found['LIBRARY_PATH'] = _joined(os.environ.get('LIBRARY_PATH'), str(folder))
    return found


def cuda_home() -> Path | None:
    """Return the first folder that has CUDA's headers; CUDA_HOME comes before any other."""
    return next((p for p in _roots() if all((p / 'include' / h).is_file() for h in HEADERS)), None)


def _roots() -> Iterator[Path]:
    if given := os.environ.get('CUDA_HOME'):
        yield Path(given)
    if nvcc := shutil.which('nvcc'):
        yield Path(nvcc).resolve().parents[1]
    yield from ROOTS
    for root in ROOTS:
        yield from sorted(root.parent.glob(f'{root.name}-*'), reverse=True)
    yield from sorted(Path(sysconfig.get_paths()['purelib'], 'nvidia').glob('cu*'), reverse=True)


def driver_library() -> Path | None:
    """Return the path of the driver's library, as programs find it."""
    own = [Path(place) for place in os.environ.get('LD_LIBRARY_PATH', '').split(':') if place]
    places = (folder / DRIVER for folder in (*own, *_cached(), *FOLDERS))
    return next((place for place in places if place.exists()), None)


def _cached() -> Iterator[Path]:
    """Yield the folders in which the loader's cache has the driver."""
    command = shutil.which('ldconfig') or '/sbin/ldconfig'
    try:
        said = subprocess.run([command, '-p'], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return
    for line in said.stdout.splitlines():
        if line.split()[:1] == [DRIVER] and ' => ' in line:
            yield Path(line.rpartition(' => ')[2]).parent


def _joined(*places: str | None) -> str:
    return os.pathsep.join(filter(None, places))
