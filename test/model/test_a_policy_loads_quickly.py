"""A policy that is not compiled loads without libraries that take seconds to import."""

import subprocess
import sys

SLOW = {'transformers', 'torch._dynamo', 'torch._inductor', 'sympy'}
SCRIPT = f"""
import sys
from embodied_kv.model.checkpoints.open import open_checkpoint
from embodied_kv.model.checkpoints.own import bundled
open_checkpoint(str(bundled('tabletop'))).load('cpu', 'float32')
print(sorted({SLOW!r} & set(sys.modules)))
"""


def test_no_slow_library_is_imported():
    loaded = subprocess.run(
        [sys.executable, '-c', SCRIPT], capture_output=True, text=True, timeout=180, check=True
    )
    assert loaded.stdout == '[]\n'
