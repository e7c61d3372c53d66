"""A process may open the cameras first and load a policy, with all of torch, afterwards."""

import subprocess
import sys

SCRIPT = """
from embodied_kv.demo.sim.tabletop import Tabletop
with Tabletop(seed=1) as table:
    table.render()
    import torch._dynamo
    from transformers import SiglipVisionModel
    table.render()
print('both')
"""


def test_a_policy_loads_after_the_cameras():
    ended = subprocess.run(
        [sys.executable, '-X', 'faulthandler', '-c', SCRIPT],
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert ended.stdout == 'both\n', ended.stderr[-2000:]
