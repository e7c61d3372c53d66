"""A profile interpolates latency, finds its saturation, and is refused if invalid."""

import pytest

from embodied_kv.fleet.profile import Profile, ProfileError, read, write

SEVERAL = Profile('edge', (1, 2, 4, 8), (0.1, 0.12, 0.2, 0.5), 1400)


def test_latency_is_linear_between_what_was_measured():
    assert SEVERAL.latency(1) == 0.1
    assert SEVERAL.latency(3) == pytest.approx(0.16)
    assert SEVERAL.latency(8) == 0.5
    with pytest.raises(ValueError, match='batch must be from 1 to 8, as measured of edge .got 9'):
        SEVERAL.latency(9)


def test_saturation_is_where_a_larger_batch_serves_hardly_more():
    assert SEVERAL.saturation == 4  # 10, 16.7, 20, 16 requests a second
    assert Profile('flat', (1, 2, 4), (0.1, 0.1, 0.1), 1).saturation == 4
    assert Profile('linear', (1, 2, 4), (0.1, 0.2, 0.4), 1).saturation == 1


def test_a_faster_engine():
    fast = SEVERAL.faster(2.0, 'cloud')
    assert fast.latency(8) == 0.25 and fast.saturation == SEVERAL.saturation


def test_a_file_gives_back_what_was_written(tmp_path):
    write(SEVERAL, tmp_path / 'p.yaml')
    assert read(tmp_path / 'p.yaml') == SEVERAL


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('', 'the file must have the keys'),
        ('- 1', 'the file must have the keys'),
        ('engine: e\nsizes: [1]\nseconds: [1.0]\nchunk_bytes: 1\nmore: 1', 'and no others'),
        ('engine: e\nsizes: 1\nseconds: [1.0]\nchunk_bytes: 1', 'sizes and seconds must be lists'),
        ('engine: e\nsizes: [2]\nseconds: [1.0]\nchunk_bytes: 1', 'that rise from 1'),
        ('engine: e\nsizes: [1, 1]\nseconds: [1.0, 1]\nchunk_bytes: 1', 'that rise from 1'),
        (
            'engine: e\nsizes: [1, 2]\nseconds: [1.0]\nchunk_bytes: 1',
            'must have 2 entries .got 1',
        ),
        ('engine: e\nsizes: [1, 2]\nseconds: [2, 1]\nchunk_bytes: 1', 'never falling'),
        ('engine: e\nsizes: [1]\nseconds: [.nan]\nchunk_bytes: 1', 'positive and never falling'),
        ('engine: e\nsizes: [1]\nseconds: [x]\nchunk_bytes: 1', 'positive and never falling'),
        ('engine: e\nsizes: [1]\nseconds: [1.0]\nchunk_bytes: 0', 'chunk_bytes must be .* .got 0'),
        ('a: [', 'while parsing'),
        ('!!python/object/apply:os.getcwd []', 'could not determine a constructor'),
    ],
)
def test_a_bad_file_is_refused_with_its_name(tmp_path, text, message):
    path = tmp_path / 'bad.yaml'
    path.write_text(text)
    with pytest.raises(ProfileError, match=rf'(?s)bad\.yaml: .*{message}'):
        read(path)


def test_missing_file_is_an_error(tmp_path):
    with pytest.raises(ProfileError, match=r'none\.yaml: .*No such file'):
        read(tmp_path / 'none.yaml')
