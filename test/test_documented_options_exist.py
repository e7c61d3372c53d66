"""Every option that a page passes to a command is an option of that command."""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / 'README.md', *sorted(ROOT.glob('docs/**/*.md'))]
FENCE = re.compile(r'^```\w*\n(.*?)^```', re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r'python3? -m ((?:embodied_kv|benchmarks|training)[.\w]*)([^#\n]*)')
SPAN = re.compile(r'`([^`\n]+)`')


def commands():
    """Return each module that a page runs with options, and these options."""
    found = defaultdict(set)
    for page in PAGES:
        text = page.read_text()
        fenced = ''.join(FENCE.findall(text)).replace('\\\n', ' ')
        for line in [*fenced.splitlines(), *SPAN.findall(text)]:
            for module, arguments in COMMAND.findall(line):
                own = arguments.split('--ros-args')[0]
                found[module.rstrip('.')] |= set(re.findall(r'(?<!\S)--[\w-]+', own))
    del found['benchmarks.NAME']  # stands for all of them
    return sorted((module, sorted(options)) for module, options in found.items() if options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('module', 'options'), commands(), ids=lambda value: value if isinstance(value, str) else ''
)
def test_command_has_its_options(module, options):
    called = subprocess.run(
        [sys.executable, '-m', module, '--help'],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
        check=True,
    )
    known = set(re.findall(r'--[\w-]+', called.stdout))
    assert [option for option in options if option not in known] == []


def test_pages_have_commands_with_options():
    assert len(commands()) > 20
