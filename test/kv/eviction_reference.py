"""Reference for the choice of evictions: an exhaustive search, slow but easy to verify."""

from itertools import chain

from embodied_kv.kv.pool import Evictable


def freed_with(kv, lease, others):
    """Return the rows, as (bytes, holders), that are freed with a lease and these others."""
    if lease.is_copy:
        readers = kv.copies._leases[lease.row]
        size = kv.compressed.bytes_of(lease.row)
        return [(size, len(readers))] if readers <= {lease, *others} else []
    readers = kv.frames._leases[lease.row]
    is_current = any(frame.row == lease.row for frame in kv.frames._current.values())
    if is_current or not readers <= {lease, *others}:
        return []
    own = set(kv.copies._assigned.get(lease.handle.place, {}).values())
    rows = {copy.row for copy in own if kv.copies._leases[copy.row] <= own}
    sizes = [kv.prefixes.bytes_of(lease.row), *map(kv.compressed.bytes_of, rows)]
    return [(size, len(readers)) for size in sizes]


def cost(kv, streams):
    prefills = sum(handle.prefill_ms / 1e3 for handle in {s.lease.handle for s in streams})
    return prefills + sum(len(s.tokens) for s in streams) * kv.streams.token_seconds


def stream_offers(kv):
    """Return stream, bytes freed, bytes in use and cost (s) of each stream outside a step."""
    idle = [s for s in kv.streams.live() if s not in kv.streams._stepping]
    leases = {s.lease for s in idle}
    offers = []
    for s in idle:
        used = kv.decode_kv.bytes_of(s.decode_row)
        alone = sum(size for size, holders in freed_with(kv, s.lease, leases) if holders == 1)
        size = kv.streams.bytes_for(s.query) + alone
        offers.append((s, size, used + alone, cost(kv, [s])))
    return offers


def freed_by(kv, streams):
    """Return the bytes freed if all of these end, and the time (s) to compute them again."""
    size = sum(kv.streams.bytes_for(s.query) for s in streams)
    rows = {(s.lease.is_copy, s.lease.row): s.lease for s in streams}
    leases = {s.lease for s in streams}
    freed = chain.from_iterable(freed_with(kv, lease, leases) for lease in rows.values())
    return size + sum(size for size, _ in freed), cost(kv, streams)


def by_row(kv):
    """Return the live streams by prefix row, ordered by the newest stream of each row."""
    rows = {}
    for stream in kv.streams.live():
        if not stream.lease.is_copy:
            rows[stream.lease.row] = [*rows.pop(stream.lease.row, ()), stream]
    return rows


def freeing(kv):
    """Return those entries of `by_row` whose row is free once all of its streams have ended."""
    return {
        row: streams
        for row, streams in by_row(kv).items()
        if freed_with(kv, streams[0].lease, {s.lease for s in streams})
        and kv.streams._stepping.isdisjoint(streams)
    }


def least(kv, groups):
    """Return the streams of these groups in the order in which the groups end."""
    worth = lambda group: kv.budget.worth(kv.streams, *freed_by(kv, group))  # noqa: E731
    return list(chain.from_iterable(sorted(groups, key=worth)))


def ranked(order, pools):
    """Return the offers of all pools by ascending worth; they are all made at once, and sorted."""
    made = [
        (order.worth(pool.name, offer.size, offer.cost, offer.idle), offer)
        for pool in pools
        for offer in pool.evictable()
        if offer.size and not set(offer.consumers) & set(order.never)
    ]
    return [offer for _, offer in sorted(made, key=lambda pair: pair[0])]


def facts(offer: Evictable):
    """Return what distinguishes one offer from another."""
    return offer.evict.func.__qualname__, offer.evict.args[0], offer.size, offer.bytes, offer.cost
