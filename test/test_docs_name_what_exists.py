"""Every file, command and page that the documentation names exists."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / 'README.md', *sorted(ROOT.glob('docs/**/*.md'))]
PATH = re.compile(r'`((?:[\w*]+/)*[\w*]+\.(?:py|msg|srv)|(?:[\w*]+/)+[\w*]+\.yaml)`')
TREES = ('embodied_kv', 'benchmarks', 'training')
COMMAND = re.compile(rf'python3? -m ((?:{"|".join(TREES)})(?:\.\w+)*)')
LINK = re.compile(r'\]\(([^)#:]+)(?:#[^)]*)?\)')
FOLDERS = (
    '',
    'test/',
    'test/*/',
    *(f'{top}/{below}' for top in TREES for below in ('', '*/', '*/*/')),
)
READABLE = re.compile(r'^#+ (.+)$', re.MULTILINE)


def names(page, pattern):
    return sorted(set(pattern.findall(page.read_text())))


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_files_are_there(page):
    missing = [
        name
        for name in names(page, PATH)
        if not any(any(ROOT.glob(folder + name)) for folder in FOLDERS)
    ]
    assert missing == []


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_commands_are_there(page):
    def runs(module):
        found = importlib.util.find_spec(module)
        is_package = found is not None and found.submodule_search_locations
        return found is not None and (
            not is_package or importlib.util.find_spec(f'{module}.__main__') is not None
        )

    commands = names(page, COMMAND)
    assert [
        module for module in commands if module != 'benchmarks.NAME' and not runs(module)
    ] == []


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    assert [link for link in names(page, LINK) if not (page.parent / link).exists()] == []


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_anchors_are_headings(page):
    for link, anchor in re.findall(r'\]\(([^)#:]*)#([^)]+)\)', page.read_text()):
        target = page.parent / link if link else page
        headings = READABLE.findall(target.read_text())
        anchors = {re.sub(r'[^\w\- ]', '', h.lower()).strip().replace(' ', '-') for h in headings}
        assert anchor in anchors, f'{link}#{anchor}'


def test_every_page_is_in_the_navigation_of_the_site():
    navigation = (ROOT / 'mkdocs.yml').read_text()
    pages = sorted(str(p.relative_to(ROOT / 'docs')) for p in (ROOT / 'docs').rglob('*.md'))
    assert [page for page in pages if f': {page}\n' not in navigation] == []
