"""How much the tests notice: random mutations of the sources, and which of them no test catches.

    python tests/mutate.py [--mutants 100] [--seed S] [--only GLOB ...] [--trust] [--keep DIR]

universalmutator makes the mutants: an operator, a constant, a condition or a statement of one
line.  Lines are drawn from all code lines of the core, of the package and of the Spark jobs; each
has the same chance.  A mutant counts when it builds and differs: one whose object file, or whose
syntax tree without its texts, is that of the original is drawn again.  It is caught when a test
fails twice, the second time by itself, or does not end.  Tests that name what the mutated file
declares run first, then the others; those marked `full` and `long` and the linters do not run.

The tests run in a copy of the checkout, in name spaces of their own for processes, mounts and
shared memory: a mutant signals and removes what it should not.  The exit status is 1 when fewer
than 95 % are caught.  Each that is not is printed and has to be read: a mutation that changes only
a speed, a text or what cannot happen is not a fault of the tests.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import filecmp
import fnmatch
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("native/src/*/*.c", "pynotify/**/*.py", "spark_jobs/**/*.py")
WANTED = 0.95
COMPILE = "cc -std=gnu11 -O2 -w -DPN_CRASHPOINTS=1 -UNDEBUG -I native/include -I native/src -c"
# Against mutants that hang; the slowest test of an unchanged copy takes a fifth of it.
TEST_LIMIT_S, STEP_LIMIT_S = 240, 1800
PLAIN = "not spark and not full"
LEFT_OUT = ("test_sourcecode.py", "test_packaging.py")  # of style, and of what is built
APART = "--pid --fork --kill-child --mount-proc --mount"
TRIES = 40  # mutants of one line that are looked at before another line is drawn


@dataclass
class Mutant:
    file: Path  # below the root
    line: int
    text: str  # of the whole file
    diff: str


@dataclass
class Verdict:
    mutant: Mutant
    by: str | None  # what caught it

    def __str__(self) -> str:
        head = f"caught by {self.by}" if self.by else "NOT CAUGHT"
        return f"{self.mutant.file}:{self.mutant.line}: {head}\n{self.mutant.diff}"


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
        return sorted(lines)
    blank = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.DOTALL)
    return [
        n
        for n, line in enumerate(blank.split("\n"), 1)
        if re.search(r"\w", line) and not line.lstrip().startswith("#")
    ]


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


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


def _tree(text: str) -> str:
    """The syntax without texts: a message may say what it likes."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.dump(tree)


def differs(path: Path, mutant: Path, scratch: Path) -> bool:
    """Whether the mutant builds, and is another program than the original."""
    if path.suffix == ".py":
        with contextlib.suppress(SyntaxError, ValueError):
            return _tree(mutant.read_text()) != _tree((ROOT / path).read_text())
        return False
    objects: dict[str, Path] = {}
    for name, source in (("original", ROOT / path), ("mutant", mutant)):
        objects[name] = scratch / f"{name}.o"
        # Both under one name, so that __FILE__ is the same.
        shutil.copy(source, scratch / path.name)
        command = [*COMPILE.split(), str(scratch / path.name), "-o", str(objects[name])]
        if subprocess.run(command, cwd=ROOT, stderr=subprocess.DEVNULL, check=False).returncode:
            return False
    return not filecmp.cmp(objects["original"], objects["mutant"], shallow=False)


def draw(rng: random.Random, lines: list[tuple[Path, int]]) -> Mutant:
    while True:
        path, line = rng.choice(lines)
        with tempfile.TemporaryDirectory() as name:
            made, scratch = made_of(path, line, Path(name)), Path(name) / "objects"
            scratch.mkdir()
            rng.shuffle(made)
            for candidate in made[:TRIES]:
                if differs(path, candidate, scratch):
                    text, original = candidate.read_text(), (ROOT / path).read_text()
                    diff = difflib.unified_diff(
                        original.split("\n"), text.split("\n"), lineterm="", n=0
                    )
                    shown = [row for row in list(diff)[2:] if not row.startswith("@@")]
                    return Mutant(path, line, text, "\n".join(f"    {row}" for row in shown))


# ---- what runs ---------------------------------------------------------------------------------


class Copy:
    """A copy of the checkout that is built and tested with one file changed at a time."""

    def __init__(self, where: Path) -> None:
        self.root = where
        files = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        for file in filter(None, files.stdout.split("\0")):
            if (ROOT / file).is_file():
                (where / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / file, where / file)
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

    def run(self, command: list[str], *, apart: bool = False) -> bool:
        """Run it in the copy; `apart`: where no process, mount or segment outside is seen."""
        if apart:
            user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
            inside = 'mount -t tmpfs -o mode=1777 tmpfs /dev/shm && exec "$@"'
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
                return process.wait(STEP_LIMIT_S) == 0
            except subprocess.TimeoutExpired:
                return False
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
                process.wait()

    def build(self) -> bool:
        ready = (self.root / "build/release/CMakeCache.txt").exists()
        configure = ["cmake", "-S", ".", "-B", "build/release", "-DCMAKE_BUILD_TYPE=RelWithDebInfo"]
        return (ready or self.run(configure)) and self.run(
            ["cmake", "--build", "build/release", "--parallel"]
        )

    def extension(self, mutated: str | None = None) -> bool:
        """Build it, unless it is there as wanted: with this mutated file, or as it was."""
        if (self.root / "pynotify/_native.abi3.so").exists() and mutated is self.built_with is None:
            return True
        self.built_with = mutated
        compiler = ["env", "CC=ccache cc"] if shutil.which("ccache") else []
        return self.run(
            [*compiler, sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--force"]
        )

    def ctest(self, *options: str) -> bool:
        command = "ctest --test-dir build/release -j2 --output-on-failure --stop-on-failure"
        twice = f"--repeat until-pass:2 --timeout {TEST_LIMIT_S}"
        return self.run([*command.split(), *twice.split(), *options], apart=True)

    def pytest(self, *options: str) -> bool:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--maxfail=1",
            f"--timeout={TEST_LIMIT_S}",
            "--ignore=tests/test_sourcecode.py",
            "--ignore=tests/test_packaging.py",
            *options,
        ]
        again = [*command, "-n", "0", "--last-failed", "--last-failed-no-failures", "all"]
        return self.run([*command, "-n", "2"], apart=True) or self.run(again, apart=True)

    def passes(self) -> bool:
        """Whether the tests pass as they are: else all would look caught."""
        return self.ctest("-LE", "long") and self.pytest("-m", PLAIN)


