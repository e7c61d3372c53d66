"""Add this folder to the import path, so that its tests can import `numpy_reference`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
