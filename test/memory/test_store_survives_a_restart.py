"""The next process finds the text, steps and KV that a process stored."""

import os
import subprocess
import sys
from pathlib import Path

from kept import is_whole, unit

from embodied_kv.memory.store import MemoryStore

WRITER = """
import sys
from kept import kv, put, unit
from embodied_kv.memory.store import MemoryStore

store = MemoryStore(sys.argv[1], 'model')
put(store, cup='on table', bin='empty')
store.advance(7)
put(store, cup='in bin')
store.store_kv(kv(unit(store, 'cup', 'bin')), kv(unit(store, 'bin')))
store.set_fact('who', 'me')
"""


def test_another_process_reads_what_one_wrote(tmp_path):
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parents[1])])
    environment = {**os.environ, 'PYTHONPATH': path, 'OMP_NUM_THREADS': '1'}
    command = [sys.executable, '-c', WRITER, str(tmp_path)]
    subprocess.run(command, check=True, env=environment, timeout=60)
    with MemoryStore(tmp_path, 'model') as store:
        assert [(s.id, s.text, s.version, s.step) for s in store.list()] == [
            ('cup', 'in bin', 2, 7),
            ('bin', 'empty', 1, 0),
        ]
        assert store.step == 7 and store.fact('who') == 'me' and store.swept == 0
        assert is_whole(store, unit(store, 'cup', 'bin')) and is_whole(store, unit(store, 'bin'))
