"""Find the topics, services and actions that the source of the nodes declares. Needs no ROS 2.

Names that a contract gives, such as those of cameras and controllers, are not constants of the
source and are not found.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NODES = ROOT / 'embodied_kv' / 'nodes'
PUBLISHED = 'publisher', 'create_publisher'
SUBSCRIBED = 'subscribe', 'create_subscription'
SERVED = 'serve', 'create_service'


def endpoints() -> Iterator[tuple[str, str, str, str]]:
    """Yield role, name, type and file of each topic, service and action of the nodes.

    The role is published, subscribed, service or action.
    """
    trees = {path: ast.parse(path.read_text()) for path in sorted(NODES.rglob('*.py'))}
    constants = {path: _constants(tree) for path, tree in trees.items()}
    for path, tree in trees.items():
        known = {**_imported(tree, constants), **constants[path]}
        types = _types(tree)
        for role, name, kind in _declared(tree, known):
            yield role, name, types.get(kind, kind), path.relative_to(ROOT).as_posix()


def _declared(tree: ast.Module, known: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        called = getattr(call.func, 'attr', getattr(call.func, 'id', ''))
        if called == 'serve_all' and isinstance(call.args[0], ast.Constant):
            for verb, kind in _verbs(tree):
                yield 'service', f'{call.args[0].value}/{verb}', kind
        elif called == 'ActionServer':
            yield 'action', _text(call.args[2], known), _kind(call.args[1])
        elif called in (*PUBLISHED, *SUBSCRIBED, *SERVED) and len(call.args) > 2:
            role = 'published' if called in PUBLISHED else 'subscribed'
            role = 'service' if called in SERVED else role
            if name := _text(call.args[1], known):
                yield role, name, _kind(call.args[0])
            elif isinstance(call.args[1], ast.JoinedStr) and role == 'service':
                prefix = call.args[1].values[0].value
                for row in _rows(tree, call):
                    yield role, f'{prefix}{row[1].value}', _kind(row[0])


def _verbs(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for table in (node for node in ast.walk(tree) if isinstance(node, ast.Dict)):
        for key, value in zip(table.keys, table.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple):
                yield key.value, _kind(value.elts[0])


def _rows(tree: ast.Module, call: ast.Call) -> list[list[ast.expr]]:
    for loop in (node for node in ast.walk(tree) if isinstance(node, ast.For)):
        if any(node is call for node in ast.walk(loop)) and isinstance(loop.iter, ast.Tuple):
            return [row.elts for row in loop.iter.elts if isinstance(row, ast.Tuple)]
    return []


def _constants(tree: ast.Module) -> dict[str, str]:
    found = {}
    for node in (node for node in tree.body if isinstance(node, ast.Assign)):
        for target in node.targets:
            is_row = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            pairs = (
                zip(target.elts, node.value.elts, strict=True)
                if is_row
                else [(target, node.value)]
            )
            for name, value in pairs:
                if isinstance(name, ast.Name) and isinstance(value, ast.Constant):
                    found[name.id] = value.value
    return {name: value for name, value in found.items() if isinstance(value, str)}


def _imported(tree: ast.Module, constants: dict[Path, dict[str, str]]) -> dict[str, str]:
    found = {}
    for node in (node for node in tree.body if isinstance(node, ast.ImportFrom)):
        path = ROOT / f'{(node.module or "").replace(".", "/")}.py'
        for name in node.names:
            if value := constants.get(path, {}).get(name.name):
                found[name.asname or name.name] = value
    return found


def _types(tree: ast.Module) -> dict[str, str]:
    names = (name for node in tree.body if isinstance(node, ast.ImportFrom) for name in node.names)
    return {name.asname: name.name for name in names if name.asname}


def _text(node: ast.expr, known: dict[str, str]) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    return known.get(node.id, '') if isinstance(node, ast.Name) else ''


def _kind(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ''
