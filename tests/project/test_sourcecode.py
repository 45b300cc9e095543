"""The linters and the limits of the house, as tests."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("native", "pynotify", "spark_jobs", "tests", "bench", "examples", "docs")
PYTHON_PATHS = [path for path in (*FOLDERS, "setup.py") if (ROOT / path).exists()]
TYPED_PACKAGES = [
    name for name in ("pynotify", "spark_jobs", "bench") if any((ROOT / name).rglob("*.py"))
]

CORE = ROOT / "native" / "src"
# Each folder of the core knows itself and those before it.
FLOORS = ["base", "files", "segment", "queue", "backend", "wakeup"]
FLOORS += ["topic", "commit", "receive", "recovery", "api"]

MAX_FILE_LINES = 1000
MAX_C_COLUMNS = 100
MAX_FUNCTION_LINES = 60


def run_module(*command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.fail(f"{' '.join(command)}\n{done.stdout}{done.stderr}", pytrace=False)


def fail_if_any(offenders: list[str]) -> None:
    if offenders:
        pytest.fail("\n".join(offenders), pytrace=False)


def source_files(*suffixes: str) -> list[Path]:
    paths = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    return sorted(path for path in paths if path.suffix in suffixes and path.is_file())


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_ruff_finds_nothing() -> None:
    run_module("ruff", "check", *PYTHON_PATHS)


def test_python_is_formatted() -> None:
    run_module("ruff", "format", "--check", "--diff", *PYTHON_PATHS)


def test_c_is_formatted() -> None:
    program = Path(sys.executable).with_name("clang-format")
    command = [program, "--dry-run", "-Werror", *source_files(".c", ".h")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.fail(f"clang-format -i mends:\n{done.stderr[:4000]}", pytrace=False)


def test_mypy_strict_finds_nothing() -> None:
    run_module("mypy", "--strict", *TYPED_PACKAGES)


def test_build_scripts_are_typed() -> None:
    # Two of them at a time, on an empty cache, end in an internal error.
    cache = "--cache-dir=.mypy_cache/build-scripts"
    run_module("mypy", "--strict", cache, "setup.py", "native/ffi_build.py")


def test_packages_import_downwards_only() -> None:
    """The layers are in pyproject.toml."""
    linter = "from importlinter.cli import lint_imports_command as main; main(['--no-cache'])"
    done = subprocess.run(
        [sys.executable, "-c", linter], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.fail(done.stdout + done.stderr, pytrace=False)


def test_no_file_is_longer_than_a_sitting() -> None:
    lengths = {path: path.read_text().count("\n") for path in source_files(".c", ".h", ".py")}
    assert lengths
    fail_if_any(
        [f"{relative(path)}: {n} lines" for path, n in lengths.items() if n > MAX_FILE_LINES]
    )


def test_c_lines_fit_in_100_columns() -> None:
    fail_if_any(
        [
            f"{relative(path)}:{number}: {len(line)} columns"
            for path in source_files(".c", ".h")
            for number, line in enumerate(path.read_text().splitlines(), 1)
            if len(line) > MAX_C_COLUMNS
        ]
    )


def test_sources_lists_every_c_file_of_the_core() -> None:
    listed = (ROOT / "native" / "SOURCES").read_text().split()
    present = [relative(path) for path in CORE.rglob("*.c")]
    assert sorted(listed) == sorted(present)
    assert len(listed) == len(set(listed))


def test_setup_names_files_that_there_are() -> None:
    """A file that is not there is not found wanting: it would be compiled to be fast."""
    named = re.findall(r'"(native/(?:src|gateway)/[^"]+)"', (ROOT / "setup.py").read_text())
    assert len(named) > 10
    fail_if_any([f"setup.py: {name}" for name in named if not (ROOT / name).exists()])


# ---- the length of C functions: no parser, but comments, literals and macros do not count ------

COMMENT_OR_LITERAL = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.DOTALL
)
DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
ATTRIBUTE = re.compile(r"__attribute__\s*\(\(.*?\)\)\s*", re.DOTALL)


def blank(match: re.Match[str]) -> str:
    return "\n" * match.group().count("\n")


def c_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """Name, line of the opening brace and number of lines of each function body."""
    text = DIRECTIVE.sub(blank, COMMENT_OR_LITERAL.sub(blank, text))
    open_braces: list[tuple[str, int]] = []  # what it belongs to, its line
    head = ""
    for line_number, line in enumerate(text.split("\n"), 1):
        for char in line:
            if char == "{":
                open_braces.append((ATTRIBUTE.sub("", head).strip(), line_number))
                head = ""
            elif char == "}":
                assert open_braces, f"line {line_number}: a brace closes nothing"
                owner, first = open_braces.pop()
                outermost = all(outer == "extern" for outer, _ in open_braces)
                if outermost and owner.endswith(")"):
                    name = owner.partition("(")[0].split()[-1].lstrip("*")
                    yield name, first, line_number - first + 1
                head = ""
            elif char == ";":
                head = ""
            else:
                head += char
        head += " "
    assert not open_braces, f"line {open_braces[-1][1]}: a brace is never closed"


def test_c_functions_are_short() -> None:
    offenders = []
    for path in source_files(".c", ".h"):
        try:
            for name, line, length in c_functions(path.read_text()):
                if length > MAX_FUNCTION_LINES:
                    offenders.append(f"{relative(path)}:{line}: {name}() has {length} lines")
        except AssertionError as error:
            offenders.append(f"{relative(path)}: {error}")
    fail_if_any(offenders)


def test_the_function_counter_counts() -> None:
    text = (
        'extern "C" {\n'
        "struct s { int a; };\n"
        "#define M(x) do { \\\n  x; } while (0)\n"
        "static const int t[] = {1, 2};\n"
        "int *pn_f(int a,\n         int b)\n"
        '{\n    if (a) { /* } */ return "}"; }\n    for (;;) {\n    }\n}\n'
        "static inline int g(void) { return '{'; }\n"
        "}\n"
    )
    assert list(c_functions(text)) == [("pn_f", 8, 5), ("g", 13, 1)]


def python_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """Name, line and number of lines of each body, as of C; a docstring does not count."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            documented = ast.get_docstring(node, clean=False) is not None
            first = node.body[min(documented, len(node.body) - 1)]
            yield node.name, node.lineno, (node.end_lineno or 0) - first.lineno + 1


