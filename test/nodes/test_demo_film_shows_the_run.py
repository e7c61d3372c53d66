"""The film shows the scene, the images of the policy, the plan, the texts and the verdicts."""

from dataclasses import replace
from itertools import pairwise

import av
import cv2
import numpy as np
import pytest
from demo_play import SEED, START, play

from embodied_kv.demo import video
from embodied_kv.demo.director import SECOND
from embodied_kv.demo.last_mission import Errand, LastMission
from embodied_kv.demo.picture import SceneRenderer
from embodied_kv.demo.sim.tabletop import Tabletop
from embodied_kv.demo.sim.tasks import task_scene
from embodied_kv.demo.video import (
    ENDING,
    FRONT_AT,
    HASTE,
    HEIGHT,
    LARGE,
    RATE,
    SMALL,
    SMALL_AT,
    STANDING,
    WIDTH,
    FilmError,
    draw_film,
    page,
)

SECONDS = 2.0
SUMMARY = {'asked': '1 task in words', 'done': '1 of 1 task'}


@pytest.fixture(scope='module')
def run():
    recording, told = play(SECONDS)
    return recording, replace(told, done=True, seconds=1.0)


@pytest.fixture(scope='module')
def film(run, tmp_path_factory):
    """Return the frames of the film, RGB."""
    path = tmp_path_factory.mktemp('film') / 'demo.mp4'
    with SceneRenderer(task_scene('put'), LARGE) as renderer:
        draw_film(path, run[0], [run[1]], renderer, SUMMARY)
    capture, frames = cv2.VideoCapture(str(path)), []
    assert capture.get(cv2.CAP_PROP_FPS) == RATE
    while (read := capture.read())[0]:
        frames.append(read[1][..., ::-1])
    return frames


def cut(frame, corner, size):
    column, row = corner
    return frame[row : row + size, column : column + size].astype(int)


def test_it_is_in_real_time_and_closes_with_the_summary(film):
    assert {frame.shape for frame in film} == {(720, 1280, 3)}
    still = round(ENDING * RATE)
    assert len(film) - still == pytest.approx(SECONDS * RATE, abs=3)
    assert np.abs(film[-1].astype(int) - film[-still]).mean() < 1
    assert np.abs(film[-1].astype(int) - film[-still - 1]).mean() > 20


def test_the_large_picture_is_the_scene_of_its_moment(run, film):
    with Tabletop(task_scene('put', image_size=LARGE), SEED) as table:
        for number, other in ((6, 24), (24, 6)):
            run[0].moment(START + number * SECOND // RATE).show_on(table)
            drawn = table.render()['front']
            right, wrong = (
                (np.abs(drawn - cut(film[i], FRONT_AT, LARGE)).max(-1) > 60).mean()
                for i in (number, other)
            )
            assert right < 0.04 and right < 0.5 * wrong  # due to edges, the path, the codec


def test_the_images_that_the_policy_got_stand_beside_it(run, film):
    number = 20
    seen = run[0].decision(START + number * SECOND // RATE).seen['front']
    large = cv2.resize(seen, (SMALL, SMALL), interpolation=cv2.INTER_NEAREST)
    assert np.abs(cut(film[number], SMALL_AT, SMALL) - large).mean() < 6  # due to the codec


def test_what_moves_is_drawn_anew_in_each_frame(film):
    moving = [cut(frame, FRONT_AT, LARGE) for frame in film[3 : round(SECONDS * RATE) - 3]]
    assert min(np.abs(b - a).max() for a, b in pairwise(moving)) > 40


def test_the_words_are_those_of_that_time(run):
    recording, told = run
    first = page(recording, [told], START + SECOND // 10)
    assert (first.title, first.subtask) == (
        told.instruction,
        'move above the ' + told.task.target,
    )
    assert first.mark[0] == '' and first.seconds == 0
    assert page(recording, [told], START + SECOND).mark[0] == '✓ done'


def test_the_verdict_stays_in_sight_when_the_next_task_is_told(run):
    recording, told = run
    failed = replace(told, done=False)
    lost = replace(told, done=False, replaced='it fell off the table')
    after = replace(told, stamp=START + SECOND + 1, instruction='next', done=None)
    at = START + SECOND + SECOND // 2
    why = f'{told.instruction}: it fell off the table'
    for task, mark, words in (
        (told, '✓ done', told.instruction),
        (failed, '✗ not done', told.instruction),
        (lost, '↷ replaced', why),
    ):
        now = page(recording, [task, after], at)
        assert (now.title, now.mark[0]) == ('next', '')
        assert [(past[0], past[2]) for past in now.past] == [(mark, words)]


def test_what_was_waited_for_before_a_mission_is_not_shown(run, monkeypatch):
    recording, told = run
    last = recording.moments[-1]
    mission = LastMission(
        Errand('put', ('red cube',), 'blue bin'), replace(last, stamp=last.stamp + 10 * SECOND)
    )
    later = replace(last, stamp=mission.stamp + 2 * SECOND)
    mission.ended = later.stamp
    monkeypatch.setattr(recording, 'moments', [*recording.moments, later])
    blank, shown = np.zeros((HEIGHT, WIDTH, 3), np.uint8), []
    monkeypatch.setattr(video, '_frame', lambda *drawn: shown.append(drawn[-1]) or blank)
    film = list(video._frames(recording, [told], None, SUMMARY, mission))
    during = [at for at in shown if at >= mission.stamp]
    assert max(set(shown) - set(during)) < last.stamp
    seconds = SECONDS + 2 / HASTE + STANDING + ENDING
    assert len(film) == pytest.approx(seconds * RATE, abs=5)


def test_browsers_play_it(run, tmp_path):
    with SceneRenderer(task_scene('put'), 64) as renderer:
        draw_film(tmp_path / 'film', run[0], [run[1]], renderer, SUMMARY)
    with av.open(tmp_path / 'film') as film:
        codec = film.streams.video[0].codec_context
        assert (codec.name, codec.pix_fmt) == ('h264', 'yuv420p')
    boxes = (tmp_path / 'film').read_bytes()
    assert boxes.index(b'moov') < boxes.index(b'mdat')  # it can be played while it loads


def test_without_the_codec_the_reason_is_given(run, tmp_path, monkeypatch):
    monkeypatch.setattr(video, 'CODEC', 'no such')
    with (
        SceneRenderer(task_scene('put'), 64) as renderer,
        pytest.raises(FilmError, match=r'H\.264'),
    ):
        draw_film(tmp_path / 'film', run[0], [run[1]], renderer, SUMMARY)
    assert not (tmp_path / 'film').exists()
