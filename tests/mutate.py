"""How much the tests notice: random mutations of the sources, and which of them no test catches.

    python tests/mutate.py [--mutants 100] [--seed S] [--from N] [--to N] [--only GLOB ...]
                           [--state FILE] [--map FILE] [--near] [--trust] [--jobs N] [--keep DIR]

universalmutator makes the mutants: an operator, a constant, a condition or a statement of one
line.  Lines are drawn from all code lines of the core, the binding, the gateway, the package and
the Spark jobs.  Of N mutants each is of another Nth of these lines, in the order of their files, so
that each line has the same chance and no part is left out; they are judged in random order, so that
the first ones of a run are of all parts, too.  A mutant counts when it builds and differs: one
whose object file without assertions and crash points, or whose syntax tree without texts, types and
assertions, is that of the original is drawn again.

It is caught when a test fails twice, the second time by itself; those marked `full` and `long` and
the linters do not run.  What does not end in its time is run without the mutation as well: if that
does not end either, it says nothing.  The tests have to pass without a mutation: all of them
before, or with `--trust` those that have caught one, afterwards.  Near tests come first: those that
execute the line when there is a map of them (`--map`, made by tests/mutate_map.py), and those that
name what the mutated file declares.  Mutants that survive these are put aside, and judged in the
end by the whole suite one after another.

With `--state` the mutants and the verdicts so far are kept in a file, and a run that was stopped
goes on where it was: with the same sources, whatever tests were written since.  `--from N` and
`--to N` leave others out.  PYNOTIFY_TIME_FACTOR multiplies all limits, for a busy machine.

The tests run in a copy of the checkout, in name spaces of their own for processes, mounts and
shared memory: a mutant signals and removes what it should not.  The exit status is 1 when fewer
than 95 % are caught.  Each that is not is printed and has to be read: a mutation that changes only
a speed, a text or what cannot happen is not a fault of the tests.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import filecmp
import fnmatch
import hashlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutate_map import Map, native, python

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (
    "native/src/*/*.[ch]",
    "native/python/*.[ch]",
    "native/gateway/*.[ch]",
    "pynotify/**/*.py",
    "spark_jobs/**/*.py",
)
WANTED = 0.95
COMPILE = "cc -std=gnu11 -O2 -I native/include -I native/src -I native/gateway -I native/python -c"
RELEASE = ("-DNDEBUG",)
CHECKED = ("-UNDEBUG", "-DPN_CRASHPOINTS=1")  # a mutant that only this one shows is of the tests
KEPT = ("-fkeep-static-functions", "-fkeep-inline-functions")  # or a header would be empty
BINDING = Path("native/python")  # C that needs an interpreter: a part of the extension alone
GATEWAY = Path("native/gateway")  # in the extension, too
WARNINGS = "-Wall -Wextra -Wconversion -Wshadow -Werror"  # as CMakeLists.txt has them
# Against mutants that hang; the slowest test of an unchanged copy takes a fifth of it.
TEST_LIMIT_S, NEAR_LIMIT_S, STEP_LIMIT_S = 240, 45, 1800
PLAIN = "not spark and not full"
BOUND = {  # what the binding has of its own: what is sent, received, and kept of it
    f"tests/{name}.py"
    for name in (
        "core/test_delivery",
        "core/test_notify",
        "core/test_full_queue",
        "connection/test_receiving",
        "connection/test_interrupts",
        "connection/test_subscriptions",
        "segment/test_bad_input",
    )
}
LEFT_OUT = ("test_sourcecode.py", "test_packaging.py")  # of style, and of what is built
APART = "--pid --fork --kill-child --mount-proc --mount"
FUNCTION = r"^(?:PN_API )?[a-z][\w *]*?\b(\w+)\("
PASSED = (0, 5, 77)  # pytest had nothing to run; a native test was skipped
TIME_FACTOR = int(os.environ.get("PYNOTIFY_TIME_FACTOR", "1"))
TRIES = 40  # mutants of one line that are looked at before another line is drawn
NEAR_S = 40  # how long the tests that execute a line may take together, at first


@dataclass(frozen=True)
class Mutant:
    file: Path  # below the root
    line: int
    new: str  # the line, mutated

    def text(self) -> str:
        """The whole file."""
        lines = (ROOT / self.file).read_text().split("\n")
        lines[self.line - 1] = self.new
        return "\n".join(lines)

    @property
    def is_native(self) -> bool:
        return self.file.suffix in (".c", ".h")

    @property
    def is_core(self) -> bool:
        return self.is_native and self.file.parent not in (BINDING, GATEWAY)

    @property
    def part(self) -> str:
        """The folder that it is counted for."""
        depth = 3 if self.is_native else 2
        return "/".join(self.file.parts[: min(depth, len(self.file.parts) - 1)])

    def __str__(self) -> str:
        old = (ROOT / self.file).read_text().split("\n")[self.line - 1]
        return f"{self.file}:{self.line}\n    -{old}\n    +{self.new}"


Step = tuple[str, Callable[[], bool]]
BUILDS = ("the compiler", "the extension's build")


# ---- what is mutated ---------------------------------------------------------------------------


def code_lines(path: Path) -> list[int]:
    """Line numbers that hold code: no comments, texts, directives or blank lines."""
    text = path.read_text()
    if path.suffix == ".py":
        lines: set[int] = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.stmt) and not _is_text(node) and not _is_import(node):
                first = node.lineno
                last = node.body[0].lineno - 1 if hasattr(node, "body") else node.end_lineno
                lines.update(range(first, max(first, last or first) + 1))
            elif isinstance(node, ast.ExceptHandler):
                lines.add(node.lineno)
            elif isinstance(node, ast.match_case):
                lines.update(range(node.pattern.lineno, node.body[0].lineno))
        return sorted(lines)
    blank = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.DOTALL)
    return [
        n
        for n, line in enumerate(blank.split("\n"), 1)
        if re.search(r"\w", line) and not line.lstrip().startswith("#")
    ]


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _has_fields(node: ast.ClassDef) -> bool:
    """Whether an annotation is more than a type there: in a data class, a tuple."""
    return bool(node.decorator_list) or any("Tuple" in ast.unparse(base) for base in node.bases)


def _is_type(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign) and node.value is None


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def made_of(path: Path, line: int, into: Path) -> list[Path]:
    """The mutants of one line, as files."""
    with tempfile.NamedTemporaryFile("w", suffix=".lines") as lines:
        print(line, file=lines, flush=True)
        subprocess.run(
            [
                Path(sys.executable).with_name("mutate"),
                ROOT / path,
                "--noCheck",
                "--lines",
                lines.name,
                "--mutantDir",
                into,
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return sorted(into.glob(f"{path.stem}.mutant.*"))


class _Bare(ast.NodeTransformer):
    """Leaves out what no test can notice: texts (a message may say what it likes), types, and
    assertions.
    """

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant("") if isinstance(node.value, str) else node

    def visit_FunctionDef(self, node: Any) -> ast.AST | None:
        if any("overload" in ast.unparse(by) for by in node.decorator_list):
            return None
        node.returns = None
        return self.generic_visit(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant("")
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        if not _has_fields(node):
            node.body = [ast.Pass() if _is_type(inner) else inner for inner in node.body]
        return self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return ast.Pass()

    def visit_If(self, node: ast.If) -> ast.AST:
        return ast.Pass() if "TYPE_CHECKING" in ast.unparse(node.test) else self.generic_visit(node)


def _tree(text: str) -> str:
    return ast.dump(_Bare().visit(ast.parse(text)))


def differs(path: Path, mutant: Path, scratch: Path) -> bool:
    """Whether the mutant builds, and is another program than the original."""
    if path.suffix == ".py":
        with contextlib.suppress(SyntaxError, ValueError):
            return _tree(mutant.read_text()) != _tree((ROOT / path).read_text())
        return False
    for of_another in scratch.glob("mutant*.o"):
        of_another.unlink()
    built = {
        (name, options): _object(path, source, scratch / f"{name}{number}", options)
        for name, source in (("original", ROOT / path), ("mutant", mutant))
        for number, options in enumerate((RELEASE, CHECKED))
    }
    objects = {name: at for (name, options), at in built.items() if options is RELEASE}
    if not all(at.exists() for at in built.values()):
        return False
    if filecmp.cmp(objects["original"], objects["mutant"], shallow=False):
        return False
    # One that has other names does not link.
    defined, needed = _names(objects["original"])
    defined_now, needed_now = _names(objects["mutant"])
    return defined == defined_now and needed_now <= needed


def _object(path: Path, source: Path, scratch: Path, options: tuple[str, ...]) -> Path:
    """The object file of a source, or of all that a header defines, if it builds."""
    if scratch.with_suffix(".o").exists():
        return scratch.with_suffix(".o")  # the original, built for the mutant before
    # Original and mutant have one name, so that __FILE__ is the same; a header is found first here.
    place = scratch.with_name("unit") / Path(*path.parts[2:])
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, place)
    command = [*COMPILE.split(), *WARNINGS.split(), *options, "-o", str(scratch.with_suffix(".o"))]
    command += ["-isystem", sysconfig.get_path("include"), "-I", str(scratch.with_name("unit"))]
    if path.suffix == ".h":
        unit = scratch.with_name("unit.c")
        unit.write_text(f'#include "{place}"\n')
        command += [*KEPT, str(unit)]
    else:
        command.append(str(place))
    subprocess.run(command, cwd=ROOT, stderr=subprocess.DEVNULL, check=False)
    return scratch.with_suffix(".o")


def _names(built: Path) -> tuple[set[str], set[str]]:
    """What an object file defines for others, and what it needs of them."""
    shown = subprocess.run(["nm", "-g", built], check=True, capture_output=True, text=True)
    rows = [row.split()[-2:] for row in shown.stdout.splitlines()]
    return {n for kind, n in rows if kind != "U"}, {n for kind, n in rows if kind == "U"}


def strata(
    rng: random.Random, lines: list[tuple[Path, int]], wanted: int
) -> list[list[tuple[Path, int]]]:
    """As many equal runs of lines as mutants are wanted, in random order."""
    ends = [len(lines) * n // wanted for n in range(wanted + 1)]
    found = [lines[a:b] or lines for a, b in itertools.pairwise(ends)]
    rng.shuffle(found)
    return found


def draw(rng: random.Random, lines: list[tuple[Path, int]]) -> Mutant:
    while True:
        path, line = rng.choice(lines)
        with tempfile.TemporaryDirectory() as name:
            made, scratch = made_of(path, line, Path(name)), Path(name) / "objects"
            scratch.mkdir()
            rng.shuffle(made)
            for candidate in made[:TRIES]:
                new = candidate.read_text().split("\n")
                old = (ROOT / path).read_text().split("\n")
                changed = [n for n, (a, b) in enumerate(zip(old, new, strict=False), 1) if a != b]
                if len(old) == len(new) and changed == [line] and differs(path, candidate, scratch):
                    return Mutant(path, line, new[line - 1])


# ---- what runs ---------------------------------------------------------------------------------


class Copy:
    """A copy of the checkout that is built and tested with one file changed at a time."""

    def __init__(self, where: Path, jobs: int) -> None:
        self.root, self.jobs = where, str(jobs)
        self.late = False  # whether something had to be ended since this was last reset
        files = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        for file in filter(None, files.stdout.split("\0")):
            source, to = ROOT / file, where / file
            # As it is, or new: what was built of a mutant, when a run was stopped, is built again.
            if source.is_file() and not (to.is_file() and filecmp.cmp(source, to, shallow=False)):
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, to)
        for built in (where / "pynotify").glob("*.so"):
            built.unlink()
        shutil.rmtree(where / "build" / "unmutated", ignore_errors=True)
        self.log = where / "mutate.log"
        self.env = {
            **os.environ,
            "PYTHONPATH": str(where),
            "CI": "",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.env["PATH"] = f"{Path(sys.executable).parent}:{self.env['PATH']}"
        self.env["PYNOTIFY_CRASHPOINTS"] = "1"
        if shutil.which("ccache"):
            self.env["CMAKE_C_COMPILER_LAUNCHER"] = "ccache"
        self.built_with: str | None = None  # the mutated C file that is in the extension

    def run(self, command: list[str], *, apart: bool = False, limit_s: float = 0) -> bool:
        """Run it in the copy; `apart`: where no process, mount or segment outside is seen."""
        if apart:
            user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
            # Process 1 is the shell: tests take that for a stranger.
            inside = 'mount -t tmpfs -o mode=1777 tmpfs /dev/shm && "$@"; exit $?'
            command = ["unshare", *user, *APART.split(), "sh", "-c", inside, "sh", *command]
        with self.log.open("a") as log:
            print(f"\n$ {' '.join(command)}", file=log, flush=True)
            process = subprocess.Popen(
                command,
                cwd=self.root,
                env=self.env,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                return process.wait((limit_s or STEP_LIMIT_S) * TIME_FACTOR) in PASSED
            except subprocess.TimeoutExpired:
                self.late = True
                return False
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
                process.wait()

    def build(self, *targets: str) -> bool:
        ready = (self.root / "build/release/CMakeCache.txt").exists()
        configure = ["cmake", "-S", ".", "-B", "build/release", "-DCMAKE_BUILD_TYPE=RelWithDebInfo"]
        configure += [f"-DPYNOTIFY_TEST_TIMEOUT={TEST_LIMIT_S}"]
        these = ["--target", *targets] if targets else []
        return (ready or self.run(configure)) and self.run(
            ["cmake", "--build", "build/release", "--parallel", self.jobs, *these]
        )

    def extension(self, mutated: str | None = None) -> bool:
        """Build it, unless it is there as wanted: with this mutated file, or as it was."""
        package, kept = self.root / "pynotify", self.root / "build" / "unmutated"
        if mutated is self.built_with is None and list(package.glob("*.so")):
            return True
        self.built_with = mutated
        if mutated is None and kept.exists():
            shutil.copytree(kept, package, dirs_exist_ok=True)
            return True
        compiler = ["env", "CC=ccache cc"] if shutil.which("ccache") else []
        done = self.run(
            [*compiler, sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--force"]
        )
        if done and mutated is None:
            kept.mkdir(parents=True, exist_ok=True)
            for built in package.glob("*.so"):
                shutil.copy(built, kept)
        return done

    def program(self, name: str, limit_s: float) -> bool:
        """One of the native tests."""
        command = [f"build/release/native/tests/{name}"]
        return self._twice(*[lambda: self.run(command, apart=True, limit_s=limit_s)] * 2)

    def _twice(self, first: Callable[[], bool], again: Callable[[], bool]) -> bool:
        """Whether one of them passes; what does not end is not begun again."""
        return first() or (not self.late and again())

    def ctest(self, *options: str) -> bool:
        command = f"ctest --test-dir build/release -j{self.jobs} --output-on-failure"
        command += " --stop-on-failure"
        return self.run([*command.split(), "--repeat", "until-pass:2", *options], apart=True)

    def pytest(self, *options: str, limit_s: float = 0) -> bool:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--maxfail=1",
            f"--timeout={limit_s or TEST_LIMIT_S}",
            "--ignore=tests/project/test_sourcecode.py",
            "--ignore=tests/project/test_packaging.py",
            *options,
        ]
        first = [*command, "-n", self.jobs]
        again = [*command, "-n", "0", "--last-failed", "--last-failed-no-failures", "all"]
        whole_s = 4 * limit_s  # of all of them, where each has a limit
        return self._twice(*(lambda c=c: self._watched(c, whole_s) for c in (first, again)))

    def _watched(self, command: list[str], limit_s: float) -> bool:
        passed = self.run(command, apart=True, limit_s=limit_s)
        # A test that takes too long ends its process with this line: tests/conftest.py.
        self.late = self.late or (not passed and "\nTimeout (" in self._last_output())
        return passed

    def _last_output(self) -> str:
        return self.log.read_text(errors="replace").rpartition("\n$ ")[2]

    def failed(self) -> str:
        """The test that the output of the last command names as failed."""
        failed = r"^(?:FAILED|ERROR) ([^\s\[]+)|^\s+\d+ - (\w+) \("
        found = re.findall(failed, self._last_output(), re.MULTILINE)
        return "".join(found[-1]) if found else ""

    def passes(self) -> bool:
        """Whether the tests pass as they are: else all would look caught."""
        return self.ctest("-LE", "long") and self.pytest("-m", PLAIN)


def naming(mutant: Mutant, pattern: str, most: int) -> list[Path]:
    """Tests that name what is around the line or in its file: what few tests name weighs more."""
    words = declared(mutant.file) | enclosing(mutant)
    named = {
        path.relative_to(ROOT): words & set(re.findall(r"\w+", path.read_text()))
        for path in ROOT.glob(pattern)
        if path.name not in LEFT_OUT
    }
    often = Counter(word for found in named.values() for word in found)
    weights = {path: sum(1 / often[word] for word in found) for path, found in named.items()}
    parts = [part.lstrip("_") for part in (*mutant.file.parts[1:-1], mutant.file.stem)]
    for path in weights:
        # Those of the same folder, and of the same name, be it that of the folder.
        name = path.stem.removeprefix("test_")
        weights[path] += 2 * (path.parent.name in parts)
        weights[path] += 2 * (name in parts) + any(name.startswith(f"{part}_") for part in parts)
        weights[path] += path.stem.endswith(mutant.file.stem.lstrip("_"))
    return sorted(filter(weights.get, weights), key=lambda path: -weights[path])[:most]


def enclosing(mutant: Mutant) -> set[str]:
    """The function that the line is in, and the classes around it."""
    text = (ROOT / mutant.file).read_text()
    if mutant.is_native:
        before = "\n".join(text.split("\n")[: mutant.line])
        return set(re.findall(FUNCTION, before, flags=re.MULTILINE)[-1:])
    return {
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and node.lineno <= mutant.line <= (node.end_lineno or 0)
    }


def declared(path: Path) -> set[str]:
    """What a source file offers others: functions of a C file, public names of a module."""
    text = (ROOT / path).read_text()
    if path.suffix in (".c", ".h"):
        functions = set(re.findall(FUNCTION, text, flags=re.MULTILINE))
        return {name for name in functions if name.startswith("pn_")} | {path.stem}
    return {
        name
        for name in re.findall(r"^\s*(?:async )?(?:def|class) (\w+)", text, re.MULTILINE)
        if not name.startswith("_")
    } | {path.stem.lstrip("_")}


def near(copy: Copy, mutant: Mutant, tests: Map | None) -> Iterator[Step]:
    """The steps that are likely to catch it: the tests that execute or name what was mutated."""
    if mutant.file.parent == BINDING:
        yield "the extension's build", lambda: copy.extension(str(mutant.file))
        for these in (["tests/core/test_hot.py"], sorted(BOUND)):
            yield (
                "pytest",
                lambda these=these: copy.pytest("-m", PLAIN, *these, limit_s=NEAR_LIMIT_S),
            )
        return
    if mutant.file.parent == GATEWAY:
        yield "the compiler", lambda: copy.build("pynotify-gateway", "fuzz_gateway")
        yield "ctest", lambda: copy.ctest("-R", "gateway")
        yield "the extension's build", lambda: copy.extension(str(mutant.file))
        files = [str(path) for path in naming(mutant, "tests/gateway/test_*.py", 99)]
        yield "pytest", lambda: copy.pytest("-m", PLAIN, *files, limit_s=TEST_LIMIT_S)
        return
    executing = tests.tests(mutant.file, mutant.line, NEAR_S) if tests else []
    if mutant.is_native:
        named = [path.stem for path in naming(mutant, "native/tests/**/test_*.c", 8)]
        first = [name for name in named if name in executing][:4]
        if tests:
            named[2:] = sorted(named[2:], key=lambda name: tests.seconds.get(name, NEAR_S))[:4]
        for program in list(dict.fromkeys([*first, *executing]))[:8] or named:
            took = tests.seconds.get(program, TEST_LIMIT_S) if tests else TEST_LIMIT_S
            limit = min(TEST_LIMIT_S, max(30.0, 10 * took))
            yield "the compiler", lambda program=program: copy.build(program)
            yield program, lambda program=program, limit=limit: copy.program(program, limit)
        return
    yield "the extension's build", copy.extension
    if executing:
        yield "pytest", lambda: copy.pytest("-m", marks(mutant), *executing)
    yield from naming_it(copy, mutant)


def naming_it(copy: Copy, mutant: Mutant) -> Iterator[Step]:
    """The likeliest file first: most are caught there, and at once."""
    files = [str(path) for path in naming(mutant, "tests/**/test_*.py", 4)]
    for these in filter(None, (files[:1], files[1:])):
        yield (
            "pytest",
            lambda these=these: copy.pytest("-m", marks(mutant), *these, limit_s=NEAR_LIMIT_S),
        )


def above(copy: Copy, mutant: Mutant) -> Iterator[Step]:
    """For a mutant of the core that survives the native tests: the Python tests that name it."""
    yield "the extension's build", lambda: copy.extension(str(mutant.file))
    yield from naming_it(copy, mutant)


def everything(copy: Copy, mutant: Mutant) -> Iterator[Step]:
    if mutant.is_native:
        yield "the compiler", copy.build
    if mutant.is_core:
        yield "ctest", lambda: copy.ctest("-LE", "long")
    yield (
        "the extension's build",
        lambda: copy.extension(str(mutant.file) if mutant.is_native else None),
    )
    rest = [] if marks(mutant) == PLAIN else ["tests/spark", "tests/demo"]
    yield "pytest", lambda: copy.pytest("-m", marks(mutant), *rest)


def marks(mutant: Mutant) -> str:
    """Only the jobs and the demo have tests with Spark."""
    has_spark = "demo" in mutant.file.parts or mutant.file.parts[0] == "spark_jobs"
    return "not full" if has_spark else PLAIN


def judge(copy: Copy, mutant: Mutant, steps: Iterator[Step]) -> str | None:
    """What caught it."""
    place = copy.root / mutant.file
    original = place.read_text()
    place.write_text(mutant.text())
    builds = []
    try:
        for name, ok in steps:
            copy.late = False
            if ok():
                builds += [ok] if name in BUILDS else []
                continue
            by = f"{name} {copy.failed()}".strip()
            if not copy.late:
                return by
            place.write_text(original)
            copy.late = False
            if all(build() for build in builds) and ok():
                return f"{by}, which does not end"
            place.write_text(mutant.text())  # that step says nothing: go on as if it had passed
            if not all(build() for build in builds):
                return "the build, the second time"
        return None
    finally:
        place.write_text(original)


# ---- a run -------------------------------------------------------------------------------------


class Run:
    """The mutants and the verdicts so far; as lines of JSON in a file, when there is one."""

    def __init__(self, path: Path | None, seed: int, wanted: int, files: list[Path]) -> None:
        self.path, self.seed, self.wanted = path, seed, wanted
        self.mutants: list[Mutant] = []
        self.by: dict[str, dict[int, str | None]] = {"near": {}, "above": {}, "all": {}}
        digest = hashlib.sha256(b"".join((ROOT / file).read_bytes() for file in files))
        head = {"seed": seed, "mutants": wanted, "sources": digest.hexdigest()}
        if path is None or not path.exists():
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._write(**head)
            return
        first, *rest = map(json.loads, path.read_text().splitlines())
        if first != head:
            raise SystemExit(f"{path} is of another seed, number or sources: give another")
        for row in rest:
            if "file" in row:
                self.mutants.append(Mutant(Path(row["file"]), row["line"], row["new"]))
            else:
                self.by[row["stage"]][row["mutant"]] = row["by"]

    def _write(self, **row: Any) -> None:
        if self.path is not None:
            with self.path.open("a") as file:
                print(json.dumps(row), file=file)

    def draw(self, lines: list[tuple[Path, int]]) -> Iterator[Mutant]:
        """The mutants one after the other, new ones only as they are asked for."""
        rng = random.Random(self.seed)
        for number, these in enumerate(strata(rng, lines, self.wanted)):
            # Each has a generator of its own, so that a run goes on where it was stopped.
            own = random.Random(rng.random())
            if number >= len(self.mutants):
                mutant = draw(own, these)
                self.mutants.append(mutant)
                self._write(file=str(mutant.file), line=mutant.line, new=mutant.new)
            yield self.mutants[number]

    def judge(self, copy: Copy, stage: str, number: int, steps: Iterator[Step]) -> None:
        if number in self.by[stage]:
            return
        began, mutant = time.monotonic(), self.mutants[number]
        by = judge(copy, mutant, steps)
        took = round(time.monotonic() - began)
        self.by[stage][number] = by
        self._write(stage=stage, mutant=number, by=by, took=took)
        says = f"caught by {by}" if by else "NOT CAUGHT" if stage == "all" else "survives"
        say(f"{stage} {number + 1}/{self.wanted}, {took} s: {says}: {mutant}")

    def judge_all(
        self,
        copy: Copy,
        tests: Map | None,
        mutants: Iterator[Mutant],
        numbers: slice,
        *,
        only_near: bool,
    ) -> None:
        for number, mutant in itertools.islice(enumerate(mutants), numbers.start, numbers.stop):
            self.judge(copy, "near", number, near(copy, mutant, tests))
            if mutant.is_core and self.by["near"][number] is None:
                self.judge(copy, "above", number, above(copy, mutant))
        for number in [] if only_near else self.survivors():
            self.judge(copy, "all", number, everything(copy, self.mutants[number]))

    def survivors(self) -> list[int]:
        return [
            number
            for number, by in sorted(self.by["near"].items())
            if by is None and self.by["above"].get(number) is None
        ]

    def void(self, copy: Copy) -> list[str]:
        """What has caught some and fails without a mutation as well: those are caught no more."""
        by = {test for stage in self.by.values() for test in stage.values() if test}
        programs = {test for test in by if re.fullmatch(r"test_\w+", test)}
        nodes = {test.split()[1] for test in by if re.fullmatch(r"pytest tests/\S+", test)}
        if not (copy.build(*programs) and copy.extension()):
            return ["the build"]
        failing = [name for name in sorted(programs) if not copy.program(name, TEST_LIMIT_S)]
        if nodes and not copy.pytest("-m", "not full", *sorted(nodes)):
            failing += [f"pytest {n}" for n in sorted(nodes) if not copy.pytest(n)]
        for stage in self.by.values():
            stage.update({number: None for number, test in stage.items() if test in failing})
        return failing

    def missed(self) -> list[int]:
        return [n for n in self.survivors() if self.by["all"].get(n) is None]

    def parts(self) -> str:
        """A line for each part: how many were judged, and how many of them caught."""
        judged = Counter(self.mutants[n].part for n in self.by["near"])
        missed = Counter(self.mutants[n].part for n in self.missed())
        rows = [f"{judged[part] - missed[part]:4} of {judged[part]:3}  {part}" for part in judged]
        return "\n".join(sorted(rows, key=lambda row: row.split()[-1]))


def say(text: str) -> None:
    print(text, flush=True)


def map_of(copy: Copy, path: Path, parts: list[str]) -> Map:
    if not path.exists():
        made = Map()
        with tempfile.TemporaryDirectory(prefix="mutate-map-") as where:
            for name in parts:
                (Path(where) / name).mkdir()
            if "native" in parts:
                native(copy, Path(where) / "native", made)
            if "python" in parts:
                python(copy, Path(where) / "python", PLAIN, made)
        made.save(path)
    return Map.load(path)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--mutants", type=int, default=100, help="how many (100)")
    parser.add_argument("--seed", type=int, default=None, help="the same mutants again")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="GLOB", help="files to mutate")
    parser.add_argument("--state", type=Path, metavar="FILE", help="go on from here; wants --seed")
    parser.add_argument("--map", type=Path, metavar="FILE", help="which tests execute which line")
    parser.add_argument(
        "--map-of",
        nargs="+",
        choices=("native", "python"),
        default=["native", "python"],
        help="of which tests: the native ones take minutes, the others half an hour",
    )
    parser.add_argument("--near", action="store_true", help="leave what survives these for later")
    parser.add_argument(
        "--trust", action="store_true", help="run only those that catch one unchanged"
    )
    parser.add_argument(
        "--from", type=int, default=1, dest="begin", metavar="N", help="begin there"
    )
    parser.add_argument("--to", type=int, dest="end", metavar="N", help="end there")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="tests side by side (one a core)"
    )
    parser.add_argument("--keep", type=Path, help="build the copy here, and keep it")
    args = parser.parse_args()
    if args.state and args.seed is None:
        parser.error("--state wants --seed")
    return args


def main() -> int:
    args = arguments()
    # What was begun is ended, and the copy is as it was, also when a run is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    seed = random.SystemRandom().randrange(10**6) if args.seed is None else args.seed
    files = sorted({p.relative_to(ROOT) for pattern in SOURCES for p in ROOT.glob(pattern)})
    files = [p for p in files if any(fnmatch.fnmatch(str(p), glob) for glob in args.only)]
    lines = [(path, line) for path in files for line in code_lines(ROOT / path)]
    if not lines:
        raise SystemExit(f"no source file is called {' or '.join(args.only)}")
    say(f"seed {seed}: {args.mutants} mutants of {len(lines)} lines in {len(files)} files")

    run = Run(args.state, seed, args.mutants, files)
    with contextlib.ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="mutate-")
        where = args.keep or Path(stack.enter_context(temporary))
        where.mkdir(parents=True, exist_ok=True)
        copy = Copy(where, args.jobs)
        # What a trusted run needs is built for each mutant.
        ready = copy.build("pynotify_core") if args.trust else copy.build() and copy.extension()
        if not (ready and (args.trust or copy.passes())):
            say(
                f"{copy.log.read_text()[-4000:]}\n\nwithout any mutation something fails, see above"
            )
            return 2
        tests = map_of(copy, args.map, args.map_of) if args.map else None
        numbers = slice(args.begin - 1, args.end)
        run.judge_all(copy, tests, run.draw(lines), numbers, only_near=args.near)
        if args.trust and (failing := run.void(copy)):
            say(f"fails without any mutation, and so catches none: {', '.join(failing)}")
    missed = run.missed()
    judged = len(run.by["near"])
    print(f"\n{run.parts()}\n\n{judged - len(missed)} of {judged} caught (seed {seed})")
    print(*(f"{n + 1}: {run.mutants[n]}" for n in missed), sep="\n")
    return 1 if len(missed) > (1 - WANTED) * judged else 0


if __name__ == "__main__":
    sys.exit(main())