def test_python_functions_are_short() -> None:
    offenders = [
        f"{relative(path)}:{line}: {name}() has {length} lines"
        for path in source_files(".py")
        for name, line, length in python_functions(path.read_text())
        if length > MAX_FUNCTION_LINES
    ]
    fail_if_any(offenders)


def test_the_counter_of_python_functions_counts() -> None:
    text = (
        'def f(\n    a,\n):\n    """Says\n    it."""\n    a = 1\n    return a\n\n\ndef g(): ...\n'
    )
    assert list(python_functions(text)) == [("f", 1, 2), ("g", 10, 1)]


# ---- the folders of the core -------------------------------------------------------------------

COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
DEFINITION = re.compile(
    r"^(?!static\b|PN_API\b|typedef\b)\w[\w *]*?\b(pn_\w+)\([^;{}]*\)\s*\{", re.MULTILINE
)


def core(*patterns: str) -> dict[Path, str]:
    """Files of the core and their text, without comments."""
    paths = sorted(path for pattern in patterns for path in CORE.rglob(pattern))
    return {path: COMMENT.sub("", path.read_text()) for path in paths}


def floor(path: Path) -> int:
    return FLOORS.index(path.parent.name)


def test_includes_of_the_core_run_downwards() -> None:
    offenders = []
    for path, text in core("*.[ch]").items():
        for header in INCLUDE.findall(text):
            if not (CORE / header).is_file() or "/" not in header:
                offenders.append(
                    f'{relative(path)}: "{header}" is not <folder>/<file> of native/src'
                )
            elif floor(CORE / header) > floor(path):
                offenders.append(f"{relative(path)} stands below {header}, and includes it")
    fail_if_any(offenders)


