"""Any number of snapshots of one engine step without a name are kept, with distinct names."""

from capsule_sessions import at_once, begin, capsules_of

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


def test_a_name_is_searched_for_outside_the_engine_thread(make_engine, observe, monkeypatch):
    """Names of capsules are read from the disk, which may be slow."""
    engine = make_engine()
    begin(engine, observe(1))
    capsules, on_engine, searched = capsules_of(engine), [False], []

    def call(work):
        on_engine[0] = True
        try:
            return at_once(work)
        finally:
            on_engine[0] = False

    capsules._call = call
    is_taken = type(capsules.registry).__contains__

    def contains(registry, name):
        searched.append(on_engine[0])
        return is_taken(registry, name)

    monkeypatch.setattr(type(capsules.registry), '__contains__', contains)
    capsules.snapshot('')
    assert searched and not any(searched)
