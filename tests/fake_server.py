"""An OpenAI-compatible server on loopback that answers at a set pace."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeServer(ThreadingHTTPServer):
    """`first_s` until the first token, `gap_s` between two; every `fails_each`-th request is refused."""

    daemon_threads = True

    def __init__(self, first_s: float, gap_s: float, fails_each: int, says_token_ids: bool) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.first_s, self.gap_s, self.fails_each, self.says_token_ids = first_s, gap_s, fails_each, says_token_ids
        self.bodies: list[dict[str, Any]] = []
        self.received_at: list[float] = []

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def log_message(self, *args: Any) -> None: ...

    def do_GET(self) -> None:
        body = json.dumps({"data": [{"id": "fake-model"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        server, at = self.server, time.perf_counter()
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.bodies.append(body)
        server.received_at.append(at)
        if server.fails_each and len(server.bodies) % server.fails_each == 0:
            self.send_response(503)
            self.end_headers()
            self.wfile.write(b"too busy")
            return
        self.send_response(200)
        self.end_headers()
        for number in range(body["max_tokens"]):
            time.sleep(server.gap_s if number else server.first_s)
            choice: dict[str, Any] = {"text": " word"}
            if server.says_token_ids:
                choice |= {"text": "", "token_ids": [7]}
            self.say({"choices": [choice]})
        usage = {"completion_tokens": body["max_tokens"], "prompt_tokens_details": {"cached_tokens": 3}}
        self.say({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def say(self, piece: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(piece).encode() + b"\n\n")
        self.wfile.flush()


@contextmanager
def serving(
    first_s: float = 0.03, gap_s: float = 0.01, fails_each: int = 0, says_token_ids: bool = True
) -> Iterator[FakeServer]:
    """Runs a server while the block runs."""
    with FakeServer(first_s, gap_s, fails_each, says_token_ids) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
