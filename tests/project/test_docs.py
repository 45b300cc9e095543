"""The documents: what they name exists, what they show runs, what they quote is really said."""

from __future__ import annotations

import ast
import contextlib
import functools
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import pynotify
from forking import ForkedChild, in_child
from namespaces import run_unshared
from receiving import PATIENCE, payloads, readable, receive, wait_until
from sessions import Connect, Worker
from spark_jobs.cli import COMMANDS as SPARK_COMMANDS
from spark_jobs.jobs import NAMES

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
DOCUMENTS += sorted((ROOT / "docs" / "runs").glob("*.md"))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
#: For two shells, and run so.
TOGETHER = {"README.md", "listen.py", "notify.py"}
SIGNAL = signal.SIGUSR1


class Block(NamedTuple):
    """A fenced block; `output` is the block without a language that follows at once, if any."""

    path: Path
    line: int
    language: str
    text: str
    output: str | None


def blocks(path: Path) -> Iterator[Block]:
    found = []
    fence = re.compile(r"^```(\w*)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
    text = path.read_text()
    for match in fence.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        found.append((match.end(), match.start(), line, match[1], match[2]))
    for number, (end, _, line, language, body) in enumerate(found):
        output = None
        if language and number + 1 < len(found):
            _, start, _, next_language, next_body = found[number + 1]
            if not next_language and not text[end:start].strip():
                output = next_body
        yield Block(path, line, language, body, output)


PYTHON_BLOCKS = [b for path in DOCUMENTS for b in blocks(path) if b.language == "python"]


def place(value: object) -> str:
    if isinstance(value, Block):
        return f"{value.path.name}:{value.line}"
    return value.name if isinstance(value, Path) else ""


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


# ---- what the documents name ---------------------------------------------------------------------

TEST_NAME = re.compile(
    r"((?:native/)?tests/[\w/]+\.(?:py|c))((?:::\w+)*)(?:`((?:,\s`(?:::\w+)+`)+))?"
)
LABEL = re.compile(r"`([a-z]+:[a-z-]+)`")
STEPS = re.compile(r"steps ([a-z-]+(?:, [a-z-]+)*)")


def named(text: str) -> Iterator[tuple[str, str]]:
    """Files and tests; in `file::test_a`, `::test_b` the second is of the same file."""
    shorts = 0
    for file, name, others in TEST_NAME.findall(text):
        yield file, name
        for other in re.findall(r"`((?:::\w+)+)`", others):
            shorts += 1
            yield file, other
    assert text.count("`::") == shorts, "a test without its file"


@functools.cache
def defined(path: Path) -> set[str]:
    """Names of the tests in a file, as "::test_x" and "::Class::test_y"."""
    if path.suffix == ".c":
        found = re.findall(r"^static void (test_\w+)\(void\)", path.read_text(), re.MULTILINE)
        return {f"::{name}" for name in found}
    function = ast.FunctionDef | ast.AsyncFunctionDef
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, function):
            names.add(f"::{node.name}")
        elif isinstance(node, ast.ClassDef):
            methods = (n for n in node.body if isinstance(n, function))
            names.update(f"::{node.name}::{method.name}" for method in methods)
    return names


@pytest.mark.parametrize("path", DOCUMENTS, ids=place)
def test_named_tests_exist(path: Path) -> None:
    for file, name in named(path.read_text()):
        assert (ROOT / file).exists(), file
        assert not name or name in defined(ROOT / file), file + name


def test_every_promise_names_its_tests() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text()
    assert text.startswith("# Guarantees\n\n## What is not promised\n")
    promises = re.split(r"^(\d+)\. ", text, flags=re.MULTILINE)
    numbers, bodies = promises[1::2], promises[2::2]
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
    for number, body in zip(numbers, bodies, strict=True):
        sentence, _, tests = body.partition("\n   ")
        assert sentence, number
        assert TEST_NAME.search(tests.partition("\n\n")[0]), f"promise {number} names no test"


