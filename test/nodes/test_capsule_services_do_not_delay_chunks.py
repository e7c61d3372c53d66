"""Chunks continue in every control period while a capsule is written to a slow disk."""

import threading
import time

from capsule_suite import begin

from embodied_kv.capsule.disk import Disk
from embodied_kv.msg import ActionChunk
from embodied_kv.nodes.common import executable
from embodied_kv.nodes.session import Session
from embodied_kv.srv import CapsuleSnapshot

SLOW = 1.6  # s; eight of the suite's periods


def fresh_chunks(robot, over):
    """Return the number of fresh chunks until `over` returns true."""
    robot.chunks.clear()
    robot.until(over)
    return sum(chunk.source == ActionChunk.FRESH for chunk in robot.chunks)


def test_a_slow_disk_costs_no_chunk(robot, tmp_path, monkeypatch):
    save = Disk.save

    def save_slowly(disk, capsule):
        time.sleep(SLOW)
        return save(disk, capsule)

    monkeypatch.setattr(Disk, 'save', save_slowly)
    *_, capsules = begin(robot, tmp_path)
    assert capsules.may_wait and isinstance(capsules, Session)
    robot.executor.remove_node(capsules)
    stopping = []
    thread = threading.Thread(target=executable.serve, args=([capsules], stopping))
    thread.start()
    try:
        client = robot.node.create_client(CapsuleSnapshot, 'capsule/snapshot')
        assert client.wait_for_service(60.0)
        until = time.monotonic() + SLOW
        before = fresh_chunks(robot, lambda: time.monotonic() > until)
        began = time.monotonic()
        future = client.call_async(CapsuleSnapshot.Request(name='home', tier='disk'))
        meanwhile = fresh_chunks(robot, future.done)
        took = time.monotonic() - began
    finally:
        stopping.append(0)
        thread.join()
    response = future.result()
    assert response.success, response.message
    assert took >= SLOW and response.tier == 'disk' and response.ms < SLOW * 1e3 / 2
    assert meanwhile >= before / 3 >= 1  # a third is enough on a busy machine