def test_calls_of_the_core_run_downwards() -> None:
    """Also without an include: a declaration of one's own would hide the call."""
    sources = core("*.[ch]")
    defined = {name: path for path, text in sources.items() for name in DEFINITION.findall(text)}
    assert len(defined) > 300
    fail_if_any(
        [
            f"{relative(path)} stands below {relative(defined[name])}, and names {name}()"
            for path, text in sources.items()
            for name in sorted(set(re.findall(r"\bpn_\w+", text)))
            if name in defined and floor(defined[name]) > floor(path)
        ]
    )


def test_files_of_the_core_include_what_they_need() -> None:
    in_sources = re.compile(r"^[ \t]*extern\b(?!.*__(start|stop)_)", re.MULTILINE)
    in_bodies = re.compile(r"^[ \t]+extern\b", re.MULTILINE)
    fail_if_any(
        [
            f"{relative(path)} declares something extern; include its header"
            for path, text in core("*.[ch]").items()
            if (in_sources if path.suffix == ".c" else in_bodies).search(text)
        ]
    )


INLINE = re.compile(r"^static inline [\w *]*?\b(pn_\w+)\([^;{}]*\)\s*\{", re.MULTILINE)


def without_caller(sources: dict[Path, str], callers: str) -> list[str]:
    """Functions that nothing but a test calls; `callers` is the text of all that may."""
    named = Counter(re.findall(r"\bpn_\w+", callers))
    own = [(name, path, 2) for path, text in sources.items() for name in DEFINITION.findall(text)]
    own += [(name, path, 1) for path, text in sources.items() for name in INLINE.findall(text)]
    return [f"{path}: {name}() has no caller" for name, path, least in own if named[name] <= least]


def test_functions_of_the_core_have_a_caller() -> None:
    """Beside their definition and declaration. Those of pynotify.h are for any program."""
    sources = core("*.[ch]")
    others = [ROOT / "native" / name for name in ("python", "gateway", "include")]
    paths = [path for folder in others for path in folder.rglob("*.[ch]")]
    paths += [ROOT / "native" / "ffi_build.py"]
    texts = [*sources.values(), *(COMMENT.sub("", path.read_text()) for path in paths)]
    fail_if_any(without_caller(sources, "".join(texts)))


def test_a_function_without_a_caller_is_found() -> None:
    header = "int pn_a(void);\nint pn_b(void);\nstatic inline int pn_c(void)\n{\n}\n"
    source = "int pn_a(void)\n{\n}\nint pn_b(void)\n{\n    return pn_a();\n}\n"
    sources = {Path("x.h"): header, Path("x.c"): source}
    found = without_caller(sources, header + source)
    assert found == ["x.c: pn_b() has no caller", "x.h: pn_c() has no caller"]


# ---- the writer lock ---------------------------------------------------------------------------

# While topics are made, before there are any that could be closed.
BEFORE_TOPICS = {"restore.c", "durable.c", "open.c"}
OF_TRANSACTIONS = {"topic_pending", "topic_ops", "cancel_ops"}


def test_topics_take_the_lock_that_waits_until_they_are_open() -> None:
    takes = re.compile(r"\bpn_lock_(?:acquire|wait)\(")
    sources = {path: text for path, text in core("*.c").items() if path.parent.name == "topic"}
    sources |= {path: text for path, text in core("*.c").items() if path.stem in OF_TRANSACTIONS}
    assert sum("pn_lock_topics" in text for text in sources.values()) > 5
    fail_if_any(
        [
            f"{relative(path)} takes the lock by pn_lock_acquire() or _wait(), not pn_lock_topics()"
            for path, text in sources.items()
            if len(takes.findall(text)) > (path.name in BEFORE_TOPICS)
        ]
    )


LOCKED = re.compile(
    r"^[^\s#][^;{}()]*?\b(\w+_locked)\([^;{}]*?\)\s*\{\s*((?:return\s+)?\w+)", re.MULTILINE
)
ASSERTIONS = {"pn_assert_held", "pn_assert_topics_held", "pn_assert_arena_held"}


def without_assertion(text: str) -> list[str]:
    """Functions named `_locked` that do not begin by asserting that the writer lock is held."""
    return [
        name
        for name, first in LOCKED.findall(ATTRIBUTE.sub("", text))
        if first not in ASSERTIONS and not first.endswith("_locked")
    ]