def test_each_of_the_fifty_cases_names_its_tests() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text().partition("## Fifty cases")[2]
    rows = re.findall(r"^\| (\d+) \| (.+) \| (.+) \|$", text, re.MULTILINE)
    assert [int(number) for number, _case, _tests in rows] == list(range(1, 51))
    for number, _case, tests in rows:
        assert TEST_NAME.search(tests) or LABEL.search(tests), f"case {number}"
    sources = "".join(path.read_text() for path in (ROOT / "native" / "src").rglob("*.c"))
    assert set(LABEL.findall(text)) <= set(re.findall(r'PN_CRASH\("([^"]+)"\)', sources))
    victims = (ROOT / "native" / "tests" / "crash" / "step_victims.h").read_text()
    steps = {name for names in STEPS.findall(text) for name in names.split(", ")}
    assert steps and steps <= set(re.findall(r'\{\.name = "([a-z-]+)"', victims))


def test_files_named_exist() -> None:
    """What stands in backticks or in a link, and has a slash; of the core without native/src."""
    for path in DOCUMENTS:
        text = path.read_text()
        quoted = re.findall(r"`([\w][\w./-]*/[\w.-]+\.(?:py|c|h|md|toml|pml|txt))[`:]", text)
        for name in quoted:
            found = (ROOT / name).exists() or (ROOT / "native" / "src" / name).exists()
            assert found, f"{path.name}: {name}"
        for link in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (path.parent / link).exists(), f"{path.name}: {link}"


def commands(text: str) -> list[str]:
    lines = [line for block in re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
             for line in block.splitlines()]  # fmt: skip
    return lines + re.findall(r"`([^`\n]+)`", text)


def test_commands_named_exist() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in DOCUMENTS:
        for command in commands(path.read_text()):
            where = f"{path.name}: {command}"
            for target in re.findall(r"^make ([a-z][a-z-]*)", command):
                assert target in targets, where
            for module in re.findall(r"^python -m ([\w.]+)", command):
                file = ROOT / module.replace(".", "/")
                assert (file / "__main__.py").exists() or file.with_suffix(".py").exists(), where
            for job in re.findall(r"^python -m spark_jobs ([a-z]+)", command):
                assert job in (*NAMES, *SPARK_COMMANDS), where


MEASURED = re.compile(r"\d[\d,.]*\s*(?:ns|us|µs|/s|(?:messages|notifications) a second)\b")
COMMAND = re.compile(r"`(?:make|python) [^`]+`")


@pytest.mark.parametrize(
    "path", [p for p in DOCUMENTS if p.name in ("README.md", "operations.md", "signals.md")],
    ids=place,
)  # fmt: skip
def test_figures_name_the_command_that_prints_them(path: Path) -> None:
    """A paragraph or table with a measured figure has a command in it, or in its neighbours."""
    parts = path.read_text().split("\n\n")
    for number, part in enumerate(parts):
        if MEASURED.search(part):
            around = "\n\n".join(parts[max(0, number - 1) : number + 2])
            assert COMMAND.search(around), part


def test_measured_table_stands_between_its_markers() -> None:
    text = (ROOT / "README.md").read_text()
    begin, end = text.index("<!-- bench:begin -->"), text.index("<!-- bench:end -->")
    assert COMMAND.search(text[begin:end])


OF_THE_README = {
    "one process to one, single notifies, each a transaction": "1:1, single notify, each message a"
    " Notify",
    "one to 10 listeners, single notifies": "1:10, single notify, each message a Notify",
    "one to 100 listeners, single notifies": "1:100, single notify, each message a Notify",
    "wake-up of a sleeping process, two CPUs, p50": "wake-up, p50, two CPUs",
}


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("| \n").split("|")]


def figure(cell: str) -> Decimal:
    match = re.search(r"[\d.]+(?= (?:M|us|x)\b|$)", cell.partition(" [")[0])
    assert match, cell
    return Decimal(match[0])


