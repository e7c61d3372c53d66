"""A folder of capsules belongs to one registry at a time, in this process or another."""

import os
import subprocess
import sys

import pytest
from tier_stand_ins import OURS, capsule, same

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.disk import Disk
from embodied_kv.capsule.registry import Registry
from embodied_kv.capsule.tiers import Tier, TierCapacities

OPEN = """
import sys
from embodied_kv.capsule.disk import Disk
from embodied_kv.capsule.registry import Registry
registry = Registry('ours', disk=Disk(sys.argv[1]))
print('open', flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path):
    """Yield a process that has a registry over the folder."""
    command = [sys.executable, '-c', OPEN, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b'open\n'
        yield process
        process.kill()


def test_a_folder_that_another_process_uses_is_refused_with_its_number(other, tmp_path):
    message = rf'used by one process at a time \(process {other.pid} has it\); end that process'
    with pytest.raises(CapsuleError, match=message):
        Registry(OURS, disk=Disk(tmp_path))


def test_a_folder_is_free_after_its_process_was_killed(other, tmp_path):
    other.kill()
    other.wait()
    Registry(OURS, disk=Disk(tmp_path)).add(capsule('a'), Tier.DISK)


def test_a_second_registry_of_the_same_process_is_refused_until_the_first_is_closed(tmp_path):
    first = Registry(OURS, disk=Disk(tmp_path))
    with pytest.raises(CapsuleError, match=rf'process {os.getpid()} has it'):
        Registry(OURS, disk=Disk(tmp_path))
    first.add(capsule('a'), Tier.DISK)
    first.close()
    assert same(Registry(OURS, disk=Disk(tmp_path)).get('a'), capsule('a'))


def test_a_registry_without_a_disk_tier_needs_no_folder(tmp_path):
    first = Registry(OURS, disk=Disk(tmp_path))
    Registry(OURS, TierCapacities(disk=0), Disk(tmp_path)).add(capsule('a'))
    first.close()


def test_a_link_in_place_of_the_lock_is_not_written_through(tmp_path):
    outside = tmp_path / 'outside'
    outside.write_text('mine')
    disk = Disk(tmp_path / 'capsules')
    (disk.folder / 'capsules.lock').symlink_to(outside)
    with pytest.raises(CapsuleError, match='cannot be locked: .*; remove the link'):
        Registry(OURS, disk=disk)
    assert outside.read_text() == 'mine'
