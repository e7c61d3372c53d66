"""Stored KV stays within a bound on the disk, and plans are made as without it."""

from planning_cases import QUESTION, TABLE, filled


def sizes(folder):
    return [path.stat().st_size for path in folder.glob('*.safetensors')]


def test_plans_answer_the_same_within_any_bound(tmp_path):
    with filled(tmp_path / 'free') as planning:
        planning.warm()
        wanted = planning.plan(QUESTION, method='full_reuse')
        each, whole = max(sizes(tmp_path / 'free')), sum(sizes(tmp_path / 'free'))
    for most in (whole + len(TABLE) * 300, 2 * each, each // 2):
        folder = tmp_path / str(most)
        with filled(folder) as planning:
            planning.memory.store.limit(most)
            for _ in range(2):
                plan = planning.plan(QUESTION, method='full_reuse')
                assert plan.segments == wanted.segments and plan.text
                assert sum(sizes(folder)) <= most
            if most > whole:
                assert (plan.text, plan.fresh, plan.retries) == (wanted.text, 0, 0)
