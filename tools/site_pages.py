"""Hook of MkDocs that adds to the site every file that a page of docs/ links to.

README.md becomes the first page. Pages outside docs/ that a page links to are built, other files
are copied, both under their path in the repository. A link to a missing file is not changed, so
that the strict build fails.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r'(?<=\]\()([^)#:\s]+)(?=[#)])')
NAMED = re.compile(r'\[[\w./]+\.md\]\(([^)#:\s]+)(?=[#)])')  # a link whose text is a file's name
TITLE = re.compile(r'^# (.+)$', re.MULTILINE)
FIRST = 'README.md', 'CONTRIBUTING.md', 'SECURITY.md'


def place(path: str) -> str:
    """Return the path on the site of a path in the repository."""
    return 'index.md' if path == 'README.md' else path.removeprefix('docs/')


def origin(file: File) -> str:
    """Return the path in the repository of a file of the site."""
    return Path(file.abs_src_path).resolve().relative_to(ROOT).as_posix()


def targets(page: str) -> list[str]:
    """Return the paths of the existing files in the repository that a page links to."""
    links = LINK.findall((ROOT / page).read_text())
    paths = {posixpath.normpath(posixpath.join(posixpath.dirname(page), link)) for link in links}
    return sorted(path for path in paths if (ROOT / path).is_file())


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and files outside docs/ that a page of the site links to."""
    pages = [*FIRST, *(origin(file) for file in files.documentation_pages())]
    known = set(pages)
    for page in pages:
        for path in targets(page):
            if path in known:
                continue
            known.add(path)
            if path.endswith('.md'):
                pages.append(path)
            elif not path.startswith('docs/'):
                _add(files, config, path)
    for page in pages:
        if not page.startswith('docs/'):
            _add(files, config, page)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the text of a page, with links changed to paths on the site.

    A link whose text is the name of a page gets the title of that page as its text.
    """
    here = origin(page.file)

    def titled(link: re.Match) -> str:
        path = ROOT / posixpath.dirname(here) / link[1]
        title = TITLE.search(path.read_text()) if path.is_file() else None
        return f'[{title[1]}]({link[1]}' if title else link[0]

    def moved(link: re.Match) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(here), link[1]))
        if not (ROOT / path).is_file():
            return link[1]
        return posixpath.relpath(place(path), posixpath.dirname(place(here)) or '.')

    return LINK.sub(moved, NAMED.sub(titled, markdown))


def _add(files: Files, config: MkDocsConfig, path: str) -> None:
    files.append(File.generated(config, place(path), abs_src_path=str(ROOT / path)))