def test_locked_functions_assert_the_lock() -> None:
    sources = core("*.[ch]")
    assert sum(len(LOCKED.findall(text)) for text in sources.values()) > 200
    fail_if_any(
        [
            f"{relative(path)}: {name}() does not begin with pn_assert_held()"
            for path, text in sources.items()
            for name in without_assertion(text)
        ]
    )


def test_what_does_not_assert_the_lock_is_found() -> None:
    text = (
        "int pn_a_locked(struct s *s)\n{\n    pn_assert_held(s);\n    return 1;\n}\n"
        "static inline int b_locked(struct s *s,\n    int n)\n{\n    return pn_a_locked(s);\n}\n"
        "static struct s *c_locked(struct s *s)\n{\n    return s;\n}\n"
        "void d_locked(void) {}\n"
        "int e_locked(struct s *s);\n"
        "__attribute__((noinline)) static int\nf_locked(struct s *s)\n{\n    return 1;\n}\n"
    )
    assert without_assertion(text) == ["c_locked", "f_locked"]


# ---- the memory order --------------------------------------------------------------------------

RAW_ATOMIC = re.compile(r"\b(?:atomic_\w+|__atomic_\w+|__sync_\w+)\s*\(|<stdatomic\.h>")
ANY_FUNCTION = re.compile(r"^[A-Za-z][^;{}()#]*?\b(\w+)\([^;{}]*\)\s*\{", re.MULTILINE)


def test_only_atomic_h_has_raw_atomics() -> None:
    fail_if_any(
        [
            f"{relative(path)}: {found}: give it a name in base/atomic.h"
            for path, text in core("*.[ch]").items()
            if path.name != "atomic.h"
            for found in RAW_ATOMIC.findall(text)
        ]
    )


def unpaired(text: str, functions: set[str]) -> list[str]:
    """Comments that say "pairs with", and do not name functions that there are."""
    wrong = []
    for comment in COMMENT.findall(text):
        words = " ".join(re.sub(r"\n\s*\*", "\n", comment).split())
        names = [re.findall(r"(\w+)\(\)", partner) for partner in words.split("pairs with")[1:]]
        if any(not some or not functions.issuperset(some) for some in names):
            wrong.append(words)
    return wrong


FENCE = re.compile(
    r"(/\*(?:(?!\*/).)*\*/)?\s*\bpn_fence_\w+\(\);[ \t]*(/\*(?:(?!\*/).)*\*/)?", re.DOTALL
)


def unnamed_fences(text: str) -> list[str]:
    """Fences without a comment, before them or behind them, that says what they pair with."""
    return [
        match[0].strip()
        for match in FENCE.finditer(text)
        if "pairs with" not in re.sub(r"\s*\n\s*\*\s*", " ", f"{match[1]} {match[2]}")
    ]


def test_what_pairs_with_something_names_a_function() -> None:
    functions = {name for text in core("*.[ch]").values() for name in ANY_FUNCTION.findall(text)}
    readers = (path.read_text() for path in (ROOT / "spark_jobs" / "logs").glob("*.py"))
    functions |= {
        name for text in readers for name in re.findall(r"^def (\w+)", text, re.MULTILINE)
    }
    paths = [path for path in core("*.[ch]") if path.name != "atomic.h"]
    assert sum("pairs with" in path.read_text() for path in paths) > 10
    fail_if_any(
        [
            f"{relative(path)}: {comment}"
            for path in paths
            for comment in unpaired(path.read_text(), functions)
        ]
        + [
            f"{relative(path)}: {fence}: which function does it pair with?"
            for path in paths
            for fence in unnamed_fences(path.read_text())
        ]
    )


def test_what_pairs_with_nothing_is_found() -> None:
    assert not unpaired("x(); /* pairs with f()\n * and g() */ /* f */", {"f", "g"})
    assert unpaired("/* pairs with f() */ /* pairs with the reader */", {"g"}) == [
        "/* pairs with f() */",
        "/* pairs with the reader */",
    ]
    assert unpaired("/* pairs\n * with h() */ /* pairs with g() and pairs with it */", {"g"}) == [
        "/* pairs with h() */",
        "/* pairs with g() and pairs with it */",
    ]


