"""docs/protocol.md lists every rule and invariant that code, models and documents cite."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "protocol.md").read_text()
LISTED = {
    name: " ".join(text.split())
    for name, text in re.findall(r"^\| ([RLWI]\d+) \| (.+) \|$", TEXT, re.MULTILINE)
}
CITED = re.compile(r"\b(?:[RLW]\d{1,2}|I[1-9]\d?)\b")


def sources() -> Iterator[Path]:
    native = ROOT / "native"
    for folder in (native / "src", native / "include", native / "models", native / "tests"):
        yield from (
            path for path in folder.rglob("*") if path.suffix in (".c", ".h", ".md", ".pml")
        )
    yield from (ROOT / "docs").glob("*.md")


def test_what_is_cited_is_listed() -> None:
    unknown = set()
    for path in sources():
        for comment in re.findall(r"/\*.*?\*/|^.*$" if path.suffix == ".md" else r"/\*.*?\*/",
                                  path.read_text(), re.DOTALL | re.MULTILINE):  # fmt: skip
            unknown |= {f"{path.name}: {name}" for name in CITED.findall(comment)
                        if name not in LISTED}  # fmt: skip
    assert sorted(unknown) == []


def test_invariants_are_those_of_the_headers() -> None:
    stated: dict[str, str] = {}
    for name in ("segment/layout.h", "segment/layout_topic.h"):
        header = (ROOT / "native" / "src" / name).read_text()
        for match in re.finditer(r"^ \*  (I\d+) +(.*?)(?=^ \*  I\d+ |^ \*/)", header, re.M | re.S):
            lines = (line.strip(" *") for line in match[2].splitlines())
            stated[match[1]] = " ".join(" ".join(lines).split())
    assert stated
    assert {name: text for name, text in LISTED.items() if name.startswith("I")} == stated


def test_no_source_cites_a_document_that_is_not_here() -> None:
    names = re.compile(r"\b((?:spin|liveness|shm|postgres|nsq|API|DESIGN)\.md)\b")
    found = []
    for folder in ("native", "pynotify", "spark_jobs", "tests", "bench"):
        for path in (ROOT / folder).rglob("*"):
            ours = path != Path(__file__) and "node_modules" not in path.parts
            if ours and path.suffix in (".c", ".h", ".py", ".pml", ".md"):
                found += [f"{path}: {name}" for name in names.findall(path.read_text())]
    assert found == []
