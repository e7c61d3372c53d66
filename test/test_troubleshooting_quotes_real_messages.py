"""docs/troubleshooting.md quotes only messages that occur in the code."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / 'docs' / 'troubleshooting.md'
MESSAGE = re.compile(r'^\| .*?(?= \| )', re.MULTILINE)  # first cell of each row
QUOTE = re.compile(r'`([^`]*)`')
MIXED = '\0'  # a formatted value


def texts(source):
    """Return the string literals of a module, with MIXED for each formatted value."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            parts = (
                part.value if isinstance(part, ast.Constant) else MIXED for part in node.values
            )
            yield ''.join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def pattern(quote):
    """Return the expression for a quote: `…` stands for any text."""
    return re.compile('.*'.join(re.escape(part) for part in re.split('…+', quote)))


LITERALS = {
    text
    for file in ROOT.glob('embodied_kv/**/*.py')
    for text in texts(file.read_text())
    if ' ' in text and '\n' not in text
}
QUOTES = sorted(
    quote
    for cell in MESSAGE.findall(PAGE.read_text())
    for quote in set(QUOTE.findall(cell))
    if ' ' in quote  # other quotes are names of fields
)


@pytest.mark.parametrize('quote', QUOTES)
def test_quoted_message_is_in_the_code(quote):
    assert any(pattern(quote).search(text) for text in LITERALS), quote


def test_messages_are_quoted():
    assert len(QUOTES) > 30


def test_other_wording_is_refused():
    found = pattern('stopped (…): reset it at once')
    assert not any(found.search(text) for text in LITERALS)
    assert list(texts("f'a {b} c' 'd'")) == [f'a {MIXED} cd', 'a ', ' cd']