def test_measured_table_is_of_the_run_in_the_benchmarks() -> None:
    """No figure of another run, and of the same rows all three: ours, the peer's, the ratio."""
    readme, whole = ((ROOT / name).read_text() for name in ("README.md", "docs/benchmarks.md"))
    table = readme.partition("<!-- bench:begin -->")[2].partition("<!-- bench:end -->")[0]
    run = whole.partition("\n## Python\n")[2].partition("\n## ")[0]
    date = re.search(r"\d{4}-\d\d-\d\d", run)
    assert date
    assert date[0] in readme.partition("<!-- bench:end -->")[2].partition("\n## ")[0]
    rows = {cells(line)[0]: cells(line)[2:6] for line in run.splitlines() if line.startswith("|")}
    shown = [cells(line) for line in table.splitlines() if line.startswith("|")][2:]
    assert {name for name, *_ in shown} == OF_THE_README.keys()
    for name, ours, against, ratio in shown:
        measured, peer, its, quotient = rows[OF_THE_README[name]]
        assert against.partition(":")[0] in peer, name
        found = (ours, against.partition(":")[2], ratio)
        for here, there in zip(found, (measured, its, quotient), strict=True):
            assert figure(there).quantize(figure(here), ROUND_HALF_UP) == figure(here), name


def constant(file: str, name: str) -> int:
    text = (ROOT / "native" / "src" / file).read_text()
    match = re.search(rf"#define {name} +\(?(\d+)LL(?: \* (\d+)\))?", text)
    assert match, name
    return int(match[1]) * int(match[2] or 1)


def test_times_quoted_are_those_of_the_source() -> None:
    assert constant("wakeup/send.c", "PN_CATCHES_NS") == 100_000_000
    assert constant("receive/timer.c", "PN_TIMER_MIN_NS") == 1_000_000_000
    assert constant("receive/timer.c", "PN_TIMER_MAX_NS") == 30_000_000_000
    assert constant("receive/timer.h", "PN_POLL_MODE_NS") == 2_000_000
    assert constant("segment/lock.h", "PN_LOCK_TIMEOUT_NS") == 10_000_000_000
    assert constant("commit/room.h", "PN_WARN_INTERVAL_NS") == 5_000_000_000


def test_sizes_quoted_are_those_of_segments(new_name: Callable[[], str]) -> None:
    def size(**options: int) -> int:
        name = new_name()
        with pynotify.open(name, **options):
            (info,) = (info for info in pynotify.segments() if info.name == name)
        return info.size

    text = (ROOT / "docs" / "operations.md").read_text()
    default, small = size(), size(queue_pages=64, max_backends=64)
    assert f"default segment has {default:,} bytes" in text
    assert f"`queue_pages=64, max_backends=64` {small:,} and" in text
    costs = re.findall(r"^\| `(\w+)`[^|]*\| (\d+) \| ([\d,]+) bytes each", text, re.MULTILINE)
    assert len(costs) == 4
    for option, usual, cost in costs:
        each = (size(**{option: 2 * int(usual)}) - default) // int(usual)
        assert each == int(cost.replace(",", "")), option


def test_documents_name_nothing_of_a_single_machine() -> None:
    for path in [*DOCUMENTS, *EXAMPLES]:
        assert not re.search(r"/(?:home|work|root|Users)/|https?://(?!keepachangelog|semver)",
                             path.read_text()), path.name  # fmt: skip


# ---- how they are written ------------------------------------------------------------------------

MODELS = ROOT / "native" / "models" / "README.md"
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))
PROSE = [*DOCUMENTS, MODELS, *REFERENCE]
MAX_COLUMNS = 100
MAX_README_LINES = 150
#: The subject of a sentence is a process, thread, slot, caller or reader.
NO_SUBJECT = re.compile(
    r"(?<!-)\b(?:who|whoever|whom|nobody|somebody|anybody|everybody|someone|everyone|he|his|him|anew)\b(?!-)",
    re.IGNORECASE,
)


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """The lines outside of fenced blocks: what programs print stands there as it is printed."""
    fenced = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


