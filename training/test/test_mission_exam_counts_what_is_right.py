"""The mission exam asks for every step; a mission counts only if all its answers are right."""

from training.planner.mission_exam import (
    REFUSED,
    ask_unknown_words,
    plan_missions,
    report,
)
from training.planner.missions import KINDS

RECORDS = (5, 20)


def test_the_first_wrong_answer_ends_a_mission():
    found = list(plan_missions(lambda texts, question: 'nothing', 3, RECORDS, seed=0))
    assert [len(one.turns) for one in found] == [1, 1, 1]
    assert [one.mission.parts[0].kind for one in found] == list(KINDS[:3])
    _, cells = report(found)
    assert cells['all missions'] == cells['all answers'] == 0


def test_who_answers_as_the_rules_do_is_right_to_the_end():
    rules = list(plan_missions(None, 14, RECORDS, seed=1))
    answers = iter([turn.right.text for one in rules for turn in one.turns])
    asked = []

    def ask(texts, question):
        asked.append((texts, question))
        return next(answers)

    found = list(plan_missions(ask, 14, RECORDS, seed=1))
    turns = [turn for one in found for turn in one.turns]
    for (texts, question), turn in zip(asked, turns, strict=True):
        assert sorted(texts) == sorted(fact.text for fact in turn.table.facts())
        assert question.endswith('say') or f'part {turn.progress.part + 1}' in question
    table, cells = report(found)
    assert set(cells.values()) == {100.0}
    assert f'{"all missions":28}  100.0     14' in table
    assert {'answer done', 'part undo', 'missions up to 20 records'} <= cells.keys()


def test_answers_are_counted_by_how_things_are_meant():
    found = list(plan_missions(None, 70, RECORDS, seed=3))
    table, cells = report(found)
    rows = {line[:28].strip(): int(line.split()[-1]) for line in table.splitlines()[1:]}
    meant = {'by colour or shape', 'by where they are', 'by what is not meant'}
    assert meant <= cells.keys() and all(0 < rows[row] < rows['all answers'] for row in meant)


def test_words_that_nobody_knows_are_right_where_they_are_refused():
    unknown = list(ask_unknown_words(lambda texts, question: REFUSED, 7, RECORDS, seed=2))
    assert len({question for question, _ in unknown}) == 7
    assert report([], unknown)[1]['unknown words'] == 100.0
    others = [(question, 'done') for question, _ in unknown[:3]] + unknown[3:]
    assert report([], others)[1]['unknown words'] == 57.14
