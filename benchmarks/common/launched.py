"""How many kernels a compiled computation launches, read from the code that calls them.

On a CPU a stand-in for a GPU, where what is launched is what a small model waits for: inductor
fuses much alike on both. What it leaves to a library (matrix products, attention) counts as one.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

CALL = re.compile(
    r'^\s*(?:cpp_fused\w*|AOTI_TORCH_ERROR_CODE_CHECK\(aoti_torch_(?:cpu|proxy_executor)_\w+)\(',
    re.M,
)


def launches(package: Path) -> int:
    """Of one run. Raises ValueError for a file that holds no wrapper."""
    return len(CALL.findall(run_code(package)))


def run_code(package: Path) -> str:
    """What inductor wrote for a run, in C++. Raises ValueError for a file that holds none."""
    with zipfile.ZipFile(package) as archive:
        for name in archive.namelist():
            if name.endswith('wrapper.cpp'):
                code = archive.read(name).decode()
                return code[code.index('::run_impl(') :]
    raise ValueError(f'{package} holds no compiled wrapper')