@pytest.mark.parametrize("path", PROSE, ids=place)
def test_lines_fit_in_100_columns(path: Path) -> None:
    """But for tables, whose rows cannot be broken, and for a name that is longer by itself."""
    assert [
        f"{path.name}:{number}"
        for number, line in prose(path)
        if len(line) > MAX_COLUMNS and not line.lstrip().startswith("|") and " " in line.strip()
    ] == []


@pytest.mark.parametrize("path", PROSE, ids=place)
def test_sentences_have_a_subject_that_the_reader_can_name(path: Path) -> None:
    lines = ((number, re.sub(r"`[^`]*`", "", line)) for number, line in prose(path))
    assert [f"{path.name}:{n}: {line}" for n, line in lines if NO_SUBJECT.search(line)] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= MAX_README_LINES


# ---- what they show ------------------------------------------------------------------------------


@pytest.fixture
def run_program(new_name: Callable[[], str], tmp_path: Path) -> Callable[[str], str]:
    """Run a program in a fresh interpreter; what it prints."""

    def run(program: str) -> str:
        name = new_name()
        file = tmp_path / "program.py"
        file.write_text(program.replace('"app"', repr(name)))
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, "-W", "error", str(file)],
            cwd=tmp_path,
            env={**os.environ, "SEGMENT": name, "DATA": str(tmp_path / "d"), "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            timeout=3 * PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout

    return run


def without_pids(text: str) -> str:
    return re.sub(r"process \d+", "process PID", text)


@pytest.mark.parametrize(
    "block", [block for block in PYTHON_BLOCKS if block.path.name not in TOGETHER], ids=place
)
def test_python_blocks_run(block: Block, run_program: Callable[[str], str]) -> None:
    printed = run_program(block.text)
    if block.output is not None:
        assert without_pids(printed) == without_pids(block.output)


@pytest.mark.parametrize(
    "path", [path for path in EXAMPLES if path.name not in TOGETHER], ids=place
)
def test_examples_run(path: Path, run_program: Callable[[str], str]) -> None:
    assert run_program(path.read_text())


def test_the_nine_lines_run_in_two_shells(new_name: Callable[[], str], tmp_path: Path) -> None:
    listen, notify = (block for block in PYTHON_BLOCKS if block.path.name == "README.md")
    lines = [line for block in (listen, notify) for line in block.text.splitlines() if line]
    assert len(lines) == 9
    printed = next(b for b in blocks(ROOT / "README.md") if b.line > notify.line and not b.language)
    name = new_name()
    shells = []
    for block, file in ((listen, "listen.py"), (notify, "notify.py")):
        assert block.text == (ROOT / "examples" / file).read_text()
        shells.append(tmp_path / file)
        shells[-1].write_text(block.text.replace('"app"', repr(name)))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error"]
    with subprocess.Popen(
        [*command, shells[0]], env=environment, stdout=subprocess.PIPE, text=True
    ) as listener:
        try:
            wait_until(lambda: any(s.name == name for s in pynotify.segments()), "a segment")
            with pynotify.open(name, create=False) as engine:
                wait_until(lambda: engine.stat().subscriptions > 0, "a listener")
            subprocess.run([*command, shells[1]], env=environment, check=True)
            assert listener.stdout is not None
            for line in printed.text.splitlines(keepends=True):
                assert without_pids(listener.stdout.readline()) == without_pids(line)
        finally:
            listener.kill()


def test_examples_are_named_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text()
    assert [path.name for path in EXAMPLES if relative(path) not in text] == []


# ---- what they quote -----------------------------------------------------------------------------


def without_numbers(text: str) -> str:
    return re.sub(r'"[^"\n]+"', '"NAME"', re.sub(r"\d+", "N", text)).strip()


def quoted(kind: str) -> set[str]:
    """The blocks without a language that begin so, numbers left out."""
    found = [block for path in DOCUMENTS for block in blocks(path) if not block.language]
    return {without_numbers(b.text) for b in found if b.text.startswith(kind)}


def said(error: BaseException) -> str:
    return without_numbers(f"pynotify.{type(error).__name__}: {error}")


def _stranger_says(conn: pynotify.Connection) -> str:
    with pytest.raises(pynotify.ForkedConnectionError) as caught:
        conn.poll()
    return said(caught.value)


def test_errors_quoted_are_real(new_name: Callable[[], str]) -> None:
    """Those that need another namespace have their own tests below."""
    name = new_name()
    with pynotify.connect(name, queue_pages=64) as conn:
        conn.listen("jobs")
        with pytest.raises(pynotify.QueueFull) as full:
            for _ in range(100):
                conn.notify("jobs", "x" * 7000)
        with pytest.raises(pynotify.LayoutMismatch) as mismatch:
            pynotify.open(name, queue_pages=128)
        real = {said(full.value), said(mismatch.value), in_child(lambda: _stranger_says(conn))}
    assert real <= quoted("pynotify.")
    rest = [text.partition(":")[0] for text in quoted("pynotify.") - real]
    assert sorted(rest) == ["pynotify.LayoutMismatch", "pynotify.SegmentFull"]


def test_warnings_quoted_are_real(
    new_name: Callable[[], str], run_program: Callable[[str], str]
) -> None:
    printed = run_program(
        "import logging, signal, sys, pynotify\n"
        'logging.basicConfig(stream=sys.stdout, format="%(levelname)s:%(name)s:%(message)s")\n'
        'with pynotify.connect("app", queue_pages=64) as conn:\n'
        '    conn.listen("c")\n'
        "    signal.signal(signal.SIGUSR1, lambda *_: None)\n"
        '    conn.listen("d")\n'
        "    for _ in range(40):\n"
        '        conn.notify("c", "x" * 7000)\n'
    )
    warnings = {without_numbers(text) for text in re.split(r"^(?=WARNING)", printed, flags=re.M)}
    assert warnings - {""} == quoted("WARNING:")


def run_privately(command: str, *options: str) -> str:
    """In namespaces of its own, as root; what it prints."""
    done = run_unshared(*options, "sh", "-c", command)
    assert done.returncode == 0, done.stderr
    return done.stdout


def attempt(tmp_path: Path, expression: str) -> str:
    """The shell command of a program that prints the error that `expression` raises."""
    script = tmp_path / "attempt.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nimport pynotify\n"
        f"try:\n    {expression}\n"
        "except pynotify.Error as error:\n"
        '    print(f"pynotify.{type(error).__name__}: {error}")\n'
    )
    return f"exec '{sys.executable}' '{script}'"


