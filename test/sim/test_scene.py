"""Scenes keep to their ranges, differ by seed, and impossible ranges are refused."""

import numpy as np
import pytest

from embodied_kv.sim.scene import RECEPTACLES, SceneConfig, draw_scene


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
        ({'objects': (5, 3)}, 'objects: 5 is above 3'),
        ({'objects': (3, 9)}, '9'),
        ({'objects': (7, 7), 'receptacles': (1, 1)}, 'receptacles'),
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
