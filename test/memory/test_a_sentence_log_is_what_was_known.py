"""The bytes of a sentence log are a snapshot that later changes do not modify."""

from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.memory import sentence_log
from embodied_kv.memory.sentence_log import SentenceLog, sentences

CHANGES = st.lists(
    st.dictionaries(st.sampled_from('abcd'), st.none() | st.text(max_size=9), max_size=3),
    max_size=20,
)


@given(CHANGES, st.integers(1, 100))
def test_each_moment_is_kept(changes, spare):
    before, sentence_log.SPARE = sentence_log.SPARE, spare
    try:
        log, known, taken = SentenceLog(), {}, []
        for change in changes:
            log.put(change)
            known = {id: text for id, text in (known | change).items() if text is not None}
            taken.append((log.bytes, known))
        assert all(sentences(then) == told for then, told in taken)
        assert len(log.bytes) <= 2 * sum(map(len, log._live.values())) + spare
    finally:
        sentence_log.SPARE = before
