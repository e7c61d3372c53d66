"""The settings file must have every number and must not have unknown ones."""

import pytest
import yaml
from memory_bench_cases import small_file

from benchmarks.memory.settings import PATH, load_settings


def test_the_file_that_ships_has_every_number():
    whole, quick = load_settings(), load_settings(quick=True)
    assert whole.retrieved == (10, 20, 40, 80) and whole.reuse.share == 0.16
    assert quick.accuracy.questions < whole.accuracy.questions
    assert quick.accuracy.tokens == whole.accuracy.tokens and quick.seed == whole.seed


def test_keep_recomputes_cacheblends_share():
    assert load_settings().reuse.recompute_ratio(8) == pytest.approx((1 + 7 * 0.16) / 8)


@pytest.mark.parametrize(
    'change, message',
    [
        (lambda data: data.pop('seed'), 'settings lacks seed'),
        (lambda data: data['world'].pop('cold'), 'settings.world lacks cold'),
        (lambda data: data['reuse'].update(taste=1), 'settings.reuse has unknown taste'),
        (lambda data: data.update(speed=3), 'settings.speed is 3, not fields'),
        (lambda data: data['quick']['world'].update(size=1), 'quick.world replaces size'),
    ],
)
def test_what_is_missing_or_unknown_is_named(tmp_path, change, message):
    path = small_file(tmp_path)
    data = yaml.safe_load(path.read_text())
    change(data)
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(ValueError, match=message):
        load_settings(path, quick=message.startswith('quick'))


def test_an_empty_file_is_refused(tmp_path):
    path = tmp_path / 'empty.yaml'
    path.write_text('')
    with pytest.raises(ValueError, match='has no settings'):
        load_settings(path)
    assert PATH.name == 'settings.yaml'
