"""Any number of snapshots of one engine step without a name are kept, with distinct names."""

from capsule_sessions import begin, capsules_of

from embodied_kv.capsule.tiers import Tier


def test_several_snapshots_of_one_boundary_have_names_of_their_own(make_engine, observe):
    engine = make_engine()
    begin(engine, observe(1))
    capsules = capsules_of(engine)
    names = [capsules.snapshot('', tier=Tier.HOST)[0].name for _ in range(3)]
    boundary = f'{engine.kv.frames.process_id[:8]}-{engine.committed}'
    assert names == [boundary, f'{boundary}-2', f'{boundary}-3']
    assert set(names) == capsules.registry.names()


def test_a_name_that_is_free_again_is_used_again(make_engine, observe):
    engine = make_engine()
    begin(engine, observe(1))
    capsules = capsules_of(engine)
    first = capsules.snapshot('')[0].name
    capsules.registry.drop(first)
    assert capsules.snapshot('')[0].name == first
