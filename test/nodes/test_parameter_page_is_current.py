"""docs/parameters.md equals the page that is generated from the code."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_parameter_page_is_what_the_code_declares():
    page = runpy.run_path(str(ROOT / 'tools' / 'parameters.py'))['page']()
    assert (ROOT / 'docs' / 'parameters.md').read_text() == page, (
        'run: tools/env python tools/parameters.py > docs/parameters.md'
    )
