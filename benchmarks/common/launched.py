"""Number of kernels that a compiled computation launches, counted in its generated wrapper code.

The count on a CPU approximates that of a GPU, where launches dominate the time of a small model:
inductor fuses alike on both. A call of a library (matrix product, attention) counts as one.
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
    """Return the launches of one run. Raises ValueError if the file has no wrapper."""
    return len(CALL.findall(run_code(package)))


def run_code(package: Path) -> str:
    """Return inductor's C++ code of a run. Raises ValueError if the file has none."""
    with zipfile.ZipFile(package) as archive:
        for name in archive.namelist():
            if name.endswith('wrapper.cpp'):
                code = archive.read(name).decode()
                return code[code.index('::run_impl(') :]
    raise ValueError(f'{package} holds no compiled wrapper')
