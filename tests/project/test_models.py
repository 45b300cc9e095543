"""The Promela models give what native/models/MODELS expects, broken variants included."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from requirement import require

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "native" / "models"
SOURCES = ROOT / "native" / "src"
LABEL = re.compile(r'PN_CRASH\("([a-z0-9-]+:[a-z0-9-]+)"\)')


def load_runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_models", MODELS / "run_models.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


runner = load_runner()
RUNS = runner.read_models()
# What `make test` has of each model: a run that holds, and one that fails.  To compile a search
# takes a second; all of them are `make test-full`'s.
SHORT = {
    (run.file, run.expected): run for run in reversed(RUNS) if run.set == "quick"
}.values()  # the first of each


def labels(folder: Path, pattern: str) -> set[str]:
    return {
        label
        for path in sorted(folder.rglob(pattern))
        for label in LABEL.findall(path.read_text(encoding="utf-8"))
    }


@pytest.mark.timeout(800)
@pytest.mark.parametrize(
    "run",
    [
        pytest.param(run, id=run.id, marks=[] if run in SHORT else [pytest.mark.full])
        for run in RUNS
    ],
)
def test_model_gives_the_expected_result(run: Any) -> None:
    require("spin")
    outcome = runner.verify(run)
    assert outcome.satisfies(run), runner.report(run, outcome)


def test_every_model_has_runs_that_hold_and_runs_that_fail() -> None:
    for path in MODELS.glob("*.pml"):
        expected = {run.expected for run in RUNS if run.file == path.name}
        assert expected == {"OK", "FAIL"}, path.name
    assert {run.file for run in RUNS} == {path.name for path in MODELS.glob("*.pml")}


def test_every_variant_is_run_and_documented() -> None:
    for path in MODELS.glob("*.pml"):
        text = path.read_text(encoding="utf-8")
        switches = set(re.findall(r"#\s*ifn?def (\w+)", text)) | set(
            re.findall(r"defined\((\w+)\)", text)
        )
        used = {
            define.removeprefix("-D").split("=", 1)[0]
            for run in RUNS
            if run.file == path.name
            for define in run.defines
        }
        with_default = set(re.findall(r"#ifndef (\w+)\n#define \1 ", text))
        assert switches - with_default == used - with_default, path.name
        prose = text.split("*/", 1)[0]
        assert [name for name in sorted(used) if name not in prose] == [], path.name


def test_the_readme_names_every_variant_that_must_fail() -> None:
    text = (MODELS / "README.md").read_text()
    for path in MODELS.glob("*.pml"):
        row = re.search(rf"^\| `{path.name}` \| (\d+) \|.*\| (.+) \|$", text, re.MULTILINE)
        assert row is not None, path.name
        runs = [run for run in RUNS if run.file == path.name]
        assert int(row[1]) == sum(run.expected == "OK" for run in runs), path.name
        assert row[2].split(", ") == [run.id for run in runs if run.expected == "FAIL"], path.name


def test_an_interrupted_search_is_never_ok() -> None:
    run = next(run for run in RUNS if run.expected == "OK" and run.mode == "safety")
    whole = "State-vector 84 byte, depth reached 290, errors: 0\n  2331596 states, stored\n"
    assert runner.judge(run, whole, timed_out=False, seconds=1.0).satisfies(run)
    for output, timed_out in (
        (whole, True),
        ("pan: reached -DMEMLIM bound\n" + whole, False),
        ("error: max search depth too small\n" + whole, False),
        ("", False),
    ):
        assert not runner.judge(run, output, timed_out=timed_out, seconds=1.0).satisfies(run)


def test_every_label_of_the_models_is_a_crash_point_of_the_engine() -> None:
    if not any(SOURCES.rglob("*.c")):
        pytest.skip("native/src has no C files yet")
    assert labels(MODELS, "*.pml") - labels(SOURCES, "*.c") == set()
