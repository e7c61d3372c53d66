"""Every number of README's table of figures stands in the section that its row links to."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NUMBER = re.compile(r'\d[\d,]*(?:\.\d+)?')
README = (ROOT / 'README.md').read_text()
ROWS = re.findall(
    r'^\| (.+?) \| \[.+?\]\((docs/\S+?)\) \|$', README.partition('## Figures')[2], re.M
)


def section(link):
    """Return the text of a section of a page, or the page."""
    page, _, anchor = link.partition('#')
    text = (ROOT / page).read_text()
    if not anchor:
        return text
    for part in re.split(r'(?m)^(?=#+ )', text):
        title = part.partition('\n')[0].lstrip('# ').lower()
        if re.sub(r'[^\w -]', '', title).replace(' ', '-') == anchor:
            return part
    raise AssertionError(f'{page} has no section {anchor}')


def numbers(text):
    return {number.rstrip('.').replace(',', '') for number in NUMBER.findall(text)}


def test_table_has_rows():
    assert len(ROWS) >= 6


@pytest.mark.parametrize(('figure', 'link'), ROWS, ids=[link for _, link in ROWS])
def test_numbers_of_a_figure_are_in_its_section(figure, link):
    assert numbers(figure) <= numbers(section(link)), numbers(figure) - numbers(section(link))
