"""The list in conftest.py: ten rules, each with tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def rules() -> dict[int, list[tuple[str, str]]]:
    """Files and names of the tests, by the number of the rule."""
    text = ast.get_docstring(ast.parse((HERE / "conftest.py").read_text())) or ""
    parts = re.split(r"^(\d+)\. ", text, flags=re.MULTILINE)
    tests = [re.findall(r"^ +(tests/\S+)::(\w+)$", part, re.MULTILINE) for part in parts[2::2]]
    return dict(zip(map(int, parts[1::2]), tests, strict=True))


def defined(file: str) -> set[str]:
    body = ast.parse((ROOT / file).read_text()).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef)}


def test_every_rule_names_its_tests() -> None:
    assert list(rules()) == list(range(1, 11))
    for number, tests in rules().items():
        assert tests, number
        for file, name in tests:
            assert name in defined(file), f"{number}: {file}::{name}"


def test_every_test_here_is_named() -> None:
    """But for test_signals.py, which is about one process, not about hosts."""
    named = {test for tests in rules().values() for test in tests}
    for path in set(HERE.glob("test_*.py")) - {Path(__file__), HERE / "test_signals.py"}:
        file = str(path.relative_to(ROOT))
        tests = {(file, name) for name in defined(file) if name.startswith("test_")}
        assert not tests - named
