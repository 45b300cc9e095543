"""FastStream's own cases of routers for FastAPI, with ours: fastapi.py.

tests/support/faststream_case.py says which are left out.
"""

from __future__ import annotations

import asyncio
import os
import signal
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import Mock

import pytest

from requirement import require

try:
    import fastapi  # noqa: F401
    import faststream  # noqa: F401
except ImportError as missing:
    require("fastapi", str(missing))

from fastapi import BackgroundTasks, Depends, FastAPI, Header
from fastapi.exceptions import RequestValidationError
from fastapi.testclient import TestClient
from faststream import Context as FSContext
from faststream import Depends as FSDepends
from faststream import Response
from faststream._internal.fastapi import StreamMessage
from faststream.exceptions import SetupError
from faststream_fastapi import FastStreamAPI

import pynotify
from faststream_case import MEMORY, REAL, Case, Heard, in_loop, topics, until, within
from programs import ROOT
from pynotify.contrib.faststream import PynotifyBroker, TestPynotifyBroker
from pynotify.contrib.faststream import PynotifyRouter as OfBroker
from pynotify.contrib.faststream.fastapi import (
    Connection,
    Context,
    PynotifyMessage,
    PynotifyRouter,
)
from pynotify.contrib.faststream.fastapi import PynotifyBroker as AnnotatedBroker
from receiving import PATIENCE, wait_until
from workers import Workers


class Routed(Case):
    """A `Case` with routers of FastAPI."""

    def fastapi(self, **options: Any) -> PynotifyRouter:
        return PynotifyRouter(self.segment, logger=None, **options)


@pytest.fixture(params=REAL)
def real(request: pytest.FixtureRequest, segment_name: str) -> Routed:
    return Routed(segment_name, request.param[0], in_memory=False)


@pytest.fixture(params=MEMORY)
def memory(request: pytest.FixtureRequest, segment_name: str) -> Routed:
    return Routed(segment_name, request.param[0], in_memory=True)


@pytest.fixture
def mock() -> Mock:
    return Mock()


def application(router: PynotifyRouter) -> FastAPI:
    app = FastAPI()
    app.include_router(router)
    return app


# ---- FastAPITestcase: over a segment -------------------------------------------------------------


@in_loop
async def test_base_real(real: Routed) -> None:
    router, heard = real.fastapi(), Heard()

    @router.subscriber(**real.at("q"))
    async def hello(msg: str) -> None:
        await heard.add(msg)

    async with real.started(router.broker) as broker:
        await broker.publish("hi", **real.at("q"))
        assert await heard.upto(1) == ["hi"]


@in_loop
async def test_background(real: Routed) -> None:
    router, heard = real.fastapi(), Heard()

    @router.subscriber(**real.at("q"))
    async def hello(msg: str, tasks: BackgroundTasks) -> None:
        tasks.add_task(heard.add, msg)

    async with real.started(router.broker) as broker:
        await broker.publish("hi", **real.at("q"))
        assert await heard.upto(1) == ["hi"]


@in_loop
async def test_context(real: Routed) -> None:
    """Also test_context_annotated."""
    router, heard = real.fastapi(), Heard()

    @router.subscriber(**real.at("q"))
    async def hello(
        annotated: Annotated[Any, Context("message.headers")],
        msg: Any = Context("message.headers"),  # noqa: B008
    ) -> None:
        same = msg == annotated == router.context.resolve("message.headers")
        await heard.add((same, msg["1"]))

    async with real.started(router.broker) as broker:
        await broker.publish("", **real.at("q"), headers={"1": "1"})
        assert await heard.upto(1) == [(True, "1")]


@in_loop
async def test_initial_context(real: Routed) -> None:
    router, heard = real.fastapi(), Heard()

    @router.subscriber(**real.at("q"))
    async def hello(msg: int, data: set[int] = Context("kept", initial=set)) -> None:  # noqa: B008
        data.add(msg)
        await heard.add(msg)

    async with real.started(router.broker) as broker:
        await broker.publish(1, **real.at("q"))
        await broker.publish(2, **real.at("q"))
        await heard.upto(2)
    assert router.context.get("kept") == {1, 2}
    router.context.reset_global("kept")