def test_error_quoted_for_a_small_dev_shm(tmp_path: Path) -> None:
    run = attempt(tmp_path, 'pynotify.open("big")')
    printed = run_privately(f"mount -t tmpfs -o size=1m tmpfs /dev/shm && {run}", "-m")
    assert without_numbers(printed) in quoted("pynotify.SegmentFull")


def test_error_quoted_for_another_pid_namespace(
    new_name: Callable[[], str], tmp_path: Path
) -> None:
    name = new_name()
    pynotify.open(name).close()
    run = attempt(tmp_path, f"pynotify.open({name!r}, create=False)")
    printed = run_privately(run, "-p", "-f", "--mount-proc")
    assert without_numbers(printed) in quoted("pynotify.LayoutMismatch")


# ---- what docs/signals.md says -------------------------------------------------------------------

_held: list[pynotify.Connection] = []
_calls: list[str] = []


def listen(name: str, **options: Any) -> None:
    _held.append(pynotify.connect(name, **options))
    _held[-1].listen("c")


def close_all() -> None:
    while _held:
        _held.pop().close()


def hear(count: int) -> list[str]:
    return payloads(receive(_held[0], count))


def dispose(how: str) -> None:
    handlers = {"default": signal.SIG_DFL, "ignored": signal.SIG_IGN, "a handler": _note}
    signal.signal(SIGNAL, handlers[how])


