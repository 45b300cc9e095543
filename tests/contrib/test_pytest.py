"""The plugin of pytest: a segment for each test, and what it says of what a test leaves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from programs import environment

HEADER = """
import os, pytest, pynotify
names = []
kept = []
"""


def run(directory: Path, tests: str) -> tuple[dict[str, int], str]:
    """The outcomes, and what was said."""
    path = directory / "test_it.py"
    path.write_text(HEADER + tests)
    (directory / "pytest.ini").write_text("[pytest]\n")  # not that of this project
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "--strict-markers", "-p", "pynotify",
         "-p", "no:cacheprovider", "-c", "pytest.ini", path.name],
        # Loading every other plugin takes ten times as long.
        env={**environment(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    counts = {
        outcome: sum(line.startswith(f"{outcome} ") for line in lines)
        for outcome in ("PASSED", "FAILED", "ERROR")
    }
    return counts, done.stdout + done.stderr


def test_each_test_has_its_own(tmp_path: Path) -> None:
    counts, said = run(
        tmp_path,
        """
@pytest.mark.parametrize("n", [1, 2])
def test_one(pynotify_segment, n):
    with pynotify.connect(pynotify_segment) as conn:
        conn.listen("c")
        conn.notify("c", str(n))
        assert [each.payload for each in conn.poll()] == [str(n)]
    pynotify.get(pynotify_segment).notify("c")  # the process's own is closed for it
    names.append(pynotify_segment)

def test_gone():
    assert len(set(names)) == 2
    for name in names:
        with pytest.raises(pynotify.SegmentNotFound):
            pynotify.open(name, create=False)

def test_not_used(pynotify_segment):
    pass

def test_unlinked_by_itself(pynotify_segment):
    pynotify.open(pynotify_segment).close()
    pynotify.unlink(pynotify_segment)

def test_without_a_reference(pynotify_segment):
    pynotify.connect(pynotify_segment).listen("c")

@pytest.mark.pynotify(queue_pages=64, max_payload=100)
def test_options(pynotify_segment):
    with pynotify.connect(pynotify_segment) as conn, pytest.raises(pynotify.PayloadTooLong):
        conn.notify("c", "x" * 101)
""",
    )
    assert counts == {"PASSED": 7, "FAILED": 0, "ERROR": 0}, said


def test_what_is_left_is_told_and_removed(tmp_path: Path) -> None:
    counts, said = run(
        tmp_path,
        """
def test_connection(pynotify_segment):
    kept.append(pynotify.connect(pynotify_segment))
    names.append(pynotify_segment)

def test_another_process(pynotify_segment):
    listening, ready = os.pipe()
    child = os.fork()
    if child == 0:
        conn = pynotify.connect(pynotify_segment)
        os.write(ready, b".")
        try:
            conn.wait()
        finally:
            os._exit(0)
    os.read(listening, 1)
    kept.append(child)
    names.append(pynotify_segment)
    print("CHILD", child)

def test_failed(pynotify_segment):
    conn = pynotify.connect(pynotify_segment)
    names.append(pynotify_segment)
    assert False

def test_they_are_gone():
    for name in names:
        with pytest.raises(pynotify.SegmentNotFound):
            pynotify.open(name, create=False)
    with pytest.raises(pynotify.SegmentUnlinked):
        kept[0].notify("c")
    os.waitpid(kept[1], 0)
""",
    )
    assert (counts["FAILED"], counts["ERROR"]) == (1, 3), said
    child = next(line.split()[1] for line in said.splitlines() if line.startswith("CHILD "))
    assert said.count("the test has left in the segment") >= 3
    told = [line for line in said.splitlines() if "has left" not in line and "CHILD" not in line]
    assert any(child in line for line in told), said


def test_a_wrong_marker(tmp_path: Path) -> None:
    counts, said = run(
        tmp_path,
        """
@pytest.mark.pynotify(64)
def test_it(pynotify_segment):
    pass

@pytest.mark.pynotify(queue_page=64)
def test_its_name(pynotify_segment):
    pass
""",
    )
    assert counts["ERROR"] == 2, said
    assert "takes options of a segment by name only" in said
    assert "queue_page" in said