@in_loop
async def test_double_real(real: Routed) -> None:
    router, heard = real.fastapi(), Heard()

    @router.subscriber(**real.at("q"))
    @router.subscriber(**real.at("q2"))
    async def hello(msg: str) -> None:
        await heard.add(msg)

    async with real.started(router.broker) as broker:
        await broker.publish("hi", **real.at("q"))
        await broker.publish("hi", **real.at("q2"))
        assert await heard.upto(2) == ["hi", "hi"]


@in_loop
async def test_base_publisher_real(real: Routed) -> None:
    router, heard = real.fastapi(), Heard()

    @router.subscriber(**real.at("q"))
    @router.publisher(**real.at("qresp"))
    async def m() -> str:
        return "hi"

    @router.subscriber(**real.at("qresp"))
    async def resp(msg: str) -> None:
        await heard.add(msg)

    async with real.started(router.broker) as broker:
        await broker.publish("", **real.at("q"))
        assert await heard.upto(1) == ["hi"]


@in_loop
async def test_injection_fastapi(real: Routed) -> None:
    router, heard = real.fastapi(), Heard()

    @router.subscriber(**real.at("q"))
    async def subscriber(msg: StreamMessage) -> None:
        await heard.add("app" in msg.scope)

    async with real.started(router.broker) as broker:
        await broker.publish(None, **real.at("q"))
        assert await heard.upto(1) == [True]


# ---- FastAPILocalTestcase: in memory -------------------------------------------------------------


async def answer(
    memory: Routed, broker: PynotifyBroker, message: Any = "hi", **options: Any
) -> Any:
    reply = await broker.request(message, **memory.at("q"), timeout=PATIENCE, **options)
    return await reply.decode()


@pytest.mark.parametrize("setup_state", [True, False])
@pytest.mark.parametrize("included", [True, False])
@in_loop
async def test_base(memory: Routed, setup_state: bool, included: bool) -> None:
    """Also test_base_without_state."""
    router = memory.fastapi(setup_state=setup_state)
    app = application(router) if included else FastAPI()

    @router.subscriber(**memory.at("q"))
    async def hello() -> str:
        return "hi"

    async with memory.started(router.broker) as broker:
        with TestClient(app) as client:
            state = client.app_state.get("broker")
            assert state is (broker if included and setup_state else None)
            assert await answer(memory, broker) == "hi"


@in_loop
async def test_request(memory: Routed) -> None:
    router = memory.fastapi(setup_state=False)

    @router.subscriber(**memory.at("q"))
    async def hello() -> Response:
        return Response("Hi!", headers={"x-header": "test"})

    async with memory.started(router.broker) as broker:
        reply = await broker.request("hi", **memory.at("q"), timeout=PATIENCE)
        assert await reply.decode() == "Hi!"
        assert reply.headers["x-header"] == "test"


@in_loop
async def test_invalid(memory: Routed) -> None:
    router = memory.fastapi()

    @router.subscriber(**memory.at("q"))
    async def hello(msg: int) -> None: ...

    async with memory.started(router.broker) as broker:
        with TestClient(application(router)), pytest.raises(RequestValidationError):
            await broker.publish("hi", **memory.at("q"))


@in_loop
async def test_headers(memory: Routed) -> None:
    router = memory.fastapi()

    @router.subscriber(**memory.at("q"))
    async def hello(w: str = Header()) -> str:
        return w

    async with memory.started(router.broker) as broker:
        assert await answer(memory, broker, "", headers={"w": "hi"}) == "hi"


@in_loop
async def test_depends(memory: Routed, mock: Mock) -> None:
    router = memory.fastapi()

    def dep(a: Any) -> Any:
        mock(a)
        return a

    @router.subscriber(**memory.at("q"))
    async def hello(a: Any, w: Any = Depends(dep)) -> Any:  # noqa: B008
        return w

    async with memory.started(router.broker) as broker:
        assert await answer(memory, broker, {"a": "hi"}) == "hi"
    mock.assert_called_once_with("hi")


