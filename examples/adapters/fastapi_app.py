"""A FastAPI application whose workers hand each other work, without a broker beside them.

SEGMENT=mails uvicorn --workers 4 fastapi_app:app      # in this folder
curl -X POST 'localhost:8000/mails?count=10'; curl localhost:8000/sent
"""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

from fastapi import Depends, FastAPI, Header

from pynotify.contrib.faststream import TopicSub
from pynotify.contrib.faststream.fastapi import PynotifyRouter

router = PynotifyRouter(os.environ.get("SEGMENT", "mails"))
sent: dict[int, int] = {}


async def sender() -> int:
    await asyncio.sleep(0.01)
    return os.getpid()


# One of the workers gets each of these, another one when it is killed; the result goes to all.
@router.subscriber(topic=TopicSub("mails"), max_workers=10)
@router.publisher("sent")
async def mail(
    number: int, origin: Annotated[int, Header()], by: Annotated[int, Depends(sender)]
) -> dict[str, int]:
    return {"number": number, "by": by, "origin": origin}


@router.subscriber("sent")
async def note(number: int, by: int, origin: int) -> None:
    sent[number] = by


@router.post("/mails")
async def publish(count: int) -> int:
    headers = {"origin": str(os.getpid())}
    await router.broker.publish_batch(
        *({"number": number} for number in range(count)), topic="mails", headers=headers
    )
    return os.getpid()


@router.get("/sent")
async def report() -> dict[int, int]:
    return sent


app = FastAPI()
app.include_router(router)
