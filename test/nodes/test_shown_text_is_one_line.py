"""Text of any origin is shown as one printable line of bounded length."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_kv.text import LINE, listed, reason, shown, trace

anything = st.text(st.characters())  # with control characters and lone surrogates


@pytest.mark.parametrize(
    'text, line',
    [
        ('pick up the red cube', 'pick up the red cube'),
        ('põe o cubo 青い', 'põe o cubo 青い'),
        ('go\n[INFO] forged', r'go\n[INFO] forged'),
        ('a\r\tb\0', r'a\r\tb\x00'),
        ('\x1b[31mred\x1b[0m', r'\x1b[31mred\x1b[0m'),
        ('\x9b2J\u2028\u202eabc', r'\x9b2J\u2028\u202eabc'),
        ('half \ud83d', r'half \ud83d'),
        ('x' * 60, 'x' * 60),
        ('x' * 61, 'x' * 60 + '... (61 characters)'),
        ('', ''),
        (ValueError('a\nb'), r'a\nb'),
    ],
)
def test_text_is_escaped_and_cut(text, line):
    assert shown(text) == line


@given(anything, st.integers(0, 100))
def test_a_line_is_printable_and_bounded(text, most):
    line = shown(text, most)
    assert line.isprintable() and line.encode() is not None
    assert len(line) <= 10 * most + 30
    assert shown(line, len(line)) == line  # shown text is not changed again


def test_a_hundred_thousand_characters_are_few():
    assert shown('\x1b' * 100_000) == r'\x1b' * 60 + '... (100000 characters)'


def test_a_list_is_cut_by_names_too():
    assert listed([]) == 'none'
    assert listed(['a\nb', 'c']) == r'a\nb, c'
    assert listed(['x'] * 1000).endswith('x, and 984 more')
    assert len(listed(['\n' * 500] * 1000)) < 5000


def test_a_reason_is_the_message_or_the_name():
    assert reason(KeyError('no live stream 3')) == 'no live stream 3'
    assert reason(ValueError('no')) == 'no' and reason(ValueError()) == 'ValueError'
    assert reason(FileNotFoundError(2, 'No such file', 'a')) == "[Errno 2] No such file: 'a'"


def test_a_trace_names_its_places_and_no_line_of_it_is_forged():
    def fail():
        try:
            raise KeyError('first\n[INFO] forged')
        except KeyError as error:
            raise RuntimeError('second\n[INFO] forged' + 'x' * 10**5) from error

    with pytest.raises(RuntimeError) as caught:
        fail()
    lines = trace(caught.value).splitlines()
    assert not [line for line in lines if line.startswith('[INFO]')]
    first, second = (line for line in lines if line.startswith(('KeyError', 'RuntimeError')))
    assert first == r"KeyError: 'first\n[INFO] forged'"
    assert second.startswith(r'RuntimeError: second\n[INFO] forgedx')
    assert 'in fail' in trace(caught.value) and len(trace(caught.value)) < LINE + 2000


def test_a_reason_of_several_lines_becomes_one():
    assert (
        reason(ValueError('they differ\n  one: 1\n  other: 2')) == 'they differ; one: 1; other: 2'
    )
