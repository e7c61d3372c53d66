"""The contents of report.json."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rclpy.utilities import get_rmw_implementation_identifier

from embodied_kv.control.command import FRESH, SOURCES
from embodied_kv.demo.director import Director, GivenTask, SceneQuestion
from embodied_kv.demo.monitor import Monitor, StreamText
from embodied_kv.demo.score import Score

LAST = 20  # streams in the report


def report(monitor: Monitor, director: Director, score: Score) -> dict[str, object]:
    """Return counts, rates per second, durations in ms, tasks and texts."""
    seconds = max(monitor.seconds, 1e-9)
    fresh = [c for c in monitor.commands if SOURCES[c.source] == FRESH]
    streams = monitor.streams.values()
    judged = director.judged
    return {
        'weights': monitor.weights,
        'seconds': round(seconds, 2),
        'tasks done': {
            'done': sum(bool(told.done) for told in judged),
            'failed': sum(told.failed for told in judged),
            'replaced': sum(bool(told.replaced) for told in judged),
            'told': len(judged),
        },
        'tasks': [_task(told, monitor.since_began(told.stamp)) for told in director.told],
        'words right': {
            **score.report(),
            'questions': [
                _question(q, monitor.since_began(q.stamp), monitor.streams.get(q.stream))
                for q in director.questions
            ],
        },
        'counts': {
            'frames': monitor.frames,
            'commands': len(monitor.commands),
            **Counter(SOURCES[c.source] for c in monitor.commands),
            'deadlines missed': monitor.missed,
            'streams': len(streams),
            'tokens': monitor.tokens,
        },
        'per second': {
            'frames': round(monitor.frames / seconds, 2),
            'commands': round(len(monitor.commands) / seconds, 2),
            'tokens': round(monitor.tokens / seconds, 2),
        },
        'ms': {
            'prefill': percentiles(c.prefill_ms for c in fresh),
            'denoise': percentiles(c.denoise_ms for c in fresh),
            'age': percentiles(c.age * 1e3 for c in fresh),
        },
        'euler steps': round(float(np.mean([c.steps for c in fresh] or [0])), 2),
        'streams ended': dict(Counter(words.reason or 'alive' for words in streams)),
        'words': [asdict(words) for words in list(streams)[-LAST:]],
        'kv': _fields(monitor.stats),
        'diagnostics': monitor.diagnostics,
        'machine': machine(),
    }


def percentiles(values: Iterable[float]) -> dict[str, float]:
    """Return p50, p90, p99 and max; {} without values."""
    values = list(values)
    if not values:
        return {}
    names = {'p50': 50, 'p90': 90, 'p99': 99, 'max': 100}
    return {name: round(float(np.percentile(values, p)), 2) for name, p in names.items()}


def machine() -> dict[str, object]:
    cpu = platform.processor()
    if (info := Path('/proc/cpuinfo')).exists():
        names = [line for line in info.read_text().splitlines() if line.startswith('model name')]
        cpu = names[0].partition(': ')[2] if names else cpu
    return {
        'cpu': cpu,
        'cores': len(os.sched_getaffinity(0)),
        'load average': os.getloadavg()[0],
        'system': platform.platform(),
        'python': platform.python_version(),
        'ros': os.environ.get('ROS_DISTRO', 'unknown'),
        'rmw': get_rmw_implementation_identifier(),
    }


def _task(told: GivenTask, at: float) -> dict[str, object]:
    return {
        'at': round(at, 2),
        'instruction': told.instruction,
        'family': told.task.family,
        'scene': told.scene,
        'done': told.done,
        'wrong': told.wrong,
        'replaced': told.replaced,
        'seconds': round(told.seconds, 2),
    }


def _question(question: SceneQuestion, at: float, words: StreamText | None) -> dict[str, object]:
    """Return the entry of a question. right: None without a complete answer."""
    answer = words.text.strip() if words else ''
    whole = words is not None and words.is_whole
    return {
        'at': round(at, 2),
        'asked': question.text,
        'answer': answer,
        'truth': question.truth,
        'right': question.is_right(answer) if whole else None,
        'refused': question.refused,
    }


def _fields(message: Any) -> dict[str, object]:
    return {name: getattr(message, name) for name in message.get_fields_and_field_types()}
