"""Options of a segment in the environment and in a file."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

import pynotify
from pynotify._open_options import OpenOptions
from pynotify._options import OPTIONS
from pynotify.cli import create
from pynotify.cli.main import main

Environment = pytest.MonkeyPatch


@pytest.fixture
def name(segment_name: str, monkeypatch: Environment) -> str:
    """A segment whose variable is not set."""
    monkeypatch.delenv("PYNOTIFY_CONFIG", raising=False)
    return segment_name


def variable(name: str) -> str:
    return "PYNOTIFY_" + name.upper().replace("-", "_").replace(".", "_")


def takes(name: str, size: int) -> bool:
    """Whether the segment, which is there, takes a payload of so many bytes, and none larger."""
    with pynotify.open(name, create=False) as engine, engine.connect() as conn:
        conn.notify("c", b"x" * size)
        with pytest.raises(pynotify.PayloadTooLong) as refused:
            conn.notify("c", b"x" * (size + 1))
        hint = str(refused.value.hint)
        assert f"max_payload of the segment is {size}. Create" in hint  # what to do, and how
        assert 'PYNOTIFY_NAME="max_payload=' in hint
    return True


def test_there_is_a_text_for_each_option() -> None:
    assert OPTIONS == OpenOptions.__annotations__.keys() == create.OPTIONS.keys()


def test_the_environment(name: str, monkeypatch: Environment) -> None:
    monkeypatch.setenv(variable(name), "max_payload=16KiB, queue_pages=128,on_full=block")
    with pynotify.get(name):
        assert takes(name, 16384)
        with pytest.raises(pynotify.LayoutMismatch, match="queue_pages=128, not queue_pages=64"):
            pynotify.open(name, queue_pages=64)  # an argument comes first


def test_the_file_and_what_comes_before_it(
    name: str, tmp_path: Path, monkeypatch: Environment
) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(
        f'[tool.pynotify."{name}"]\nmax_payload = "16KiB"\nqueue_pages = 128\ndata_dir = "d"\n'
        "full_timeout = 2\n"
    )
    (tmp_path / "d").mkdir(mode=0o700)
    monkeypatch.setenv("PYNOTIFY_CONFIG", str(file))
    monkeypatch.setenv(variable(name), "queue_pages=256")

    async def check() -> None:
        async with pynotify.AsyncConnection.connect(name) as conn:
            await conn.notify("c", b"x" * 16384)
            topic = conn.topic("jobs", durable=True)
            await topic.publish(b"x")

    asyncio.run(check())
    assert any((tmp_path / "d").iterdir())
    with pynotify.connect(name), pytest.raises(pynotify.LayoutMismatch) as refused:
        monkeypatch.setenv(variable(name), "queue_pages=512")
        pynotify.connect(name)
    assert f"queue_pages=256, not queue_pages=512 ({variable(name)})" in str(refused.value)


def test_an_open_that_creates_nothing_asks_for_nothing(name: str, monkeypatch: Environment) -> None:
    with pynotify.connect(name):
        monkeypatch.setenv(variable(name), "queue_pages=128")
        with pynotify.open(name, create=False) as engine:
            assert engine.stat().queue_pages == 1024


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_payload", "write \"option=value,option=value\", not 'max_payload'"),
        ("max_paylod=1", "there is no option 'max_paylod': max_payload?"),
        ("max_payload=1XB", "max_payload must be a whole number, with KiB, MiB or GiB, not '1XB'"),
        ("max_payload=0", "max_payload must be a whole number from 1 to"),
        ("on_full=wait", "on_full must be one of error, block, drop-slowest, not 'wait'"),
        ("full_timeout=long", "full_timeout must be seconds, not 'long'"),
        ("full_timeout=nan", "full_timeout must be seconds from 0"),
    ],
)
def test_what_is_wrong_in_the_environment(
    name: str, monkeypatch: Environment, text: str, said: str
) -> None:
    monkeypatch.setenv(variable(name), text)
    with pytest.raises(ValueError) as refused:
        pynotify.connect(name)
    assert str(refused.value).startswith(f"{variable(name)}: {said}")


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        (None, OSError, "No such file"),
        ("[tool", ValueError, "Expected"),
        (
            "[tool.pynotify]\nqueue_pages = 128\n",
            ValueError,
            "queue_pages belongs into a segment's",
        ),
        ("# caf\xe9\n", ValueError, "can't decode"),
        ("[tool.pynotify.'{name}']\nqueue_pages = 1.5\n", ValueError, "must be a whole number"),
        ("[tool.pynotify.'{name}']\nqueue = 1\n", ValueError, "queue_pages?"),
        ("[tool.pynotify.'{name}']\ndata_dir = 1\n", ValueError, "data_dir must be a path"),
    ],
)
def test_what_is_wrong_in_the_file(  # noqa: PLR0917
    name: str,
    tmp_path: Path,
    monkeypatch: Environment,
    text: str | None,
    error: type[Exception],
    said: str,
) -> None:
    file = tmp_path / "pynotify.toml"
    if text is not None:
        file.write_text(text.replace("{name}", name), encoding="latin-1")
    monkeypatch.setenv("PYNOTIFY_CONFIG", str(file))
    with pytest.raises(error) as refused:
        pynotify.connect(name)
    assert said in str(refused.value)
    assert str(file) in str(refused.value)


def test_a_segment_whose_variable_means_something_else(monkeypatch: Environment) -> None:
    """It has its options in the file alone."""
    monkeypatch.setenv("PYNOTIFY_TIME_FACTOR", "4")
    pynotify.open("time-factor").close()
    pynotify.unlink("time-factor")


def test_create(name: str, monkeypatch: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["create", name, "--max-payload", "16KiB", "--queue-pages", "128"]) == 0
    assert f'segment "{name}" of ' in capsys.readouterr().out
    assert takes(name, 16384)
    assert main(["create", name, "--max-payload", "16384"]) == 0
    assert "is there, with these options" in capsys.readouterr().err
    assert main(["create", name, "--max-payload", "1MiB"]) == 1
    said = capsys.readouterr().err
    assert "created with max_payload=16384, not max_payload=1048576" in said
    assert f"`pynotify rm {name}` removes it." in said
    with pytest.raises(SystemExit):
        main(["create", name, "--max-payload", "16 KB"])
    assert "with KiB, MiB or GiB, not '16 KB'" in capsys.readouterr().err
    pynotify.unlink(name)
    monkeypatch.setenv(variable(name), "queue_pages=256")
    assert main(["create", name]) == 0
    assert f"queue_pages=256 ({variable(name)})" in capsys.readouterr().out
    assert main(["create", name]) == 0
    assert "is there, with these options" in capsys.readouterr().err
    monkeypatch.setenv(variable(name), "queue_pages=512")
    assert main(["create", name]) == 1
    assert "queue_pages=256, not queue_pages=512" in capsys.readouterr().err


def test_connect_is_a_coroutine_and_a_context(name: str) -> None:
    async def check() -> None:
        task = asyncio.create_task(pynotify.AsyncConnection.connect(name))
        async with await task as conn:
            await conn.notify("c", "x")
        async with pynotify.AsyncConnection.connect(name) as other:
            assert not other.closed
        assert other.closed
        with pytest.raises(ValueError, match="queue_pages"):
            async with pynotify.AsyncConnection.connect(name, queue_pages=1):
                pass
        pynotify.AsyncConnection.connect(name).close()  # of the coroutine, which has not begun

    asyncio.run(check())


class TestGet:
    """A call of `get()` that finds the connection may ask for what it has, and for nothing else."""

    def test_other_options_than_the_segment_has(self, name: str) -> None:
        with pynotify.get(name, max_payload=100, on_full="block") as conn:
            assert pynotify.get(name) is conn
            assert pynotify.get(name, max_payload=100) is conn
            assert pynotify.get(name, on_full="block", queue_pages=1024) is conn
            with pytest.raises(pynotify.LayoutMismatch) as refused:
                pynotify.get(name, max_payload=200, on_full="error")
            text, hint = str(refused.value).split("\n")
            assert "max_payload=100, not max_payload=200" in text
            assert 'on_full="block", not on_full="error"' in text
            assert name in text
            assert variable(name) in hint
            with pytest.raises(TypeError, match="max_payloads"):
                pynotify.get(name, max_payloads=1)  # type: ignore[call-arg]
            with pytest.raises(ValueError, match="max_payload must be"):
                pynotify.get(name, max_payload=0)
            assert pynotify.get(name) is conn  # a refused call leaves it
            assert not conn.closed

    def test_options_of_the_environment_count_for_the_call_that_makes_it(
        self, name: str, monkeypatch: Environment
    ) -> None:
        monkeypatch.setenv(variable(name), "max_payload=100")
        with pynotify.get(name) as conn:
            monkeypatch.setenv(variable(name), "max_payload=200")
            assert pynotify.get(name) is conn

    @pytest.mark.parametrize(
        ("first", "later", "said"),
        [
            (None, "poll", 'wakeup="sigusr1", not wakeup="poll"'),
            ("poll", "sigusr1", 'wakeup="poll", not wakeup="sigusr1"'),
            ("poll", signal.SIGRTMIN + 5, f'wakeup="poll", not wakeup={signal.SIGRTMIN + 5}'),
        ],
    )
    def test_another_wakeup(
        self, name: str, first: str | None, later: str | int, said: str
    ) -> None:
        with pynotify.get(name, wakeup=first) as conn:
            assert pynotify.get(name) is conn
            assert pynotify.get(name, wakeup=first) is conn
            with pytest.raises(pynotify.ProgrammingError) as refused:
                pynotify.get(name, wakeup=later)
            assert said in str(refused.value)
            assert refused.value.hint is not None and "leave it out" in refused.value.hint

    def test_the_default_said_in_words_is_the_default(self, name: str) -> None:
        with pynotify.get(name) as conn:
            assert pynotify.get(name, wakeup="sigusr1") is conn

    def test_after_close_all_may_be_others(self, name: str) -> None:
        pynotify.get(name, wakeup="poll", max_payload=100).close()
        with pynotify.get(name, wakeup="sigusr1", max_payload=200) as conn:
            conn.notify("c", b"x" * 200)
