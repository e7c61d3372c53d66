"""Capsules and memory with the same folder do not wait for each other."""

import fcntl
import os

from embodied_kv.memory.store import MemoryStore


def test_a_folder_that_memory_lies_in_may_be_locked_by_others(tmp_path):
    store = MemoryStore(tmp_path, 'model')
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as the capsule tier does
    os.close(descriptor)
    store.close()
