"""Scenes stay within their ranges and differ by seed; impossible ranges are refused."""

import numpy as np
import pytest

from embodied_kv.demo.sim.scene import RECEPTACLES, SceneConfig, draw_scene
from embodied_kv.demo.sim.tasks import FAMILIES, task_scene


def draw(seed: int, config: SceneConfig | None = None):
    return draw_scene(config or SceneConfig(), np.random.default_rng(seed))


def test_things_keep_count_area_and_clearance():
    config = SceneConfig()
    for seed in range(50):
        things = draw(seed, config).things
        fixed = [t for t in things if t.shape in RECEPTACLES]
        assert 3 <= len(things) - len(fixed) <= 5 and len(fixed) <= 1
        assert len({t.colour for t in things}) == len(things)
        for i, a in enumerate(things):
            assert config.x[0] <= a.position[0] <= config.x[1]
            assert config.y[0] <= a.position[1] <= config.y[1]
            for b in things[:i]:
                gap = np.hypot(*np.subtract(a.position, b.position)) - a.radius - b.radius
                assert gap >= config.clearance


def test_seeds_cover_every_count_colour_and_shape():
    scenes = [draw(seed) for seed in range(60)]
    assert {len(s.things) for s in scenes} == {3, 4, 5, 6}
    assert {t.colour for s in scenes for t in s.things} == set(SceneConfig().colours)
    assert {t.shape for s in scenes for t in s.things} == {'cube', 'cylinder', 'plate', 'bin'}


@pytest.mark.parametrize(
    ('family', 'seed', 'first', 'last'),
    [
        ('reach', 2_000_000, ('red cube', 0.3137, -0.1912), ('orange cube', 0.5145, 0.1641)),
        (
            'next',
            2_000_001,
            ('yellow cylinder', 0.4992, -0.0168),
            ('blue cylinder', 0.4699, 0.082),
        ),
        ('put', 2_000_000, ('blue plate', 0.3137, -0.1912), ('orange cube', 0.4947, -0.2099)),
        ('put', 2_000_001, ('cyan plate', 0.4992, -0.0168), ('blue cylinder', 0.3302, -0.131)),
    ],
)
def test_scenes_of_the_evaluation_are_those_that_figures_were_measured_on(
    family, seed, first, last
):
    things = draw(seed, task_scene(family)).things
    for thing, (name, *at) in ((things[0], first), (things[-1], last)):
        assert thing.name == name
        np.testing.assert_allclose(thing.position, at, atol=1e-4)


@pytest.mark.parametrize('family', FAMILIES)
def test_what_is_put_away_stands_within_its_receptacle_and_apart(family):
    counts = set()
    for seed in range(60):
        things = draw(seed, task_scene(family, crowded=True, put_away=(1, 4))).things
        away = [t for t in things if t.floor]
        counts.add(len(away))
        for thing in away:
            at = np.array(thing.position)
            place = min(
                (t for t in things if t.shape in RECEPTACLES),
                key=lambda t: np.hypot(*np.subtract(t.position, at)),
            )
            assert thing.floor == {'bin': 0.006, 'plate': 0.010}[place.shape]
            assert np.hypot(*np.subtract(place.position, at)) < 0.065 - thing.radius / 2
            others = [t for t in away if t is not thing]
            assert all(np.hypot(*np.subtract(t.position, at)) > 0.04 for t in others)
    assert counts == {1, 2, 3, 4}


def test_same_seed_gives_the_same_scene_and_other_seeds_do_not():
    assert draw(7) == draw(7)
    assert draw(7) != draw(8)


def test_without_jitter_light_camera_and_colours_are_fixed():
    config = SceneConfig(
        colour_jitter=0, light_jitter=0, camera_jitter=0, fovy_jitter=0, arm_jitter=0
    )
    a, b = draw(1, config), draw(2, config)
    for name in ('table', 'light_from', 'light', 'ambient', 'eye', 'target', 'fovy', 'gripper'):
        assert getattr(a, name) == getattr(b, name)
    assert a.fovy == {'front': 38.0, 'wrist': 75.0}


def test_colours_may_repeat_but_never_the_pair_of_colour_and_shape():
    config = SceneConfig(
        objects=(4, 4), receptacles=(0, 0), colours=('red', 'blue'), distinct_colours=False
    )
    for seed in range(10):
        names = [t.name for t in draw(seed, config).things]
        assert sorted(names) == ['blue cube', 'blue cylinder', 'red cube', 'red cylinder']


@pytest.mark.parametrize(
    ('ranges', 'message'),
    [
        ({'colours': ('red', 'pink')}, 'pink'),
        ({'shapes': ('cone',)}, 'cone'),
        ({'objects': (5, 3)}, r'objects must be \(low, high\) \(got 5, 3\)'),
        ({'objects': (3, 9)}, '9'),
        ({'objects': (7, 7), 'receptacles': (1, 1)}, 'receptacles'),
        ({'put_away': (-1, 0)}, 'put_away'),
        ({'image_size': 0}, 'image_size'),
    ],
)
def test_impossible_ranges_are_refused(ranges, message):
    with pytest.raises(ValueError, match=message):
        SceneConfig(**ranges)


def test_a_table_too_small_is_refused_in_words():
    config = SceneConfig(objects=(5, 5), x=(0.3, 0.32), y=(0.0, 0.02))
    with pytest.raises(ValueError, match='do not fit'):
        draw(0, config)
