"""A change invalidates the KV of its segment or its static group, and no other KV."""

from hypothesis import given, settings
from hypothesis import strategies as st
from meanings import WIDTH, towards

from embodied_kv.memory.groups import Grouping, Groups

IDS = [f'{letter}{i}' for letter in 'abc' for i in range(5)]
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just('put'), st.sampled_from(IDS), st.integers(0, 9)),
        st.tuples(st.just('remove'), st.sampled_from(IDS), st.just(0)),
        st.tuples(st.just('advance'), st.just(''), st.integers(0, 5)),
    ),
    max_size=60,
)


def contents(groups, versions):
    """Return the tokens of each unit, by the contents that its KV is computed from."""
    return {
        tuple((id, versions[id]) for id in ids): sum(map(groups.tokens, ids))
        for ids in groups.units()
    }


@settings(max_examples=150, deadline=None)
@given(OPERATIONS, st.integers(1, 4), st.integers(1, 4))
def test_any_operations_invalidate_exactly_the_changed_units(operations, members, stable):
    groups = Groups(WIDTH, Grouping(stable, 0.5, members, 25))
    versions = dict.fromkeys(IDS, 0)
    step = 0
    for what, id, number in operations:
        before, known = contents(groups, versions), id in groups.vectors
        static = known and groups.of(id).static
        its_unit = groups.ids(groups.of(id)) if static else (id,)
        if what == 'advance':
            step += number
            groups.advance(step)
            after = contents(groups, versions)
            assert {pair for unit in before for pair in unit} == {p for u in after for p in u}
            for group in groups:
                assert group.static == (step - group.changed >= stable)
        elif what == 'put' or known:
            if what == 'put':
                versions[id] += 1
                lost = groups.put(id, towards('abc'[number % 3], number / 20), number, step)
            else:
                lost = groups.remove(id, step)
            after = contents(groups, versions)
            gone = {unit: size for unit, size in before.items() if unit not in after}
            if not known:
                assert lost == 0 and gone == {}
            else:
                assert [tuple(i for i, _ in unit) for unit in gone] == [its_unit]
                assert lost == sum(gone.values())
        groups.check_integrity()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(IDS), unique=True), st.integers(0, 30))
def test_no_update_invalidates_nothing(ids, steps):
    groups = Groups(WIDTH)
    for id in ids:
        groups.put(id, towards(id[0]), 5, 0)
    groups.advance(10)
    before = groups.units()
    for step in range(11, 11 + steps):
        assert groups.advance(step) == ()
    assert groups.units() == before and groups.counts['invalidated'] == 0