def _note(_number: int, _frame: object) -> None:
    _calls.append("handler")


def calls() -> list[str]:
    return list(_calls)


def table_of_dispositions() -> dict[str, tuple[str, str]]:
    text = (ROOT / "docs" / "signals.md").read_text()
    rows = re.search(r"^\| before `listen` .*?\n\|[-|]+\n(.*?)\n\n", text, re.DOTALL | re.MULTILINE)
    assert rows
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[1].splitlines()]
    return {cell[0].partition(" (")[0]: (cell[1], cell[2]) for cell in cells}


@pytest.mark.parametrize("after", [False, True], ids=["listening", "closed"])
@pytest.mark.parametrize("before", ["default", "ignored", "a handler"])
def test_foreign_signals_end_as_the_table_says(
    before: str, after: bool, engine_name: str, connect: Connect, worker: Worker
) -> None:
    expected = table_of_dispositions()[before][after]
    worker.call(dispose, before)
    worker.call(listen, engine_name)
    connect().notify("c", "x")
    assert worker.call(hear, 1) == ["x"]
    assert worker.call(calls) == []
    if after:
        worker.call(close_all)
    worker.signal(SIGNAL)
    if expected == "terminates the process":
        assert worker.join() == -SIGNAL
    elif expected == "runs the handler":
        wait_until(lambda: worker.call(calls) == ["handler"], "the handler ran")
    else:
        assert expected == "ignored"
        assert worker.call(calls) == []


def _signal_a_forked_child() -> int:
    pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), SIGNAL)
        os._exit(len(_calls))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize(
    ("before", "status"), [("default", -SIGNAL), ("ignored", 0), ("a handler", 1)]
)
def test_forked_child_keeps_what_the_parent_had(
    engine_name: str, worker: Worker, before: str, status: int
) -> None:
    worker.call(dispose, before)
    worker.call(listen, engine_name)
    assert worker.call(_signal_a_forked_child) == status


def started_program_ignores() -> bool:
    command = ["grep", "SigIgn", "/proc/self/status"]
    line = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return bool(int(line.split()[1], 16) >> (SIGNAL - 1) & 1)


@pytest.mark.parametrize(
    ("before", "expected"), [("ignored", [True, False, True]), ("default", [False, False, True])]
)
def test_what_a_started_program_inherits(
    engine_name: str, worker: Worker, before: str, expected: list[bool]
) -> None:
    worker.call(dispose, before)
    seen = [worker.call(started_program_ignores)]
    worker.call(listen, engine_name)
    seen.append(worker.call(started_program_ignores))
    worker.call(close_all)
    seen.append(worker.call(started_program_ignores))
    assert seen == expected


def watch() -> tuple[bool, list[str]]:
    """As an event loop of its own does: the descriptor, then poll()."""
    heard: list[str] = []
    until = time.monotonic() + PATIENCE
    while not heard and time.monotonic() < until:
        readable(_held[0].fileno(), PATIENCE)
        heard = payloads(_held[0].poll())
    return bool(heard), heard


def block_signal() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [SIGNAL])


def wait() -> bool:
    return _held[0].wait(PATIENCE)


def test_loop_whose_handler_was_reset_is_helped(
    engine: pynotify.Engine, engine_name: str, connect: Connect, worker: Worker
) -> None:
    worker.call(listen, engine_name)
    worker.call(dispose, "default")
    worker.start(watch)
    began = time.monotonic()
    connect().notify("c", "x")
    assert worker.result() == (True, ["x"])
    assert time.monotonic() - began < PATIENCE / 2
    wait_until(lambda: engine.stat().handler_reinstalls == 1 or worker.call(poll_later), "again")


def poll_later() -> bool:
    """Lets the timer of the descriptor be served; never true."""
    readable(_held[0].fileno(), PATIENCE)
    _held[0].poll()
    return False


