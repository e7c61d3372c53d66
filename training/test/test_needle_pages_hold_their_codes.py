"""The labels of a page match what is drawn on it, and nothing else on it looks like a code."""

import numpy as np
import pytest

from training.needle.pages import (
    BLANK,
    DOTS,
    GLYPHS,
    INKS,
    NOISE,
    PAPER,
    PATCH,
    draw_pages,
)

SIDE = 12
GREY = len(INKS) - 1


@pytest.fixture(scope='module')
def pages():
    return draw_pages(np.random.default_rng(0), count=5, side=SIDE, shown=SIDE * SIDE)


def read(patch):
    """Return (glyph, dots, ink) of a patch of pixels [8, 8, 3]; ink None if nothing is drawn."""
    drawn = (np.abs(patch.astype(int) - PAPER) > 2 * NOISE).any(-1)
    left, right = drawn.copy(), drawn.copy()
    left[:, 3:], right[:, :3] = False, False
    (glyph,) = np.flatnonzero((right == GLYPHS).all((1, 2)))
    (dots,) = np.flatnonzero((left == DOTS).all((1, 2)))
    ink = None
    if drawn.any():
        ink = int(np.abs(INKS - patch[drawn].mean(0)).sum(1).argmin())
    return int(glyph), int(dots), ink


def patches_of(image):
    """Return the patches [patches, 8, 8, 3] of an image, row-major."""
    squares = image.reshape(SIDE, PATCH, SIDE, PATCH, 3).swapaxes(1, 2)
    return squares.reshape(-1, PATCH, PATCH, 3)


def test_each_digit_is_where_it_is_said_to_be(pages):
    for image, codes, at in zip(pages.images(), pages.codes, pages.at, strict=True):
        patches = patches_of(image)
        for colour, (code, places) in enumerate(zip(codes, at, strict=True)):
            for n, (digit, place) in enumerate(zip(code, places, strict=True)):
                assert read(patches[place]) == (digit, n + 1, colour)


def test_kinds_are_what_is_drawn(pages):
    for cells, kinds in zip(pages.cells, pages.kinds, strict=True):
        for cell, (glyph, dots, ink) in zip(cells, kinds, strict=True):
            assert read(cell) == (glyph, dots, ink if glyph != BLANK else None)


def test_no_other_patch_is_a_digit_in_colour(pages):
    for image, at in zip(pages.images(), pages.at, strict=True):
        kinds = [read(patch) for patch in patches_of(image)]
        coloured = [i for i, (_, dots, ink) in enumerate(kinds) if dots and ink != GREY]
        assert coloured == sorted(at.flatten())
        grey = [kind for kind in kinds if kind[1] and kind[2] == GREY]
        letters = [kind for kind in kinds if not kind[1] and kind[2] is not None]
        assert len(grey) > 10 and len(letters) > 10
        assert all(glyph >= 10 and ink < GREY for glyph, _, ink in letters)


def test_codes_lie_among_the_patches_that_are_shown():
    pages = draw_pages(np.random.default_rng(1), count=4, side=SIDE, shown=30)
    assert pages.codes.shape == pages.at.shape == (4, 7, 3)
    assert (np.diff(pages.shown) > 0).all()
    for image, shown, at in zip(pages.images(), pages.shown, pages.at, strict=True):
        assert set(at.flatten()) <= set(shown)
        hidden = np.delete(patches_of(image), shown, axis=0)
        assert (hidden == 255).all()


def test_a_seed_draws_the_same_pages_and_another_draws_others(pages):
    again, other = (draw_pages(np.random.default_rng(s), 5, SIDE, SIDE * SIDE) for s in (0, 1))
    assert np.array_equal(pages.cells, again.cells) and np.array_equal(pages.at, again.at)
    assert not np.array_equal(pages.codes, other.codes)


@pytest.mark.parametrize('shown', [20, 145])
def test_codes_without_room_are_refused(shown):
    with pytest.raises(ValueError, match=f'{shown} of 144 patches are shown: the codes take 21'):
        draw_pages(np.random.default_rng(0), 1, SIDE, shown)