def naming(words: set[str], pattern: str, most: int) -> list[Path]:
    """Tests that name most of the words, best first."""
    pair = re.compile(r"\b(" + "|".join(map(re.escape, words)) + r")\b") if words else None
    found = {
        path.relative_to(ROOT): len(set(pair.findall(path.read_text()))) if pair else 0
        for path in ROOT.glob(pattern)
    }
    return sorted((p for p in found if found[p]), key=lambda p: -found[p])[:most]


def declared(path: Path) -> set[str]:
    """What a source file offers others: functions of a C file, public names of a module."""
    text = (ROOT / path).read_text()
    if path.suffix == ".c":
        return set(re.findall(r"^[a-z][\w *]*?\b(pn_\w+)\(", text, flags=re.MULTILINE)) | {
            path.stem
        }
    return {
        name
        for name in re.findall(r"^\s*(?:async )?(?:def|class) (\w+)", text, re.MULTILINE)
        if not name.startswith("_")
    } | {path.stem.lstrip("_")}


def steps(copy: Copy, mutant: Mutant) -> Iterator[tuple[str, Callable[[], bool]]]:
    """What may catch it.  The cheapest steps, and those likely to catch it, come first."""
    words, native = declared(mutant.file), mutant.file.suffix == ".c"
    marked = "not full" if mutant.file.parts[0] == "spark_jobs" else PLAIN
    if native:
        yield "the compiler", copy.build
        near = "|".join(p.stem for p in naming(words, "native/tests/test_*.c", 8))
        if near:
            yield f"ctest -R '{near}'", lambda: copy.ctest("-R", f"^({near})", "-LE", "long")
        yield "ctest", lambda: copy.ctest("-LE", "long")
    yield "the extension's build", lambda: copy.extension(str(mutant.file) if native else None)
    files = [str(p) for p in naming(words, "tests/**/test_*.py", 6) if p.name not in LEFT_OUT]
    if files:
        yield f"pytest {' '.join(files)}", lambda: copy.pytest("-m", marked, *files)
    rest = ["tests/spark"] if marked != PLAIN else []
    yield "pytest", lambda: copy.pytest("-m", marked, *rest)


def judge(copy: Copy, mutant: Mutant) -> Verdict:
    place = copy.root / mutant.file
    original = place.read_text()
    place.write_text(mutant.text)
    try:
        caught = (name for name, passes in steps(copy, mutant) if not passes())
        return Verdict(mutant, next(caught, None))
    finally:
        place.write_text(original)


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--mutants", type=int, default=100, help="how many (100)")
    parser.add_argument("--seed", type=int, default=None, help="the same mutants again")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="GLOB", help="files to mutate")
    parser.add_argument("--trust", action="store_true", help="do not run the tests unchanged first")
    parser.add_argument("--keep", type=Path, help="build the copy here, and keep it")
    args = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if args.seed is None else args.seed
    rng = random.Random(seed)
    files = sorted({p.relative_to(ROOT) for pattern in SOURCES for p in ROOT.glob(pattern)})
    files = [p for p in files if any(fnmatch.fnmatch(str(p), glob) for glob in args.only)]
    lines = [(path, line) for path in files for line in code_lines(ROOT / path)]
    if not lines:
        parser.error(f"no source file is called {' or '.join(args.only)}")
    say(f"seed {seed}: {args.mutants} mutants of {len(lines)} lines in {len(files)} files")

    with contextlib.ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="mutate-")
        where = args.keep or Path(stack.enter_context(temporary))
        where.mkdir(parents=True, exist_ok=True)
        copy = Copy(where)
        if not (copy.build() and copy.extension() and (args.trust or copy.passes())):
            say(
                f"{copy.log.read_text()[-4000:]}\n\nwithout any mutation something fails, see above"
            )
            return 2
        verdicts = []
        for number in range(1, args.mutants + 1):
            began = time.monotonic()
            verdicts.append(judge(copy, draw(rng, lines)))
            took = time.monotonic() - began
            say(f"{number}/{args.mutants}, {took:.0f} s: {verdicts[-1]}")
    missed = [verdict for verdict in verdicts if verdict.by is None]
    print(f"\n{len(verdicts) - len(missed)} of {len(verdicts)} caught (seed {seed})")
    print(*missed, sep="\n")
    return 1 if len(missed) > (1 - WANTED) * len(verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
