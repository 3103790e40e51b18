"""A web service of threads, in which each page needs one lock for 2 ms; a child asks for pages, three at a time.

Prints `ready PID` when it answers; ends with its standard input. Standard library only.
"""

import http.client
import os
import socketserver
import sys
import threading
import time
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from lifetime import die_with_parent

LOCK = threading.Lock()


class Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


class Quiet(WSGIRequestHandler):
    def log_message(self, *_arguments):
        pass


def page(_environ, start_response):
    with LOCK:
        body = look_up()
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [body]


def look_up():
    time.sleep(0.002)
    return str(sum(range(20_000))).encode()


def ask(port):
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/")
        connection.getresponse().read()
        connection.close()


def ask_for_ever(port):
    die_with_parent()
    for number in range(3):
        threading.Thread(target=ask, args=(port,), name=f"client-{number}").start()
    threading.Event().wait()


if __name__ == "__main__":
    server = make_server("127.0.0.1", 0, page, Server, Quiet)
    if os.fork() == 0:
        ask_for_ever(server.server_port)
    threading.Thread(target=server.serve_forever, name="server", daemon=True).start()
    print("ready", os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
