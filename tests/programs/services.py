"""Web services that are asked in turn for a fast and for a slow page: services.py KIND PORT.

PORT is that of bottlenecks.py slow_http, which the slow page of some asks. Prints a line when it is asked, by its
child; ends with its stdin. The line that a verdict should name ends in `here: KIND`. PYTHONPATH has Flask, Django,
FastAPI, uvicorn and httpx.
"""

from __future__ import annotations

import asyncio
import ctypes
import http.client
import itertools
import os
import socket
import sys
import threading
import time
import urllib.request
from wsgiref.simple_server import make_server

UPSTREAM = int(sys.argv[2])


def flask() -> None:
    """A page that another server makes."""
    from flask import Flask

    app = Flask(__name__)

    @app.get("/slow")
    def report() -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{UPSTREAM}/") as answer:  # here: flask
            return answer.read()

    app.get("/fast")(lambda: "ok")
    app.run(port=PORT, threaded=True)


def django() -> None:
    """A page that takes long to compute."""
    from django.conf import settings

    settings.configure(SECRET_KEY="x", ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, LOGGING_CONFIG=None)
    import django
    from django.core.wsgi import get_wsgi_application
    from django.http import HttpResponse
    from django.urls import path

    django.setup()
    urlpatterns.append(path("fast", lambda request: HttpResponse("ok")))
    urlpatterns.append(path("slow", lambda request: HttpResponse(total())))
    make_server("127.0.0.1", PORT, get_wsgi_application()).serve_forever()


urlpatterns: list[object] = []


def total() -> str:
    return str(sum(number * number for number in range(200_000)))  # here: django


def fastapi(slow_page) -> None:  # type: ignore[no-untyped-def]
    import uvicorn
    from fastapi import FastAPI

    app = FastAPI()

    @app.get("/fast")
    async def fast() -> str:
        return "ok"

    app.get("/slow")(slow_page)
    uvicorn.run(app, port=PORT, log_level="error")


def fastapi_blocks() -> None:
    async def report() -> str:
        time.sleep(0.03)  # here: fastapi_blocks
        return "ok"

    fastapi(report)


def fastapi_sleeps() -> None:
    async def report() -> str:
        await asyncio.sleep(0.1)  # here: fastapi_sleeps
        return "ok"

    fastapi(report)


def fastapi_asks() -> None:
    import httpx

    client = httpx.AsyncClient()

    async def report() -> int:
        answer = await client.get(f"http://127.0.0.1:{UPSTREAM}/slower")  # here: fastapi_asks
        return len(answer.content)

    fastapi(report)


def fastapi_in_threads() -> None:
    def report() -> str:
        time.sleep(0.1)  # here: fastapi_in_threads
        return "ok"

    fastapi(report)


def ask(first: str) -> None:
    """One page after the other, for ever."""
    for page in itertools.cycle([first, "/slow", "/fast"]):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=30)
            connection.request("GET", page)
            connection.getresponse().read()
            connection.close()
        except OSError:
            time.sleep(0.05)  # it is not there yet


def asks() -> None:
    """A process that asks four at a time, and ends with its parent."""
    parent = os.getpid()
    if os.fork():
        return
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG
    if os.getppid() == parent:
        for page in ("/slow", "/fast", "/slow"):
            threading.Thread(target=ask, args=(page,)).start()
        ask("/fast")
    os._exit(1)


def say_when_ready() -> None:
    while True:
        try:
            socket.create_connection(("127.0.0.1", PORT)).close()
            break
        except OSError:
            time.sleep(0.05)
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as free:
        PORT = free.getsockname()[1]
    asks()
    threading.Thread(target=say_when_ready, name="stdin", daemon=True).start()
    globals()[sys.argv[1]]()