def test_a_fence_without_a_pair_is_found() -> None:
    text = (
        "    pn_fence_acquire(); /* pairs with f() */\n"
        "    /* so that it pairs\n     * with g() */\n    pn_fence_release();\n"
        "    x(); /* pairs with h() */\n    y();\n    pn_fence_seq_cst();\n"
        "    /* before */\n    pn_fence_release();\n"
    )
    assert unnamed_fences(text) == [
        "pn_fence_seq_cst();",
        "/* before */\n    pn_fence_release();",
    ]


# ---- what the linker sees: calls without an include, and circles -------------------------------

LANGUAGE = ["-std=gnu11", "-O0", "-w", "-fPIC", "-DNDEBUG"]
#: What its object file defines for others, and what it needs of them.
Symbols = tuple[set[str], set[str]]


def symbols_of(objects: Path, source: Path) -> Symbols:
    target = objects / f"{source.parent.name}-{source.stem}.o"
    folders = ["-I", str(CORE), "-I", str(ROOT / "native" / "include")]
    subprocess.run(["cc", "-c", *LANGUAGE, *folders, str(source), "-o", str(target)], check=True)
    done = subprocess.run(["nm", str(target)], capture_output=True, text=True, check=True)
    kinds = [line.split()[-2:] for line in done.stdout.splitlines()]
    return (
        {name for kind, name in kinds if kind.isupper() and kind != "U"},
        {name for kind, name in kinds if kind == "U"},
    )


def compiled(objects: Path, folder: Path) -> dict[Path, Symbols]:
    sources = sorted(folder.rglob("*.c"))
    with ThreadPoolExecutor(2) as workers:
        return dict(zip(sources, workers.map(partial(symbols_of, objects), sources), strict=True))


def uses_of(symbols: dict[Path, Symbols]) -> dict[Path, set[Path]]:
    owner = {name: path for path, (defined, _) in symbols.items() for name in defined}
    return {
        path: {owner[name] for name in needed if name in owner and owner[name] != path}
        for path, (_, needed) in symbols.items()
    }


