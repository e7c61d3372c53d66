"""Pages of patches, some of which hold a code: needles in a haystack that looks like them.

A code has a colour and three digits. Each digit is drawn in its own patch anywhere on the page, in
that colour, with one, two or three dots that mark its position in the code. Any other patch is
blank, or has a grey digit with dots (a value without a colour), or a coloured letter (a colour
without a value). This module knows numpy and pixels. It knows neither words nor a model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from embodied_kv.demo.sim.scene import COLOURS

PATCH = 8  # pixels of a patch's side
DIGITS = 3  # of a code
NEEDLES = len(COLOURS) * DIGITS  # patches of a page that hold codes
# Rows of 3 pixels, each an octal digit, from the top.
NUMERALS = '75557 26227 71747 71717 55711 74717 74757 71122 75757 75717'.split()
LETTERS = '25755 74447 74647 74644 55755 55655 44447 75744 72222 55557 55255 55222'.split()
PAPER, GREY = 235, 90
NOISE, JITTER = 14, 18  # largest change of a pixel, and of a patch's ink; uniform


def _stamps() -> tuple[np.ndarray, np.ndarray]:
    """Return glyphs, bool [10 digits + letters + blank, 8, 8], and 0 to 3 dots, bool [4, 8, 8]."""
    glyphs = np.zeros((len(NUMERALS) + len(LETTERS) + 1, PATCH, PATCH), bool)
    for glyph, rows in zip(glyphs, NUMERALS + LETTERS, strict=False):
        bits = [[int(row) >> bit & 1 for bit in (2, 1, 0)] for row in rows]
        glyph[1:6, 4:7] = bits
    dots = np.zeros((DIGITS + 1, PATCH, PATCH), bool)
    for count in range(DIGITS + 1):
        dots[count, 1 : 2 * count : 2, 1] = True
    return glyphs, dots


GLYPHS, DOTS = _stamps()
BLANK = len(GLYPHS) - 1
INKS = np.array([*(255 * np.array(list(COLOURS.values()))), [GREY] * 3], np.float32)


@dataclass(frozen=True, eq=False)
class Pages:
    """B pages of side x side patches, of which k are shown; the others are not processed.

    cells: uint8 [B, k, 8, 8, 3], the patches that are shown. shown: int64 [B, k], which those are,
    ascending, row-major. kinds: int64 [B, k, 3], content of each: index in GLYPHS, DOTS and INKS.
    codes: int64 [B, colours, 3], digits, in the order of COLOURS. at: the patch of each digit, of
    the same shape.
    """

    side: int
    cells: np.ndarray
    shown: np.ndarray
    kinds: np.ndarray
    codes: np.ndarray
    at: np.ndarray

    def images(self) -> np.ndarray:
        """Return uint8 [B, 8 * side, 8 * side, 3]; patches that are not shown are white."""
        count, side = len(self.cells), self.side
        pages = np.full((count, side * side, *self.cells.shape[2:]), 255, np.uint8)
        np.put_along_axis(pages, self.shown[..., None, None, None], self.cells, 1)
        squares = pages.reshape(count, side, side, PATCH, PATCH, 3).swapaxes(2, 3)
        return squares.reshape(count, PATCH * side, PATCH * side, 3)


def draw_pages(rng: np.random.Generator, count: int, side: int, shown: int) -> Pages:
    """Draw pages. Raises ValueError if `shown` is too small for the codes, or too large."""
    patches = side * side
    if not NEEDLES <= shown <= patches:
        raise ValueError(f'{shown} of {patches} patches are shown: the codes take {NEEDLES}')
    where = np.sort(rng.random((count, patches)).argsort(1)[:, :shown], axis=1)
    kind = rng.integers(3, size=(count, shown))
    digit = rng.integers(10, size=(count, shown))
    letter = rng.integers(len(NUMERALS), BLANK, size=(count, shown))
    glyph = np.choose(kind, [BLANK, digit, letter])
    dots = np.where(kind == 1, rng.integers(1, DIGITS + 1, size=(count, shown)), 0)
    ink = np.where(kind == 2, rng.integers(len(COLOURS), size=(count, shown)), len(COLOURS))

    needles = np.arange(NEEDLES)[None]
    cells = rng.random((count, shown)).argsort(1)[:, :NEEDLES]
    np.put_along_axis(glyph, cells, np.take_along_axis(digit, cells, 1), 1)
    np.put_along_axis(dots, cells, needles % DIGITS + 1, 1)
    np.put_along_axis(ink, cells, needles // DIGITS, 1)

    colour = INKS[ink] + rng.uniform(-JITTER, JITTER, (count, shown, 3))
    stamp = (GLYPHS[glyph] | DOTS[dots])[..., None]
    noise = rng.integers(-NOISE, NOISE + 1, (count, shown, PATCH, PATCH, 3), np.int16)
    drawn = np.where(stamp, colour[:, :, None, None].astype(np.int16), PAPER) + noise
    return Pages(
        side=side,
        cells=drawn.clip(0, 255).astype(np.uint8),
        shown=where,
        kinds=np.stack([glyph, dots, ink], -1),
        codes=np.take_along_axis(digit, cells, 1).reshape(count, -1, DIGITS),
        at=np.take_along_axis(where, cells, 1).reshape(count, -1, DIGITS),
    )
