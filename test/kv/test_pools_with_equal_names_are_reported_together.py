"""Pools with the same name, such as one per robot of a fleet, are reported as one sum."""

from budget_cases import TablePool

from embodied_kv.kv.budget import KvBudget


def test_their_bytes_are_summed():
    kv_budget = KvBudget()
    for name, size in (('capsules', 100), ('streams', 5), ('capsules', 20)):
        pool = TablePool(name)
        pool.bytes = size
        kv_budget.join(pool)
    assert str(kv_budget) == '125 bytes in use: capsules 120 bytes, streams 5 bytes'