def order_of_topic() -> list[str]:
    """The files of topic/, as the table in docs/design.md has them; headers alone, too."""
    text = (ROOT / "docs" / "design.md").read_text()
    _, _, rest = text.partition("| files of `topic/` |")
    rows = re.findall(r"^\| (`[^|]*) \|", rest.partition("\n\n")[0], re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


def test_files_of_topic_stand_in_the_table_and_include_what_is_before_them() -> None:
    order = order_of_topic()
    present = core("topic/*.[ch]")
    assert sorted(order) == sorted({path.stem for path in present})
    fail_if_any(
        [
            f"{relative(path)} includes topic/{name}.h, which docs/design.md has below it"
            for path, text in present.items()
            for name in re.findall(r'#include "topic/(\w+)\.h"', text)
            if order.index(name) > order.index(path.stem)
        ]
    )


def circles(uses: dict[Path, set[Path]]) -> list[set[Path]]:
    """The sets of files each of which reaches all others of its set."""

    def reached(path: Path) -> set[Path]:
        found: set[Path] = set()
        ahead = [path]
        while ahead:
            new = uses[ahead.pop()] - found
            found |= new
            ahead += new
        return found

    reach = {path: reached(path) for path in uses}
    inside = {
        path: frozenset(other for other in reach[path] if path in reach[other]) for path in uses
    }
    return [set(circle) for circle in sorted(set(inside.values()) - {frozenset()}, key=sorted)]


def undeclared(symbols: dict[Path, Symbols]) -> Iterator[str]:
    """What a file defines for others, and its own header does not say."""
    headers = (path.read_text() for path in (ROOT / "native" / "include").glob("*.h"))
    public = COMMENT.sub("", "".join(headers))
    for path, (defined, _) in symbols.items():
        header = path.with_suffix(".h")
        declared = public + (COMMENT.sub("", header.read_text()) if header.exists() else "")
        for name in sorted(defined):
            if not re.search(rf"\b{name}\b", declared):
                yield f"{relative(path)}: {name} is not declared in {header.name}"


def unlinked(objects: Path) -> Iterator[str]:
    """What a folder needs beyond those before it and libc, as the linker says it."""
    for number, folder in enumerate(FLOORS, 1):
        linked = [path for name in FLOORS[:number] for path in sorted(objects.glob(f"{name}-*.o"))]
        command = ["cc", "-shared", "-pthread", "-Wl,--no-undefined", *map(str, linked)]
        done = subprocess.run(
            [*command, "-o", str(objects / "floors.so")],
            capture_output=True,
            text=True,
            check=False,
        )
        names = set(re.findall(r"undefined reference to [`'](\w+)", done.stderr))
        yield from (
            f"{folder}/ needs {name}, which no floor below it has" for name in sorted(names)
        )
        if names:
            return
        assert done.returncode == 0, done.stderr


@pytest.mark.timeout(300)
def test_objects_of_the_core_need_what_stands_below(tmp_path: Path) -> None:
    symbols = compiled(tmp_path, CORE)
    uses = uses_of(symbols)
    assert sum(map(len, uses.values())) > 200
    offenders = [
        f"{relative(path)} stands below {relative(used)}, and calls it"
        for path, others in uses.items()
        for used in sorted(others)
        if floor(used) > floor(path)
    ]
    for circle in circles(uses):
        names = ", ".join(relative(path) for path in sorted(circle))
        offenders.append(f"{len(circle)} files call one another in a circle: {names}")
    order = order_of_topic()
    offenders += [
        f"{relative(path)} calls {relative(used)}, which docs/design.md has below it"
        for path, others in uses.items()
        for used in sorted(others)
        if path.parent.name == used.parent.name == "topic"
        and order.index(used.stem) > order.index(path.stem)
    ]
    fail_if_any([*offenders, *undeclared(symbols), *unlinked(tmp_path)])


GATEWAY = ROOT / "native" / "gateway"
#: Each file calls those before it; work.h is the header of those from report to session.
GATEWAY_ORDER = ["arena", "wire", "words", "lex", "terms", "select", "parse"]
GATEWAY_ORDER += ["values", "analyse", "evaluate", "guc"]
GATEWAY_ORDER += ["report", "scripts", "prepared", "block", "run", "deliver"]
GATEWAY_ORDER += ["startup", "extended", "session", "peer", "sockets"]
GATEWAY_ORDER += ["options", "clients", "accept", "server", "main"]


def test_the_gateway_knows_the_core_by_its_public_header() -> None:
    own = {path.name for path in GATEWAY.glob("*.h")} | {"pynotify.h", "pynotify_gateway.h"}
    offenders = [
        f"{relative(path)} includes {name}"
        for path in sorted(GATEWAY.glob("*.[ch]"))
        for name in INCLUDE.findall(path.read_text())
        if name not in own or (path.name == "main.c" and name != "pynotify_gateway.h")
    ]
    fail_if_any(offenders)


def test_files_of_the_gateway_call_those_before_them(tmp_path: Path) -> None:
    uses = uses_of(compiled(tmp_path, GATEWAY))
    assert sorted(path.stem for path in uses) == sorted(GATEWAY_ORDER)
    fail_if_any(
        [
            f"{relative(path)} calls {used.name}, which stands behind it"
            for path, others in uses.items()
            for used in sorted(others)
            if GATEWAY_ORDER.index(used.stem) > GATEWAY_ORDER.index(path.stem)
        ]
    )


def test_a_circle_is_found() -> None:
    a, b, c, d = (Path(name) for name in "abcd")
    assert circles({a: {b}, b: {c}, c: {a, d}, d: set()}) == [{a, b, c}]
    assert circles({a: {b, c}, b: {c, d}, c: {d}, d: set()}) == []


# ---- the subject of a sentence is a process, a thread, a slot, a caller or a reader ------------

WORDS = "(?:who|whom|whoever|someone|somebody|nobody|everybody|anybody|anew|he|his|him|himself)"
#: In a sentence, and in a name that is one.
PRONOUN = re.compile(rf"\b{WORDS}\b|\b(?:test_|as_)(?:\w*_)?{WORDS}(?:_|\b)", re.IGNORECASE)


#: The words as a rule has them, and a user of the system.
NO_SENTENCE = re.compile(r"\(\?:who\|[^)]*\)|[\"']nobody[\"']|\bNOBODY\b")


def without_subject(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if found := PRONOUN.search(NO_SENTENCE.sub("", line)):
            yield number, found[0]


#: Whatever has comments; of documents see test_docs.py.
SUFFIXES = {".c", ".h", ".pml", ".py", ".pyi", ".js", ".go", ".java", ".php", ".rb", ".json"}
SUFFIXES |= {".yml", ".yaml", ".service", ".toml"}
NAMED = {"Makefile", "CMakeLists.txt", "run"}


def test_sentences_have_subjects() -> None:
    names = ("native", "pynotify", "spark_jobs", "bench", "examples", "tests", ".ci", ".github")
    paths = [path for name in names for path in (ROOT / name).rglob("*")] + list(ROOT.glob("*"))
    files = sorted(
        path
        for path in paths
        if (path.suffix in SUFFIXES or path.name in NAMED) and "node_modules" not in path.parts
    )
    assert len(files) > 900
    fail_if_any(
        [
            f"{relative(path)}:{number}: {found!r}: name the process, slot or caller"
            for path in files
            if path != Path(__file__)
            for number, found in without_subject(path.read_text())
        ]
    )


def test_a_sentence_without_a_subject_is_found() -> None:
    text = "/* whoever reads */\ndef test_who_reads() -> None:\nwhole = whose\nNOBODY = 'nobody'\n"
    assert list(without_subject(text)) == [(1, "whoever"), (2, "test_who_")]


def test_native_tests_mirror_the_sources() -> None:
    """A folder of tests for each of the core; support is what they share, crash is about all."""
    tests = ROOT / "native" / "tests"
    for folder in FLOORS:
        assert list((tests / folder).glob("test_*.c")), folder
    assert {path.name for path in tests.iterdir() if path.is_dir()} == {*FLOORS, "support", "crash"}
    assert [path.name for path in tests.iterdir() if path.is_file()] == ["CMakeLists.txt"]
    assert not list((tests / "support").glob("test_*.c"))


def test_each_fuzz_target_has_one_text_file() -> None:
    """A line of it is an input: native/fuzz/run.py."""
    fuzz = ROOT / "native" / "fuzz"
    targets = {path.stem.removeprefix("fuzz_") for path in fuzz.glob("fuzz_*.c")}
    corpus = {path.relative_to(fuzz / "corpus") for path in (fuzz / "corpus").rglob("*")}
    assert corpus == {Path(f"{name}.txt") for name in targets}


def test_python_tests_stand_in_folders() -> None:
    """What tests share is in tests/support; conftest.py and the tools of `make mutate` stay."""
    tests = ROOT / "tests"
    stay = {"conftest.py", "mutate.py", "mutate_map.py"}
    assert {path.name for path in tests.glob("*.py")} == stay
    assert not list((tests / "support").glob("test_*.py"))


def test_each_native_benchmark_takes_the_options_that_all_take() -> None:
    """`python -m bench native` gives each of them --json."""
    sources = sorted((ROOT / "bench" / "native").glob("bench_*.c"))
    assert sources
    assert [s.name for s in sources if "parse_arguments(argc, argv)" not in s.read_text()] == []


def test_calls_are_measured_from_python_and_from_c() -> None:
    """`python -m bench --only calls` asks the program for each of its calls by name."""
    python, c = (
        re.findall(pattern, (ROOT / "bench" / path).read_text(encoding="utf-8"))
        for pattern, path in [
            (r'_Call\(\s*"([a-z-]+)", *\s*"([^"]+)"', "calls.py"),
            (r'\n    \{"([a-z-]+)", "([^"]+)"', "native/bench_calls.c"),
        ]
    )
    assert len(python) > 5
    assert python == c
