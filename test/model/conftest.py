"""Lets the tests of this folder import `numpy_reference`, which lies beside them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
