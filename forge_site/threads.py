"""Short database reads of connections that do not pass through Django's handler.

Asgiref would run all of them on one thread of the process, so one slow query would stop every socket (measured: a 1.6 s
query made a fast call take 1.5 s). Here they have a few threads of their own, and leave no connection behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from django.db import connections

P = ParamSpec("P")
R = TypeVar("R")

_pool = ThreadPoolExecutor(4, "socket-reads")


async def in_thread(read: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    def call() -> R:
        try:
            return read(*args, **kwargs)
        finally:
            connections.close_all()

    return await asyncio.get_running_loop().run_in_executor(_pool, call)


async def first_of(*works: asyncio.Future[None]) -> None:
    """Wait until one of the tasks ends, then end the others; what the first one raised is raised here."""
    try:
        done, _ = await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
    for work in done:
        work.result()
