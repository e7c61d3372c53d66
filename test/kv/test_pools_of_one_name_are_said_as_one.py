"""A fleet has a pool of each robot: who reads what is in use sees their sum, under one name."""

from plane_cases import TablePool

from embodied_kv.kv.plane import Plane


def test_their_bytes_are_summed():
    plane = Plane()
    for name, size in (('capsules', 100), ('streams', 5), ('capsules', 20)):
        pool = TablePool(name)
        pool.bytes = size
        plane.join(pool)
    assert str(plane) == '125 bytes in use: capsules 120 bytes, streams 5 bytes'
