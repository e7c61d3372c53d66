"""Every verb refuses a capsule with edited facts, with a reason."""

import copy
from dataclasses import replace

import pytest
from capsule_sessions import begin, capsules_of

from embodied_kv.capsule.capsule import CapsuleError
from embodied_kv.engine.engine import Engine
from embodied_kv.engine_config import EngineConfig
from embodied_kv.session.engine_part import Branch

STREAM, QUERY, ROW = ('streams', 0), ('streams', 0, 'query'), ('rows', 0)
ODD = (None, True, -1, 2**70, 1.5, float('nan'), 'x', '\ud800', [], [None], {}, {'a': 1})
# Values that are valid in that place.
FINE = {
    'keep_ratio': (True,),
    'current': (None,),
    'action': (None,),
    'streams': ([],),
    'stamp': (-1,),
    'sequence': (-1,),
    'budgets': (None,),
    'scored': (None,),
    'text': ('x',),
    'temperature': (1.5, 2**70),
}
NAMES = [
    *((name,) for name in ('rows', 'current', 'action', 'streams', 'keep_ratio')),
    *((*ROW, name) for name in ('sequence', 'stamp', 'length', 'budgets', 'scored')),
    *((*STREAM, name) for name in ('row', 'query', 'tokens', 'said')),
    *((*QUERY, name) for name in ('text', 'ids', 'max_tokens', 'temperature', 'seed')),
    *((*STREAM, 'tokens', 0), (*QUERY, 'ids', 0), ROW, STREAM),
]
BEYOND = [
    ((*STREAM, 'row'), 9),
    ((*STREAM, 'tokens', -1), 10**6),
    ((*QUERY, 'ids', 0), 10**6),
    ((*QUERY, 'max_tokens'), 1),
    ((*QUERY, 'max_tokens'), 10**6),
    ((*STREAM, 'said'), 10**9),
    ((*ROW, 'length'), 0),
    ((*ROW, 'length'), 10**6),
    ((*ROW, 'budgets'), [-1, -1]),
    ((*ROW, 'budgets'), [0, 0]),
    (('current',), 9),
    (('action',), 0),
]


@pytest.fixture(scope='module')
def session(policy, observe):
    engine = Engine(policy, EngineConfig(rows=12, streams=8, time_budget=False))
    begin(engine, observe(1))
    capsules = capsules_of(engine)
    return capsules, capsules.snapshot('good')[0]


def edited(session, change):
    """Add a capsule whose facts `change` has edited, and return its name."""
    capsules, good = session
    facts = copy.deepcopy(dict(good.facts))
    change(facts['session'])
    name = f'c{len(capsules.registry.entries())}'
    capsules.registry.add(replace(good, name=name, facts=facts))
    return name


def setter(path, value):
    def change(facts):
        *where, last = path
        for key in where:
            facts = facts[key]
        facts[last] = value

    return change


def refuses(capsules, frozen_part):
    before = [stream.id for stream in capsules.engine_part.streams()]
    for verb in (
        lambda: capsules.engine_part.check_resumable(frozen_part),
        lambda: capsules.engine_part.replay(frozen_part),
    ):
        with pytest.raises(CapsuleError):
            verb()
    assert [stream.id for stream in capsules.engine_part.streams()] == before


@pytest.mark.parametrize('path', NAMES, ids=str)
@pytest.mark.parametrize('value', ODD, ids=ascii)
def test_an_odd_value_in_any_place_is_refused(session, path, value):
    if any(value is fine or value == fine for fine in FINE.get(path[-1], ())):
        pytest.skip('a session could have it')
    capsules, good = session
    frozen = capsules._frozen(good)['session']
    facts = copy.deepcopy(frozen.facts)
    setter(path, value)(facts)
    refuses(capsules, replace(frozen, facts=facts))


@pytest.mark.parametrize('path', [path for path in NAMES if isinstance(path[-1], str)], ids=str)
def test_a_missing_name_is_refused(session, path):
    def change(facts):
        *where, last = path
        for key in where:
            facts = facts[key]
        del facts[last]

    capsules, _ = session
    for verb in (capsules.rollback, capsules.replay, lambda n: capsules.fork(n, [Branch()])):
        with pytest.raises(CapsuleError, match='the names in'):
            verb(edited(session, change))


@pytest.mark.parametrize(('path', 'value'), BEYOND, ids=str)
def test_a_value_beyond_what_an_engine_holds_is_refused(session, path, value):
    capsules, _ = session
    with pytest.raises(CapsuleError):
        capsules.rollback(edited(session, setter(path, value)))


@pytest.mark.parametrize('name', ['row/0/state', 'row/0/k', 'stream/0/v'])
def test_a_missing_tensor_is_refused(session, name):
    capsules, good = session
    frozen = capsules._frozen(good)['session']
    tensors = {one: tensor for one, tensor in frozen.tensors.items() if one != name}
    refuses(capsules, replace(frozen, tensors=tensors))


def test_a_keep_ratio_that_changed_since_is_refused_while_a_stream_waits(make_engine, observe):
    engine = make_engine(language_keep_ratio=0.3, compression_after_tokens=4)
    begin(engine, observe(1), steps=0)
    capsules = capsules_of(engine)
    capsules.snapshot('here')
    engine.compression.set_keep_ratio('language', 0.5)
    with pytest.raises(CapsuleError, match='language_keep_ratio was 0.3 and is 0.5 here'):
        capsules.rollback('here')
    engine.compression.set_keep_ratio('language', 0.3)
    capsules.rollback('here')


def test_a_compressed_row_with_a_layer_without_tokens_is_refused(make_engine, observe):
    """Attention over no token ends the process."""
    engine = make_engine(language_keep_ratio=0.4)
    begin(engine, observe(1))
    capsules = capsules_of(engine)
    frozen = capsules._frozen(capsules.snapshot('good')[0])['session']
    facts, tensors = copy.deepcopy(frozen.facts), dict(frozen.tensors)
    compressed = [i for i, row in enumerate(facts['rows']) if row['budgets']]
    assert compressed
    for i in compressed:
        removed, facts['rows'][i]['budgets'][0] = facts['rows'][i]['budgets'][0], 0
        for kind in 'kv':
            tensors[f'row/{i}/{kind}'] = tensors[f'row/{i}/{kind}'][:, removed:]
    refuses(capsules, replace(frozen, facts=facts, tensors=tensors))
