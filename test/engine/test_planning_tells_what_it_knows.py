"""A memory answers queries and reports its statistics."""

from planning_cases import QUESTION, TABLE, filled


def test_the_nearest_come_first(tmp_path):
    with filled(tmp_path, min_group_similarity=0.9) as planning:
        found = planning.query('green ball', 2)
        assert [match.segment.id for match in found] == ['green ball', 'task 1']
        assert found[0].score >= found[1].score > 0 and not found[0].static
        assert [m.segment.id for m in planning.query('green ball', kind='agent')] == ['robot']
        planning.advance(2)
        assert all(match.static for match in planning.query('green ball'))


def test_without_a_question_they_come_as_they_came(tmp_path):
    with filled(tmp_path) as planning:
        assert [match.segment.id for match in planning.query('')] == [id for id, _, _ in TABLE]
        assert len(planning.query('', 3)) == 3 and planning.query('', 0) == ()


def test_numbers_say_what_happened(tmp_path):
    with filled(tmp_path, min_group_similarity=-1.0) as planning:
        stats = planning.stats()
        assert (stats.segments, stats.static, stats.dynamic, stats.units) == (5, 0, 1, 5)
        assert (stats.kept, stats.bytes, stats.plans, stats.step) == (0, 0, 0, 0)
        planning.plan(QUESTION, method='full_reuse')
        planning.plan(QUESTION, method='full_reuse')
        stats = planning.stats()
        per_token = planning.row.arena.bytes_per_token * 4
        assert stats.bytes == per_token * sum(
            planning.memory.groups.tokens(id) for id, *_ in TABLE
        )
        assert (stats.kept, stats.plans, stats.fresh) == (5, 2, 5)
        assert (stats.hits, stats.misses) == (20, 20) and stats.cached_bytes == stats.bytes
        planning.advance(2)
        stats = planning.stats()
        assert (stats.static, stats.dynamic, stats.units, stats.step) == (1, 0, 1, 2)
        assert stats.transitions == {'static': 1, 'dynamic': 0, 'merged': 0, 'left': 0}
