"""Images and prompts are those with which policies of this project are trained."""

import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate

from embodied_kv.model.processing.images import OWN_RESIZE
from embodied_kv.model.processing.prompt import OWN_PROMPT
from embodied_kv.model.tokenizer import Tokenizer

BYTES = Tokenizer.bytes()
STATE = np.linspace(-1, 1, 7, dtype=np.float32)


def prompt(instruction, state):
    ids, _ = OWN_PROMPT.tokens(BYTES, instruction, state, max_text=999)
    return BYTES.decode(ids)


def prompt_tokens(tokenizer, instruction, state, max_text):
    return OWN_PROMPT.tokens(tokenizer, instruction, state, max_text)


def picture(height, width):
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ('height', 'width'), [(480, 640), (640, 480), (100, 37), (10, 500), (1, 1)]
)
def test_resize_keeps_the_aspect_and_pads_the_centre_with_black(height, width):
    image, size = picture(height, width), 64
    resized = OWN_RESIZE.pad(image, size)
    ratio = max(height, width) / size
    inner = max(1, int(height / ratio)), max(1, int(width / ratio))
    top, left = (size - inner[0]) // 2, (size - inner[1]) // 2
    float_pixels = torch.from_numpy(image).permute(2, 0, 1)[None].float()
    expected = interpolate(float_pixels, inner, mode='bilinear', align_corners=False)[0]
    middle = resized[top : top + inner[0], left : left + inner[1]].astype(np.float32)
    assert np.abs(middle - expected.permute(1, 2, 0).numpy()).max() <= 1  # rounding to uint8
    border = resized.copy()
    border[top : top + inner[0], left : left + inner[1]] = 0
    assert resized.shape == (size, size, 3)
    assert not border.any()


def test_an_image_of_the_right_size_is_returned_as_it_is():
    image = picture(64, 64)
    np.testing.assert_array_equal(OWN_RESIZE.pad(image, 64), image)


@pytest.mark.parametrize(
    'image',
    [np.zeros((4, 4, 3), np.float32), np.zeros((4, 4), np.uint8), np.zeros((0, 4, 3), np.uint8)],
)
def test_input_that_is_not_an_image_is_refused(image):
    with pytest.raises(ValueError, match=r'expected uint8 \[H, W, 3\]'):
        OWN_RESIZE.pad(image, 8)


def test_present_views_become_pixels_in_minus_one_to_one():
    black, white = np.zeros((8, 8, 3), np.uint8), np.full((8, 8, 3), 255, np.uint8)
    white[2, 5] = 51, 102, 204
    pixels = OWN_RESIZE.to_model([black, None, white], 8)
    assert pixels.shape == (2, 3, 8, 8)
    assert pixels.dtype == torch.float32
    assert pixels[0].eq(-1).all()
    assert pixels[1, :, 0, 0].eq(1).all()
    torch.testing.assert_close(pixels[1, :, 2, 5], torch.tensor([51, 102, 204]) / 255 * 2 - 1)


def test_no_view_is_an_empty_batch():
    assert OWN_RESIZE.to_model([None, None], 8).shape == (0, 3, 8, 8)


def test_bins_equal_openpi_inside_and_end_at_0_and_255():
    state = np.array([-1, -0.999, 0, 0.5, 0.9999, 1, 3, -3, np.inf, -np.inf])
    inside = np.digitize(state[:6], np.linspace(-1, 1, 257)[:-1]) - 1
    assert OWN_PROMPT.bins(state).tolist() == [*inside, 255, 0, 255, 0]
    assert inside.tolist() == [0, 0, 128, 192, 255, 255]


def test_a_state_that_is_not_a_number_is_refused():
    with pytest.raises(ValueError, match='state 1 is NaN'):
        OWN_PROMPT.bins(np.array([0, np.nan]))


def test_the_prompt_is_spelt_as_openpi_spells_it():
    text = prompt('  pick_up\nthe cube ', np.array([-1.0, 0.0, 1.0]))
    assert text == 'Task: pick up the cube, State: 0 128 255;\nAction: '


def test_a_prompt_that_fits_is_whole():
    text = prompt('pick up the cube', STATE)
    ids, cut = prompt_tokens(BYTES, 'pick up the cube', STATE, max_text=len(text) + 1)
    assert (BYTES.decode(ids), ids[0], cut) == (text, BYTES.bos, False)


@pytest.mark.parametrize('instruction', ['x' * 10_000, 'pickupthecube', 'é世界🙂' * 90, ''])
def test_a_long_instruction_is_cut_and_the_state_survives(instruction):
    ending = prompt('', STATE).removeprefix('Task: ')
    limit = len(prompt('', STATE)) + 1 + 7
    ids, cut = prompt_tokens(BYTES, instruction, STATE, limit)
    text = BYTES.decode(ids)
    kept = text.removeprefix('Task: ').removesuffix(ending)
    assert len(ids) <= limit
    assert text.endswith(ending)
    assert instruction.startswith(kept)
    assert cut == bool(instruction)
    assert (
        len(prompt_tokens(BYTES, instruction[: len(kept) + 1], STATE, 999)[0]) > limit or not cut
    )


def test_a_limit_below_the_state_is_refused():
    with pytest.raises(ValueError, match='max_text 20 is too short'):
        prompt_tokens(BYTES, 'go', STATE, 20)
