"""KV that is dropped between its retrieval and its load costs a retry, but not the plan."""

import errno
import logging
from threading import Thread

import pytest
from planning_cases import QUESTION, TABLE, filled, open_planning, said

from embodied_kv.memory.files import KvFiles
from embodied_kv.memory.segment import RobotMemoryError
from embodied_kv.planning.planning import RETRIES


def meddle(planning, with_load):
    """Call with_load(n) before the n-th load, which happens during a prefill."""
    load, count = planning.memory.store.load_memory, 0

    def loading(unit, layer):
        nonlocal count
        count += 1
        with_load(count)
        return load(unit, layer)

    planning.row._prefill._load = loading


def test_a_change_meanwhile_is_in_the_plan(tmp_path):
    with filled(tmp_path) as planning:
        planning.warm()
        new = ('red cube', 'object', 'red cube: in the blue bin')
        meddle(planning, lambda n: planning.upsert(new) if n == 2 else None)
        plan = planning.plan(QUESTION, method='full_reuse')
        assert (plan.retries, plan.fresh) == (1, 1)
        wanted = planning.plan(QUESTION, method='full_reuse')
        assert (wanted.retries, wanted.fresh) == (0, 0) and said(plan) == said(wanted)


def test_a_removal_meanwhile_is_in_the_plan(tmp_path):
    with filled(tmp_path) as planning:
        planning.warm()
        gone = iter(['red cube'])
        meddle(planning, lambda n: planning.remove(next(gone)) if n == 1 else None)
        plan = planning.plan(QUESTION, method='full_reuse')
        assert plan.retries == 1 and 'red cube' not in plan.segments


def test_memory_that_never_stands_still_is_planned_from_its_text(tmp_path):
    with filled(tmp_path) as planning:
        meddle(planning, lambda n: planning.upsert(*changed(n)))
        plan = planning.plan(QUESTION, method='full_reuse')
        assert plan.retries == RETRIES and not any(plan.loaded)
        assert plan.computed_share == 1.0
        assert plan.text == planning.plan(QUESTION, method='full').text


def changed(n):
    return [(id, kind, f'{text} {n}') for id, kind, text in TABLE]


def test_a_damaged_file_is_computed_anew(tmp_path):
    with filled(tmp_path) as planning:
        wanted = planning.plan(QUESTION)
    path = max(tmp_path.glob('*.safetensors'))
    path.write_bytes(path.read_bytes()[:-1] + b'\x55')
    path.with_name('1.safetensors').unlink()
    with filled(tmp_path) as planning:
        plan = planning.plan(QUESTION, method='full_reuse')
        # One retry, for the damaged file: opening the folder showed that the other is missing.
        assert (plan.retries, plan.text) == (1, planning.plan(QUESTION, method='full_reuse').text)
        assert said(planning.plan(QUESTION)) == said(wanted)


def test_segments_from_a_time_of_longer_ones_are_passed_over(tmp_path):
    with filled(tmp_path) as planning:
        planning.upsert(('tale', 'note', 'green ball ' * 30))
        assert 'tale' in planning.plan(QUESTION).segments
        planning.memory.store.forget_kv(*planning.memory.store.keys())
    with open_planning(tmp_path, max_context_tokens=200) as planning:
        assert planning.warm() == len(TABLE)
        assert 'tale' not in planning.plan(QUESTION).segments


def test_writers_and_a_planner_at_once(tmp_path):
    failed = []

    def write(planning, name):
        try:
            for n in range(30):
                planning.upsert((f'{name} {n % 3}', 'note', f'{name}: was at table {n}'))
                planning.query(name)
                if n % 5 == 4:
                    planning.remove(f'{name} {n % 3}')
                    planning.advance()
        except Exception as error:
            failed.append(error)

    with filled(tmp_path) as planning:
        threads = [Thread(target=write, args=(planning, name)) for name in ('left', 'right')]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert planning.plan(QUESTION, method='full_reuse').text
        assert not failed
        planning.memory.groups.check_integrity()
        wanted = planning.plan(QUESTION)
    with open_planning(tmp_path) as planning:
        assert said(planning.plan(QUESTION)) == said(wanted)


def test_a_full_disk_costs_no_plan(tmp_path, monkeypatch, caplog):
    def full(self, number, kv):
        raise RobotMemoryError('the disk is full') from OSError(errno.ENOSPC, 'full')

    with filled(tmp_path) as planning:
        wanted = planning.plan(QUESTION, method='full')
        monkeypatch.setattr(KvFiles, 'write', full)
        with caplog.at_level(logging.WARNING):
            plan = planning.plan(QUESTION, method='full_reuse')
        assert plan.text == wanted.text and plan.computed_share == 1.0
        assert 'plan is computed without stored KV (reason: the disk is full' in caplog.text
        with pytest.raises(RobotMemoryError, match='the disk is full'):
            planning.warm()