def _twice(a: str) -> str:
    return a + a


@in_loop
async def test_mixed_depends(memory: Routed) -> None:
    """FastStream's is ignored."""
    router = memory.fastapi()

    @router.subscriber(**memory.at("q"))
    async def hello(a: str, w: Annotated[str, Depends(_twice), FSDepends(lambda: "no")]) -> str:
        return w

    async with memory.started(router.broker) as broker:
        assert await answer(memory, broker, {"a": "hi"}) == "hihi"


async def _by_default(d: Any = FSDepends(lambda: 1)) -> None: ...  # noqa: B008
async def _annotated(d: Annotated[Any, FSDepends(lambda: 1)]) -> None: ...
async def _context(msg: Any = FSContext()) -> None: ...  # noqa: B008
async def _context_annotated(msg: Annotated[Any, FSContext()]) -> None: ...


@pytest.mark.parametrize("handler", [_by_default, _annotated, _context, _context_annotated])
@in_loop
async def test_depends_from_fastdepends_default(memory: Routed, handler: Any) -> None:
    """Also ..._annotated, test_faststream_context, test_faststream_context_annotated."""
    router = memory.fastapi()
    router.subscriber(**memory.at("q"))(handler)
    with pytest.raises(SetupError):
        async with memory.started(router.broker):
            with TestClient(application(router)):
                pass


async def _both(d: Annotated[Any, FSDepends(lambda: 1), Depends(lambda: 1)]) -> None: ...
async def _both_contexts(
    msg: Annotated[Any, Context("message.headers"), FSContext("message.headers")],
) -> None: ...
async def _nested(
    msg: Annotated[Annotated[Any, FSContext("message.headers")], Context("message.headers")],
) -> None: ...


@pytest.mark.parametrize("handler", [_both, _both_contexts, _nested])
@in_loop
async def test_depends_combined_annotated(memory: Routed, handler: Any) -> None:
    """Also test_combined_context_annotated, test_nested_combined_context_annotated."""
    router = memory.fastapi()
    router.subscriber(**memory.at("q"))(handler)
    async with memory.started(router.broker) as broker:
        with TestClient(application(router)):
            await broker.publish("hi", **memory.at("q"))


@in_loop
async def test_yield_depends(memory: Routed, mock: Mock) -> None:
    router = memory.fastapi()

    def dep(a: Any) -> Iterator[Any]:
        mock.start()
        yield a
        mock.close()

    @router.subscriber(**memory.at("q"))
    async def hello(a: Any, w: Any = Depends(dep)) -> Any:  # noqa: B008
        mock.start.assert_called_once()
        assert not mock.close.call_count
        return w

    async with memory.started(router.broker) as broker:
        assert await answer(memory, broker, {"a": "hi"}) == "hi"
    mock.start.assert_called_once()
    mock.close.assert_called_once()


@pytest.mark.parametrize("of", ["router", "subscriber"])
@in_loop
async def test_router_depends(memory: Routed, mock: Mock, of: str) -> None:
    """Also test_subscriber_depends."""

    def dep() -> None:
        mock()

    depends = {"dependencies": (Depends(dep, use_cache=False),)}
    router = memory.fastapi(**(depends if of == "router" else {}))

    @router.subscriber(**memory.at("q"), **(depends if of == "subscriber" else {}))  # type: ignore[arg-type]
    async def hello(a: Any) -> Any:
        return a

    async with memory.started(router.broker) as broker:
        assert await answer(memory, broker) == "hi"
    mock.assert_called_once()


@in_loop
async def test_hooks(memory: Routed, mock: Mock) -> None:
    router = memory.fastapi()

    @router.after_startup
    def started(app: FastAPI) -> None:
        mock.started()

    @router.after_startup
    async def started_async(app: FastAPI) -> None:
        mock.started_async()

    @router.on_broker_shutdown
    def stopping(app: FastAPI) -> None:
        mock.stopping()

    @router.on_broker_shutdown
    async def stopping_async(app: FastAPI) -> None:
        mock.stopping_async()

    async with memory.started(router.broker):
        with TestClient(application(router)):
            names = [each[0] for each in mock.method_calls]
            assert names == ["started", "started_async"]
    assert [each[0] for each in mock.method_calls[2:]] == ["stopping", "stopping_async"]


