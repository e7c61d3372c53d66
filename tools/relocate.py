"""Replace the build machine's paths in the CMake files of the ROS 2 wheels by this machine's.

Run once with the virtual environment's Python, after its packages are installed.
"""

import re
import sys
import sysconfig
from pathlib import Path

PATHS = {
    r'/opt/python/[^/]+/include/python3\.\d+': sysconfig.get_path('include'),
    r'/opt/python/[^/]+/lib/python3\.\d+/site-packages': sysconfig.get_path('purelib'),
}

for file in Path(sys.prefix, 'share').glob('*/cmake/*.cmake'):
    text = relocated = file.read_text()
    for theirs, ours in PATHS.items():
        relocated = re.sub(theirs, ours, relocated)
    if relocated != text:
        file.write_text(relocated)
