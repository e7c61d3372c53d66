"""The definition of a message type as ros2msg: its own text, and that of all that it contains.

Knows the .msg files of the packages that are installed. Readers of MCAP need nothing else.

Source: https://mcap.dev/spec/registry, schema encoding `ros2msg`.
"""

from __future__ import annotations

import re
from pathlib import Path

from ament_index_python.packages import get_package_share_directory

BETWEEN = '=' * 80
FIELD = re.compile(r'^\s*(?P<type>[A-Za-z][\w/]*)(<=\d+)?(\[[^\]]*\])?\s+[A-Za-z]\w*')
PLAIN = {
    *('bool', 'byte', 'char', 'float32', 'float64', 'string', 'wstring'),
    *(f'{sign}int{bits}' for sign in ('', 'u') for bits in (8, 16, 32, 64)),
}


def full_name(kind: type) -> str:
    """Of a message's class, such as sensor_msgs/msg/Image."""
    return f'{kind.__module__.partition(".")[0]}/msg/{kind.__name__}'


def definition(kind: type) -> str:
    """Of a message's class. Raises FileNotFoundError where a package keeps no .msg files."""
    package, _, name = full_name(kind).split('/')
    first = _text(package, name)
    parts, seen, waiting = [first], {(package, name)}, _parts(package, first)
    while waiting:
        part = waiting.pop(0)
        if part in seen:
            continue
        seen.add(part)
        text = _text(*part)
        parts.append(f'{BETWEEN}\nMSG: {"/".join(part)}\n{text}')
        waiting += _parts(part[0], text)
    return '\n'.join(parts)


def _text(package: str, name: str) -> str:
    share = Path(get_package_share_directory(package))
    return (share / 'msg' / f'{name}.msg').read_text(encoding='utf-8')


def _parts(package: str, text: str) -> list[tuple[str, str]]:
    """The messages that a message contains."""
    found = (FIELD.match(line) for line in text.splitlines())
    types = [match['type'] for match in found if match and match['type'] not in PLAIN]
    named = [(kind if '/' in kind else f'{package}/{kind}').split('/') for kind in types]
    return [(names[0], names[-1]) for names in named]