@in_loop
async def test_existed_lifespan_startup(memory: Routed, mock: Mock) -> None:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, bool]]:
        mock.start()
        yield {"lifespan": True}
        mock.close()

    router = memory.fastapi(lifespan=lifespan)
    async with memory.started(router.broker):
        with TestClient(application(router)) as client:
            assert client.app_state["lifespan"] is True
    mock.start.assert_called_once()
    mock.close.assert_called_once()


@in_loop
async def test_subscriber_mock(memory: Routed) -> None:
    """Also test_publisher_mock."""
    router = memory.fastapi()
    publisher = router.publisher(**memory.at("qresp"))

    @publisher
    @router.subscriber(**memory.at("q"))
    async def m() -> str:
        return "response"

    async with memory.started(router.broker) as broker:
        await broker.publish("hello", **memory.at("q"))
        m.mock.assert_called_once_with("hello")
        publisher.mock.assert_called_with("response")


@in_loop
async def test_include(memory: Routed) -> None:
    router, inner = memory.fastapi(), OfBroker(prefix="in-")

    @router.subscriber(**memory.at("q"))
    async def hello() -> str:
        return "hi"

    @inner.subscriber(**memory.at("q"))
    async def hello_router2(a: Annotated[str, Header()]) -> str:
        return a

    router.include_router(inner)
    async with memory.started(router.broker) as broker:
        with TestClient(application(router)) as client:
            assert client.app_state["broker"] is broker
            assert await answer(memory, broker) == "hi"
            reply = await broker.request(
                "", **memory.at("in-q"), headers={"a": "in"}, timeout=PATIENCE
            )
            assert await reply.decode() == "in"


@in_loop
async def test_dependency_overrides(memory: Routed, mock: Mock) -> None:
    router = memory.fastapi()

    def refused() -> None:
        raise AssertionError

    @router.subscriber(**memory.at("q"))
    async def hello(dep: None = Depends(refused)) -> str:
        return "hi"

    app = application(router)
    app.dependency_overrides[refused] = lambda: mock()  # noqa: PLW0108
    async with memory.started(router.broker) as broker:
        with TestClient(app):
            assert await answer(memory, broker) == "hi"
    mock.assert_called_once()


def test_nested_stream_router_raises(segment_name: str) -> None:
    router = PynotifyRouter(segment_name)
    with pytest.raises(TypeError, match="Including a StreamRouter into another StreamRouter"):
        router.include_router(PynotifyRouter(segment_name))


# ---- what is ours alone --------------------------------------------------------------------------


def test_an_application_on_a_segment(real: Routed) -> None:
    """Routes publish, subscribers hear, from the start of the application to its end."""
    router = real.fastapi(prefix="/v1", durable=False, max_backends=16)
    heard: list[Any] = []
    done = asyncio.Event()

    @router.subscriber(**real.at("mails"))
    async def mail(
        to: str, message: PynotifyMessage, connection: Connection, broker: AnnotatedBroker
    ) -> None:
        assert connection.closed is False
        heard.append((to, message.headers["k"], broker is router.broker))
        done.set()

    @router.post("/mails")
    async def later(to: str) -> str:
        await router.broker.publish(to, **real.at("mails"), headers={"k": "v"})
        await within(done.wait())
        return "sent"

    with TestClient(application(router)) as client:
        assert client.post("/v1/mails", params={"to": "a@example.org"}).json() == "sent"
        assert heard == [("a@example.org", "v", True)]
        assert router.broker._connection is not None
    assert router.broker._connection is None