def test_sleeper_that_blocks_the_signal_is_helped(
    engine_name: str, connect: Connect, worker: Worker
) -> None:
    worker.call(block_signal)
    worker.call(listen, engine_name)
    worker.start(wait)
    connect().notify("c", "x")
    began = time.monotonic()
    assert worker.result() is True
    assert time.monotonic() - began < PATIENCE / 2


class Resetting:
    """A child that listens, hears one message, and resets SIGUSR1 behind our back."""

    def __init__(self, engine: pynotify.Engine) -> None:
        self._reading, writing = os.pipe()

        def body() -> None:
            signal.signal(SIGNAL, signal.SIG_DFL)
            with engine.connect() as conn:
                conn.listen("c")
                os.write(writing, b"l")
                receive(conn, 1)
                conn.poll()
                signal.signal(SIGNAL, signal.SIG_DFL)
                os.write(writing, b"r")
                select.select([], [], [], PATIENCE)

        self.child = ForkedChild(body)
        os.close(writing)

    def await_step(self) -> None:
        assert os.read(self._reading, 1)

    def end(self) -> int:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.child.pid, signal.SIGKILL)
        os.close(self._reading)
        return self.child.join()


def signal_after_reset(engine: pynotify.Engine, conn: pynotify.Connection, pause: float) -> int:
    child = Resetting(engine)
    child.await_step()
    conn.notify("c", "1")
    child.await_step()
    time.sleep(pause)
    conn.notify("c", "2")
    readable(child.child.pidfd, 0.2)
    return child.end()


def test_the_window_of_100_ms_is_as_described(engine: pynotify.Engine, connect: Connect) -> None:
    """A defect that is admitted.  When this fails because no process dies, tell docs/signals.md."""
    conn = connect()
    assert signal_after_reset(engine, conn, 0.15) == -signal.SIGKILL
    ends = (signal_after_reset(engine, conn, 0.0) for _ in range(20))
    assert -SIGNAL in ends


def _worker_after_fork(name: str) -> None:
    """What gunicorn's and uvicorn's workers do, then what the application does."""
    signal.signal(SIGNAL, signal.SIG_DFL)
    signal.signal(SIGNAL, _note)
    signal.siginterrupt(SIGNAL, False)
    _held.append(pynotify.get(name))
    _held[0].listen("c")


def test_worker_that_resets_its_signals_after_the_fork(
    engine_name: str, connect: Connect, worker: Worker
) -> None:
    worker.call(_worker_after_fork, engine_name)
    conn = connect()
    for number in range(5):
        worker.start(hear, 1)
        conn.notify("c", str(number))
        assert worker.result() == [str(number)]
    assert worker.call(calls) == []
    worker.signal(SIGNAL)
    wait_until(lambda: worker.call(calls) == ["handler"], "its own handler ran")


class _SoftTimeLimitExceeded(Exception):
    pass


def _celery_task(name: str, wakeup: int) -> str:
    def handler(_number: int, _frame: object) -> None:
        raise _SoftTimeLimitExceeded

    signal.signal(SIGNAL, handler)
    with pynotify.connect(name, wakeup=wakeup) as conn:
        conn.listen("c")
        heard = 0
        try:
            for _note in conn.notifies(timeout=PATIENCE):
                heard += 1
        except _SoftTimeLimitExceeded:
            return f"soft limit after {heard}"
    return "timeout"


def test_handler_that_raises_as_celerys_does(
    engine: pynotify.Engine, engine_name: str, connect: Connect, worker: Worker
) -> None:
    worker.start(_celery_task, engine_name, int(signal.SIGRTMIN) + 4)
    wait_until(lambda: engine.stat().subscriptions == 1, "it listens")
    conn = connect()
    for number in range(20):
        conn.notify("c", str(number))
    wait_until(lambda: conn.queue_usage() == 0 and _all_read(engine), "it has read them")
    worker.signal(SIGNAL)
    assert worker.result() == "soft limit after 20"


def _all_read(engine: pynotify.Engine) -> bool:
    return all(row.asleep for row in engine.stat().backends if row.channels)
