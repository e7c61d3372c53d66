"""frames.png has a card for each task: its last frame before the verdict, in high resolution."""

from dataclasses import replace

import cv2
import numpy as np
import pytest
from demo_play import START, play

from embodied_kv.demo.director import SECOND
from embodied_kv.demo.draw_path import draw_path
from embodied_kv.demo.picture import SceneRenderer
from embodied_kv.demo.sim.tasks import task_scene
from embodied_kv.demo.storyboard import CARDS, draw_storyboard, make_cards

SIZE = 480


@pytest.fixture(scope='module')
def run():
    return play(1.5)


@pytest.fixture(scope='module')
def renderer():
    with SceneRenderer(task_scene('put'), SIZE) as renderer:
        yield renderer


def test_a_card_shows_the_last_frame_before_the_verdict(run, renderer):
    recording, told = run
    (card,) = make_cards(recording, [replace(told, done=True, seconds=0.73)], renderer)
    last = recording.decisions[6]  # the decision of 0.7 s was not ready yet
    assert card.seen is last.seen and card.seconds == pytest.approx(0.6)
    assert card.views['front'].shape == card.views['wrist'].shape == (SIZE, SIZE, 3)
    small = cv2.resize(card.views['wrist'], (64, 64), interpolation=cv2.INTER_AREA)
    assert np.abs(small.astype(int) - last.seen['wrist']).mean() < 4
    assert card.mark[0] == '✓ done' and card.said.startswith('Subtask: ')


def test_words_about_an_earlier_task_are_not_on_its_card(run, renderer, monkeypatch):
    recording, told = run
    later = replace(told, stamp=START + SECOND, seconds=0.3)
    assert [bool(card.said) for card in make_cards(recording, [told, later], renderer)] == [
        True
    ] * 2
    early = replace(later, seconds=0.07)  # the first chunk is ready, but no text
    before = [one for one in recording.sentences if one.received < START + SECOND]
    monkeypatch.setattr(recording, 'sentences', before)
    assert make_cards(recording, [told, early], renderer)[1].said == ''


def test_a_task_of_which_nothing_was_seen_has_no_card(run, renderer):
    recording, told = run
    late = replace(told, stamp=START + 60 * SECOND)
    assert len(make_cards(recording, [told, late], renderer)) == 1
    assert len(make_cards(recording, [told] * (CARDS + 2), renderer)) == CARDS


def test_the_page_is_sharp(run, renderer, tmp_path):
    recording, told = run
    draw_storyboard(tmp_path / 'frames.png', make_cards(recording, [told], renderer), 'title')
    picture = cv2.imread(str(tmp_path / 'frames.png'))
    front = picture[picture.shape[0] - SIZE :, :SIZE]
    edges = np.abs(np.diff(front.astype(int), axis=1)).max(-1) > 60
    assert 0.001 < edges.mean() < 0.05  # edges are one pixel wide, not eight


def test_a_path_is_drawn_where_its_points_are():
    image = np.full((640, 640, 3), 128, np.uint8)
    draw_path(image, np.array([(100.0, 100.0), (np.nan, np.nan), (300.0, 100.0), (500.0, 400.0)]))
    assert image[100, 100].tolist() == [255, 255, 255]
    assert image[400, 500].tolist() == [255, 45, 32]
    assert (image[100, 200] != 128).any() and (image[400, 200] == 128).all()