def test_the_pages_of_asyncapi(real: Routed) -> None:
    router = real.fastapi()

    @router.subscriber(**real.at("q"))
    async def hello(msg: int) -> None: ...

    with TestClient(application(router)) as client:
        found = client.get("/asyncapi.json").json()
        assert [server["protocol"] for server in found["servers"].values()] == ["pynotify"]
        assert "q:Hello" in str(found["channels"])
        assert client.get("/asyncapi").status_code == 200
        # Its page knows a destination's name alone, so it finds channels.
        tried = {
            "channelName": "q:Hello",
            "message": {"operation_id": "q:Hello", "message": 1},
            "options": {"sendToRealBroker": False},
        }
        found = client.post("/asyncapi/try", json=tried).status_code
        assert found == (200 if real.by == "channel" else 404)
    with TestClient(application(real.fastapi(schema_url=None))) as client:
        assert client.get("/asyncapi.json").status_code == 404


def test_a_wrong_declaration(segment_name: str) -> None:
    router = PynotifyRouter(segment_name)
    with pytest.raises(SetupError):
        router.subscriber()
    with pytest.raises(SetupError):
        router.publisher("c", topic="t")


@in_loop
async def test_faststream_fastapi(memory: Routed) -> None:
    """The package that FastStream's routers move to takes a broker as it is."""
    broker = PynotifyBroker(memory.segment, logger=None)

    @broker.subscriber(**memory.at("q"))
    async def hello(a: str, w: Annotated[str, Header()], app: str = Depends(lambda: "app")) -> str:
        return f"{a} {w} {app}"

    served = FastStreamAPI(broker, application=FastAPI())
    async with TestPynotifyBroker(broker):
        with TestClient(served):
            assert await answer(memory, broker, {"a": "1"}, headers={"w": "2"}) == "1 2 app"


# ---- the example ---------------------------------------------------------------------------------

MAILS = 400


def consumers(segment: str) -> dict[int, int]:
    """How many mails each worker has in hand."""
    with pynotify.open(segment) as engine:
        channels = [each for topic in engine.topics() for each in topic.channels]
        listening = [each.listeners for each in engine.channels() if each.name == "sent"]
    workers = {each.pid: each.in_flight for found in channels for each in found.consumers}
    return workers if listening and listening[0] >= len(workers) else {}


def send(url: str) -> int:
    request = urllib.request.Request(f"{url}/mails?count={MAILS}", method="POST")
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return int(answer.read())


async def sent_beside_a_kill(segment: str, url: str) -> tuple[int, int, list[dict[str, int]]]:
    """The process that was asked, the one that was killed with mails in hand, what was sent."""
    broker, heard = PynotifyBroker(segment, logger=None), Heard()
    broker.subscriber("sent")(heard.add)
    async with broker:
        await broker.start()
        asked = await asyncio.to_thread(send, url)
        victims: list[int] = []

        def busy() -> bool:
            victims[:] = [pid for pid, mails in consumers(segment).items() if mails]
            return bool(victims)

        await until(busy)
        os.kill(victims[0], signal.SIGKILL)
        await until(lambda: len({each["number"] for each in heard.all}) == MAILS)
        await until(lambda: topics(segment)["mails"] == 0)
    return asked, victims[0], heard.all


def test_four_workers_of_which_one_is_killed(segment_name: str, tmp_path: Path) -> None:
    """Each mail is sent, those that it had in hand by others."""
    server = Workers(
        tmp_path, "uvicorn", "--workers", "4", "--port", "0", "--log-level", "info",
        "--app-dir", ROOT / "examples" / "adapters", "fastapi_app:app", SEGMENT=segment_name,
    )  # fmt: skip
    try:
        url = server.url
        # What opens the segment first says how large it is; the workers do.
        wait_until(lambda: "startup complete" in server.said(), "a worker is there")
        wait_until(lambda: len(consumers(segment_name)) == 4, "four workers listen")
        asked, killed, sent = asyncio.run(sent_beside_a_kill(segment_name, url))
        assert {each["origin"] for each in sent} == {asked}
        by = {each["by"] for each in sent}
        assert len(by - {killed}) >= 2
    except BaseException:
        print(server.said())
        raise
    finally:
        server.close()
    with pynotify.open(segment_name) as segment:
        wait_until(lambda: not segment.stat().backends, "their slots are free")
