"""The result of a demo run in five or six sentences; each number is in report.json."""

from __future__ import annotations

from collections.abc import Mapping


def summarize(report: Mapping) -> dict[str, str]:
    """Return a sentence on tasks, words, timing, memory, mission and, if there was one, recall.

    report: report.json.
    """
    recall = report['recall']
    return {
        'tasks': _tasks(report),
        'words': _words(report['words right']),
        'timing': _timing(report),
        'memory': _memory(report['memory']),
        'mission': _mission(report['mission']),
        **({} if 'refused' in recall else {'recall': _recall(recall)}),
    }


def _tasks(report: Mapping) -> str:
    counts, tasks = report['tasks done'], report['tasks']
    line = f'The robot did {counts["done"]} of {_many(counts["told"], "task")} given in words'
    if counts['failed']:
        line += f'; {_many(counts["failed"], "task")} took too long'
    if reasons := [task['replaced'] for task in tasks if task['replaced']]:
        line += f'; {counts["replaced"]} became impossible ({", ".join(reasons)})'
    if unfinished := sum(task['done'] is None for task in tasks):
        line += f'; {unfinished} more had not ended when the time was up'
    random = report['weights'] == 'random'
    return f'{line}. The weights are random, so none was expected.' if random else f'{line}.'


def _words(words: Mapping) -> str:
    right = [question['right'] for question in words['questions']]
    answered = sum(one is not None for one in right)
    said = [
        f'{words[key]["exact"]} of {_many(words[key]["of"], key)}'
        for key in ('subtask', 'narration')
        if words[key]['of']
    ]
    line = f'{" and ".join(said)} matched the frame' if said else 'The robot had no time to speak'
    if answered:
        line += f'; {sum(map(bool, right))} of {_many(answered, "answer")} were right'
    if unanswered := len(right) - answered:
        line += f'; {_many(unanswered, "question")} had no answer'
    return f'{line}.'


def _timing(report: Mapping) -> str:
    counts, age = report['counts'], report['ms']['age']
    missed = counts['deadlines missed']
    line = f'{missed or "None"} of {_many(counts["commands"], "command")} missed its deadline'
    if missed > 1:
        line = line.replace('its deadline', 'their deadlines')
    if age:
        line += f'; the slowest action followed its camera frame after {age["max"]:.0f} ms'
    return f'{line}.'


def _memory(memory: Mapping) -> str:
    if not memory.get('answer'):
        return f'No answer: {memory.get("refused") or "the memory node did not answer in time"}.'
    answer = f'“{memory["question"]}” was answered from memory with “{memory["answer"]}”'
    return f'{answer}, which is {_judged(memory)}.'


def _mission(mission: Mapping) -> str:
    if 'refused' in mission:
        return f'No mission was given: {mission["refused"]}.'
    done = 'was carried out' if mission['done'] else 'was not carried out'
    line = f'“{mission["told"]}” {done} in {_many(len(mission["steps"]), "step")}'
    if not mission['said']:
        return f'{line}: {mission["message"]}.'
    return f'{line}. The robot said “{mission["said"][-1]}”, which is {_judged(mission)}.'


def _recall(recall: Mapping) -> str:
    done = 'was carried out' if recall['done'] else 'was not carried out'
    return (
        f'After a kill and {recall["stopped"]:.0f} s without a process, “{recall["told"]}” {done}.'
    )


def _judged(found: Mapping) -> str:
    return 'right' if found['right'] else f'wrong (right: “{found["truth"]}”)'


def _many(count: int, noun: str) -> str:
    return f'{count} {noun}' if count == 1 else f'{count} {noun}s'
