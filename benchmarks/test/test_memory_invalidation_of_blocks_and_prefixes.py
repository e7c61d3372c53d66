"""Number of tokens that an update invalidates if memory is stored in blocks or as one prefix."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.memory.invalidation import Invalidation


def six(blocks=(1, 2, 64)):
    """Return an account of segments a to f of 1, 2, 4, 8, 16 and 32 tokens, added in one step."""
    account = Invalidation(blocks)
    assert set(account.step({id: 2**i for i, id in enumerate('abcdef')}).values()) == {0}
    return account


def test_one_update_costs_the_rest_of_its_block_and_of_the_prefix():
    lost = six().step({'c': 100})
    assert lost == {'blocks of 1': 4, 'blocks of 2': 4 + 8, 'blocks of 64': 60, 'prefix': 60}
    assert six().step({'d': 8})['blocks of 2'] == 8, 'what stands before it in its block is fine'


def test_the_last_one_costs_itself():
    assert set(six().step({'f': 1}).values()) == {32}


def test_tokens_behind_two_changes_of_a_step_are_counted_once():
    lost = six().step({'e': 1, 'c': 1})
    assert lost == {'blocks of 1': 20, 'blocks of 2': 12 + 48, 'blocks of 64': 60, 'prefix': 60}


def test_a_removed_segment_costs_what_it_was_and_those_behind():
    account = six()
    assert account.step({'a': None})['blocks of 2'] == 3
    assert account.step({'b': 2})['prefix'] == 62 and account.lost['prefix'] == 63 + 62


def test_a_new_segment_costs_nothing_by_itself():
    account = six()
    assert set(account.step({'g': 64}).values()) == {0}
    assert account.step({'f': 1}) == {
        'blocks of 1': 32, 'blocks of 2': 32, 'blocks of 64': 96, 'prefix': 96
    }  # fmt: skip


def test_no_change_costs_nothing():
    account = six()
    account.step({})
    assert set(account.lost.values()) == {0}


def test_a_removal_of_an_unknown_segment_costs_nothing():
    account = six()
    account.step({'x': None})
    assert set(account.lost.values()) == {0}


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match='blocks must be >= 1'):
        Invalidation((0,))


@given(
    st.lists(
        st.dictionaries(st.sampled_from('abcdefgh'), st.integers(0, 9), max_size=4), max_size=8
    )
)
def test_larger_blocks_never_cost_less(steps):
    account = Invalidation((1, 2, 4, 8, 1000))
    for changes in steps:
        account.step(changes)
    costs = [account.lost[f'blocks of {n}'] for n in (1, 2, 4, 8, 1000)]
    assert costs == sorted(costs) and costs[-1] == account.lost['prefix']


def test_changes_may_be_noted_one_by_one_until_the_step_ends():
    one, other = Invalidation((2,)), Invalidation((2,))
    for made in (one, other):
        made.step({'a': 10, 'b': 20, 'c': 30})
    one.note('b', 7)
    one.note('guest', 5)
    one.note('guest', None)  # added and removed within the step
    one.note('b', 21)
    one.note('c', None)
    assert one.end() == other.step({'b': 21, 'c': None})
    assert one.lost == other.lost and set(one.end().values()) == {0}
