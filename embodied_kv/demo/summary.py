"""What a run of the demo comes to, in six lines for somebody who has never seen one.

Knows report.json and English, nothing else: each number stands in the report.
"""

from __future__ import annotations

from collections.abc import Mapping


def summarize(report: Mapping) -> dict[str, str]:
    """What was asked, done, said, on time, remembered, and the mission. report: report.json's."""
    return {
        'asked': _asked(report),
        'done': _done(report),
        'said': _said(report['words right']),
        'on time': _on_time(report),
        'remembered': _remembered(report['memory']),
        'mission': _mission(report['mission']),
    }


def _asked(report: Mapping) -> str:
    questions = len(report['words right']['questions'])
    return f'{_many(len(report["tasks"]), "task")} in words, {_many(questions, "question")}'


def _done(report: Mapping) -> str:
    counts, tasks = report['tasks done'], report['tasks']
    line = f'{counts["done"]} of {_many(counts["told"], "task")}'
    if counts['failed']:
        line += f', {counts["failed"]} not done in time'
    if reasons := [task['replaced'] for task in tasks if task['replaced']]:
        line += f', {counts["replaced"]} replaced: {", ".join(reasons)}'
    if unfinished := sum(task['done'] is None for task in tasks):
        line += f', {unfinished} more not over at the end'
    random = report['weights'] == 'random'
    return f'{line}: the weights are random, none is expected' if random else line


def _said(words: Mapping) -> str:
    subtask, narration = words['subtask'], words['narration']
    right = [question['right'] for question in words['questions']]
    answered = sum(one is not None for one in right)
    line = (
        f'{subtask["exact"]} of {_many(subtask["of"], "subtask")} and '
        f'{narration["exact"]} of {_many(narration["of"], "narration")} true of their frame, '
        f'{sum(map(bool, right))} of {_many(answered, "answer")} right'
    )
    unanswered = len(right) - answered
    return f'{line}, {_many(unanswered, "question")} not answered' if unanswered else line


def _on_time(report: Mapping) -> str:
    counts, age = report['counts'], report['ms']['age']
    missed = counts['deadlines missed']
    late = f'{missed} of {counts["commands"]} deadlines missed' if missed else 'no deadline missed'
    fresh = _many(counts.get('fresh', 0), 'action')
    slowest = f' (slowest of {fresh} {age["max"]:.0f} ms after its frame)' if age else ''
    return f'{_many(counts["frames"], "frame")}, {late}{slowest}'


def _remembered(memory: Mapping) -> str:
    if not memory.get('answer'):
        return f'nothing: {memory.get("refused") or "no answer"}'
    true = '(true)' if memory['right'] else f'(not true: {memory["truth"]})'
    return f'“{memory["question"]}” “{memory["answer"]}” {true}'


def _mission(mission: Mapping) -> str:
    if 'refused' in mission:
        return f'none: {mission["refused"]}'
    done = 'done' if mission['done'] else 'not done'
    line = f'“{mission["told"]}” {done} in {_many(len(mission["steps"]), "step")}'
    if not mission['said']:
        return f'{line}: {mission["message"]}'
    true = '(true)' if mission['right'] else f'(not true: {mission["truth"]})'
    return f'{line}, said “{mission["said"][-1]}” {true}'


def _many(count: int, noun: str) -> str:
    return f'{count} {noun}' if count == 1 else f'{count} {noun}s'
