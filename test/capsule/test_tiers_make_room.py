"""Room for a new capsule: the least recently used one moves, tier by tier, never a pinned one."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.capsule import tiers as kinds
from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.capsule.tiers import Move, NoRoomError, Tier, TierCapacities, TierEntry, make_room

DEVICE, HOST, DISK = Tier


def held(name, size, *tiers, pinned=False):
    return TierEntry(name, size, frozenset(tiers), pinned)


def test_no_capsule_moves_while_there_is_room():
    assert make_room([held('a', 4, DEVICE)], 'new', 4, DEVICE, TierCapacities(device=8)) == []
    assert make_room([held('a', 4, DEVICE)], 'new', 99, DEVICE, TierCapacities()) == []


def test_least_recently_used_capsule_is_demoted_by_one_tier():
    capsules = [held('old', 4, DEVICE), held('young', 4, DEVICE)]
    assert make_room(capsules, 'new', 4, DEVICE, TierCapacities(device=8)) == [
        Move('old', DEVICE, HOST)
    ]


def test_room_in_the_lower_tier_is_made_first():
    capsules = [held('h', 4, HOST), held('d', 4, DEVICE)]
    assert make_room(capsules, 'new', 4, DEVICE, TierCapacities(device=4, host=4)) == [
        Move('h', HOST, DISK),
        Move('d', DEVICE, HOST),
    ]


def test_the_host_counts_what_an_allocation_there_takes(monkeypatch):
    monkeypatch.setattr(kinds, 'held_bytes', lambda size: 1 << (size - 1).bit_length())
    capacities = TierCapacities(device=5, host=16, disk=5)
    with_room = [held('d', 5, DEVICE), held('h', 5, HOST)]
    assert make_room(with_room, 'new', 5, DEVICE, capacities) == [Move('d', DEVICE, HOST)]
    full = [held('h', 5, HOST), held('i', 3, HOST), held('d', 5, DEVICE)]  # 8 and 4 of 16
    assert make_room(full, 'new', 5, DEVICE, capacities) == [
        Move('h', HOST, DISK),
        Move('d', DEVICE, HOST),
    ]
    with pytest.raises(NoRoomError, match='needs 9 bytes of the host tier: 4 of 16 are free'):
        refusing = TierCapacities(host=16, policy='refuse')
        make_room(full, 'new', 9, HOST, refusing)


def test_capsule_is_not_evicted_for_an_older_one_of_the_tier_above():
    capsules = [held('d', 4, DEVICE), held('h', 4, HOST)]
    moves = make_room(capsules, 'new', 4, DEVICE, TierCapacities(device=4, host=4))
    assert moves == [Move('d', DEVICE, DISK)]


@pytest.mark.parametrize('capacities', [TierCapacities(4, host=0), TierCapacities(4, host=3)])
def test_tier_that_is_too_small_is_skipped(capacities):
    capsules = [held('h', 2, HOST)] * (capacities.host > 0) + [held('d', 4, DEVICE)]
    assert make_room(capsules, 'new', 4, DEVICE, capacities) == [Move('d', DEVICE, DISK)]


def test_a_pinned_capsule_stays():
    capsules = [held('pin', 4, DEVICE, pinned=True), held('b', 4, DEVICE)]
    assert make_room(capsules, 'new', 4, DEVICE, TierCapacities(device=8)) == [
        Move('b', DEVICE, HOST)
    ]


def test_a_promoted_capsule_keeps_its_old_copy_until_it_is_copied():
    capsules = [held('x', 4, HOST), held('d', 4, DEVICE)]
    assert make_room(capsules, 'x', 4, DEVICE, TierCapacities(device=4, host=4)) == [
        Move('d', DEVICE, DISK)
    ]
    with pytest.raises(NoRoomError):
        make_room(capsules, 'x', 4, DEVICE, TierCapacities(device=4, host=4, disk=0))


def test_capsule_evicted_from_the_last_tier_is_dropped_under_policy_drop():
    capsules = [held('a', 4, DISK), held('b', 4, DISK)]
    capacities = TierCapacities(disk=8, policy='drop')
    assert make_room(capsules, 'new', 4, DISK, capacities) == [Move('a', DISK, None)]
    with pytest.raises(NoRoomError, match='a would have to go, but no tier below has room: drop'):
        make_room(capsules, 'new', 4, DISK, TierCapacities(disk=8))


def test_room_at_the_bottom_is_made_before_anything_comes_down():
    capsules = [held('k', 4, DISK), held('h', 4, HOST), held('d', 4, DEVICE)]
    assert make_room(capsules, 'new', 4, DEVICE, TierCapacities(4, 4, 4, 'drop')) == [
        Move('k', DISK, None),
        Move('h', HOST, DISK),
        Move('d', DEVICE, HOST),
    ]


def test_capsule_already_on_the_disk_needs_no_room_there():
    capsules = [held('h', 4, HOST, DISK)]
    for policy in ('demote', 'drop'):
        moves = make_room(capsules, 'new', 4, HOST, TierCapacities(host=4, disk=4, policy=policy))
        assert moves == [Move('h', HOST, DISK)]


def test_capsule_without_room_is_dropped_with_its_disk_copy():
    capsules = [held('h', 4, HOST, DISK), held('i', 4, HOST), held('j', 4, HOST)]
    moves = make_room(capsules, 'new', 12, HOST, TierCapacities(host=12, disk=8, policy='drop'))
    assert moves == [
        Move('h', DISK, None),
        Move('j', HOST, DISK),
        Move('i', HOST, DISK),
        Move('h', HOST, None),
    ]


def test_refuse_moves_nothing_even_if_there_is_room_below():
    with pytest.raises(NoRoomError, match="the policy 'refuse' moves nothing for it"):
        make_room([held('a', 4, DEVICE)], 'new', 4, DEVICE, TierCapacities(4, policy='refuse'))


def test_refusal_states_the_needed_free_and_pinned_bytes():
    capsules = [held('p', 60, HOST, pinned=True), held('b', 20, HOST), held('c', 5, DEVICE)]
    with pytest.raises(NoRoomError) as refusal:
        make_room(capsules, 'new', 50, HOST, TierCapacities(host=100))
    assert str(refusal.value) == (
        "'new' needs 50 bytes of the host tier: 20 of 100 are free, pinned is p with 60; "
        'unpin one of them, or raise the capacity'
    )
    with pytest.raises(
        NoRoomError, match='0 of 9 .* pinned is nothing; it is larger than the tier'
    ):
        make_room([held('a', 9, HOST)], 'new', 10, HOST, TierCapacities(host=9))
    with pytest.raises(NoRoomError, match="no host tier for 'new': its capacity is 0 bytes"):
        make_room([], 'new', 1, HOST, TierCapacities(host=0))


def test_tier_over_its_capacity_accepts_no_capsule_and_blocks_no_other_tier():
    capsules = [held('a', 9, DISK)]
    assert make_room(capsules, 'new', 4, HOST, TierCapacities(host=4, disk=5)) == []
    with pytest.raises(NoRoomError, match='0 of 5 are free'):
        make_room(capsules, 'new', 4, DISK, TierCapacities(disk=5))


def test_wrong_capacities_are_refused():
    with pytest.raises(CapsuleError, match='a capacity of -1 bytes for the host tier'):
        TierCapacities(host=-1)
    with pytest.raises(CapsuleError, match="no policy 'lru'; there are: refuse, demote, drop"):
        TierCapacities(policy='lru')
    with pytest.raises(CapsuleError, match="no tier 'ram'; there are: device, host, disk"):
        Tier('ram')


def used(tiers_of, sizes):
    total = Counter()
    for name, tiers in tiers_of.items():
        for tier in tiers:
            total[tier] += sizes[name]
    return total


memory = st.sampled_from([{DEVICE}, {HOST}, {DISK}, {DEVICE, DISK}, {HOST, DISK}])
capacity = st.none() | st.integers(0, 12)


@given(
    st.lists(st.tuples(st.integers(0, 5), memory, st.booleans()), max_size=8),
    st.sampled_from(Tier),
    st.integers(0, 8),
    st.builds(
        TierCapacities, capacity, capacity, capacity, st.sampled_from(['refuse', 'demote', 'drop'])
    ),
)
def test_law_every_move_keeps_every_capacity_and_the_order_of_use(items, tier, size, capacities):
    capsules, tiers_of, sizes = [], {}, {'new': size}
    for i, (bytes_, tiers, pinned) in enumerate(items):  # as far as the capacities allow
        name, sizes[str(i)] = str(i), bytes_
        after = used({**tiers_of, name: tiers}, sizes)
        if all(capacities.of(t) > 0 and after[t] <= capacities.of(t) for t in tiers):
            tiers_of[name] = set(tiers)
            capsules.append(held(name, bytes_, *tiers, pinned=pinned))
    before = {name: set(tiers) for name, tiers in tiers_of.items()}
    try:
        moves = make_room(capsules, 'new', size, tier, capacities)
    except NoRoomError:
        return
    for move in moves:
        assert move.source in tiers_of[move.name]
        if move.target is not None:
            tiers_of[move.name].add(move.target)  # the copy precedes the removal
            assert used(tiers_of, sizes)[move.target] <= capacities.of(move.target)
        tiers_of[move.name].remove(move.source)
    assert used(tiers_of, sizes)[tier] + size <= capacities.of(tier)
    for h in capsules:
        if h.pinned:
            assert tiers_of[h.name] == before[h.name]
        if capacities.policy != 'drop':
            assert tiers_of[h.name] and before[h.name] & {DISK} <= tiers_of[h.name]
    assert capacities.policy != 'refuse' or not moves
    fixed = size + sum(h.bytes for h in capsules if h.pinned and tier in h.tiers)
    movable = [h for h in capsules if tier in h.tiers and not h.pinned]
    left = [
        h
        for h in movable
        if tier not in tiers_of[h.name] and h.bytes + fixed <= capacities.of(tier)
    ]
    stayed = [h for h in movable if tier in tiers_of[h.name]]
    assert all(capsules.index(old) < capsules.index(young) for old in left for young in stayed)
