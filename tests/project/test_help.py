"""help(): each public function says by itself what it does, under its own name."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pynotify
from pynotify._open_options import OpenOptions

PACKAGE = Path(pynotify.__file__).parent
#: These end where the sentence would have to begin.
ELSEWHERE = re.compile(r"(As|Like|See|Of|For) [`a-z]")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def public_functions(node: ast.AST, within: str) -> Iterator[tuple[str, _Function]]:
    """Those of modules and of classes, whose name and whose class's name are public."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield from public_functions(child, f"{within}.{child.name}")
        elif isinstance(child, _Function) and not child.name.startswith("_"):
            overloaded = any(ast.unparse(each) == "overload" for each in child.decorator_list)
            if not overloaded:
                yield f"{within}.{child.name}", child


def public_methods() -> list[tuple[type, str, Any]]:
    found = []
    for name in pynotify.__all__:
        kind = getattr(pynotify, name)
        if inspect.isclass(kind) and not issubclass(kind, BaseException):
            found += [
                (kind, each, value)
                for each, value in vars(kind).items()
                if not each.startswith("_") and inspect.isfunction(value)
            ]
    return found


def test_every_public_function_has_a_docstring_of_its_own() -> None:
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".")
        for name, function in public_functions(ast.parse(path.read_text()), module):
            text = ast.get_docstring(function)
            if text is None or ELSEWHERE.match(text):
                wrong.append(f"{name}: {text}")
    assert not wrong, "\n".join(wrong)


def test_docstrings_say_what_a_thing_is() -> None:
    """One that begins by "Of" leaves it to the name what the thing is."""
    folders = [PACKAGE, *(PACKAGE.parent / name for name in ("spark_jobs", "bench"))]
    paths = sorted(path for folder in folders for path in folder.rglob("*.py"))
    assert len(paths) > 200
    halves = re.compile(r'"""(?:Of|Those)\b')
    assert [
        f"{path.name}:{number}"
        for path in paths
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if halves.search(line)
    ] == []


def test_methods_have_their_own_names() -> None:
    methods = public_methods()
    assert len(methods) > 100
    for kind, name, function in methods:
        assert function.__name__ == name
        assert function.__qualname__ == f"{kind.__name__}.{name}"


def test_async_twins_say_as_much() -> None:
    """What a method takes, returns and raises does not stand in another class."""
    pairs = [
        (pynotify.Connection, pynotify.AsyncConnection),
        (pynotify.Topic, pynotify.AsyncTopic),
        (pynotify.Channel, pynotify.AsyncChannel),
        (pynotify.Consumer, pynotify.AsyncConsumer),
        (pynotify.Message, pynotify.AsyncMessage),
        (pynotify.Subscription, pynotify.AsyncSubscription),
        (pynotify.Generation, pynotify.AsyncGeneration),
        (pynotify.PubSub, pynotify.AsyncPubSub),
        (pynotify.Transaction, pynotify.AsyncTransaction),
    ]
    for sync, twin in pairs:
        for name, function in vars(sync).items():
            if name.startswith("_") or not inspect.isfunction(function):
                continue
            other = getattr(twin, name, None)
            if other is not None:
                assert set(errors_in(function)) <= set(errors_in(other)), f"{twin.__name__}.{name}"


def errors_in(function: Any) -> list[str]:
    named = re.findall(r"`(\w+)`", inspect.getdoc(function) or "")
    return [name for name in named if inspect.isclass(getattr(pynotify.errors, name, None))]


@pytest.mark.parametrize("function", [pynotify.open, pynotify.connect])
def test_options_of_a_segment_are_in_the_signature(function: Any) -> None:
    annotation = inspect.signature(function).parameters["options"].annotation
    assert annotation == "Unpack[OpenOptions]"
    with pytest.raises(TypeError, match="max_paylode"):
        function("never-made", max_paylode=1)
    assert "max_payload" in OpenOptions.__annotations__
