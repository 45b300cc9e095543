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


def test_invariants_are_asserted_where_the_table_says() -> None:
    section = TEXT.partition("## Where invariants are asserted")[2].partition("\n## ")[0]
    names = re.compile(r"\bI\d+\b")
    said = {
        file: set(names.findall(text))
        for file, text in re.findall(r"^\| `(\S+)` \| (.+) \|$", section, re.M)
    }
    found: dict[str, set[str]] = {}
    for path in (ROOT / "native" / "src").rglob("*.c"):
        for match in re.finditer(
            r'pn_invariant\([^"]*"(I\d+)"|assert\(.*; /\* (I\d+)', path.read_text()
        ):
            found.setdefault(f"{path.parent.name}/{path.name}", set()).add(match[1] or match[2])
    assert said == found
    reasons = "\n".join(re.findall(r"^- (I[^\n]*)", section, re.M))
    rest = set(names.findall(reasons))
    asserted = set().union(*said.values())
    assert not rest & asserted
    assert rest | asserted == {name for name in LISTED if name.startswith("I")}


def test_no_source_cites_a_document_that_is_not_here() -> None:
    names = re.compile(r"\b((?:spin|liveness|shm|postgres|nsq|API|DESIGN)\.md)\b")
    found = []
    for folder in ("native", "pynotify", "spark_jobs", "tests", "bench"):
        for path in (ROOT / folder).rglob("*"):
            ours = path != Path(__file__) and "node_modules" not in path.parts
            if ours and path.suffix in (".c", ".h", ".py", ".pml", ".md"):
                found += [f"{path}: {name}" for name in names.findall(path.read_text())]
    assert found == []
