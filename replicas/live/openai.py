"""`replicas: {kind: openai}`: a server that speaks OpenAI's API, replayed against in real time.

The simulated clock follows the wall's: a request is sent when it arrives, and each piece of its answer is delivered when it
came. What happens inside the server is not seen.
"""

import http.client
import json
import queue
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from replicas.catalog import Gpu, Model
from replicas.engine import Engine
from replicas.live.interface import Limits, LiveEngine, Scheduled, Step
from sim.errors import EngineError

POLL_S = 0.002
"""Longest wait for a piece before arrivals, and the pieces of other servers, are looked for again."""

MOST_IN_FLIGHT = 4096
"""Requests at one time: a thread each."""


class OpenAiServer(Engine):
    """A running server behind a base URL, such as `vllm serve`. Requests go to it when they arrive, in real time, streamed.

    Takes a surrogate's options, so the same file runs on either; they describe the surrogate, not the server.
    """

    is_live: ClassVar[bool] = True

    base_url: str = Field(description="Where it listens: http://127.0.0.1:8000/v1")
    served_model: str | None = Field(default=None, description="The name it serves the model under; null = the first it lists.")
    prompt_as: Literal["tokens", "words"] = Field(
        default="tokens",
        description="How prompts are sent: as token ids (vLLM takes them), or as that many words, which is as many tokens only "
        "if the server's tokenizer has it so.",
    )
    extra_body: dict[str, Any] = Field(
        default={"ignore_eos": True, "return_token_ids": True},
        description="More keys of the request's body. These are vLLM's: an answer is as long as asked, and each piece says "
        "how many tokens it is. For other servers: {}.",
    )
    timeout_s: float = Field(
        default=600.0, gt=0, description="How long the server may stay silent before a request has failed."
    )

    @field_validator("base_url")
    @classmethod
    def _is_http(cls, value: str) -> str:
        parts = urllib.parse.urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"must be such as http://127.0.0.1:8000/v1, given {value!r}")
        return value.rstrip("/")

    def start(self, model: Model, gpu: Gpu, enable_prefix_caching: bool) -> LiveEngine:
        """Asks the server who it is.

        Raises:
            EngineError: nobody answers there, or not as such a server would.
        """
        max_model_len = self.limits(model, gpu)[0]
        num_blocks = self.memory(model, gpu).num_gpu_blocks
        return ServerReplica(self, Server(self.base_url, self.timeout_s), max_model_len, num_blocks, model.vocab)


@dataclass(frozen=True)
class Piece:
    """Something that came from the server for one request: tokens, its end, or a failure."""

    request: int
    at: float  # time.perf_counter()
    num_tokens: int = 0
    is_last: bool = False
    num_cached_tokens: int | None = None
    error: str = ""


class Server:
    """The few calls of OpenAI's API that a replay needs, over the standard library's HTTP client."""

    def __init__(self, base_url: str, timeout_s: float) -> None:
        self.base_url, self.timeout_s = base_url, timeout_s
        self._parts = urllib.parse.urlsplit(base_url)

    def models(self) -> list[str]:
        """Returns the names of the models it serves.

        Raises:
            EngineError: nobody answers there, or not as such a server would.
        """
        try:
            connection = self._connection()
            connection.request("GET", f"{self._parts.path}/models")
            return [one["id"] for one in json.loads(connection.getresponse().read())["data"]]
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            raise EngineError(f"{self.base_url}/models: no OpenAI-compatible server answers ({error!r})") from error

    def stream(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Sends a completion request and yields the pieces of the answer as they come.

        Raises:
            OSError: the connection failed, or the server was silent for too long.
            ValueError: it refused, or sent what is no such answer.
        """
        connection = self._connection()
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", f"{self._parts.path}/completions", json.dumps(body), headers)
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise ValueError(f"HTTP {response.status}: {response.read(300).decode(errors='replace').strip()}")
            for line in response:
                if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
                    yield json.loads(line[5:])
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        return kind(self._parts.hostname or "", self._parts.port, timeout=self.timeout_s)


class ServerReplica:
    """A server as a `LiveEngine`: a thread a request in flight; a step ends with the next piece that comes.

    Counts of tokens are the stream's: a piece is one token unless it lists its `token_ids`, and at the end `usage` corrects
    the count by tokens that came unseen within the last piece.
    """

    def __init__(self, options: OpenAiServer, server: Server, max_model_len: int, num_blocks: int, vocab_size: int) -> None:
        names = server.models()
        if not names or options.served_model not in (None, *names):
            raise EngineError(f"{options.base_url}: no model {options.served_model!r}; it serves {', '.join(names) or 'none'}")
        self._options, self._server = options, server
        self._model = options.served_model or names[0]
        self.limits = Limits(
            max_model_len=max_model_len,
            max_num_seqs=MOST_IN_FLIGHT,
            max_num_batched_tokens=MOST_IN_FLIGHT * max_model_len,
            block_size=options.block_size,
            num_gpu_blocks=num_blocks,
            enable_prefix_caching=True,
            async_scheduling=False,
            vocab_size=vocab_size,
            version=f"{self._model} at {options.base_url}",
        )
        self.start_s: dict[str, float] = {}
        self._pieces: queue.SimpleQueue[Piece] = queue.SimpleQueue()
        self._wanted: dict[int, int] = {}  # requests in flight -> tokens still to come
        self._new: list[tuple[int, int]] = []  # request, prompt tokens
        self._now: Callable[[], float] = time.perf_counter
        self._next_arrival: Callable[[], float] = lambda: float("inf")
        self._started_at: float | None = None

    def follow(self, now: Callable[[], float], next_arrival: Callable[[], float]) -> None:
        """Learns the simulation's clock, and when the next request arrives."""
        self._now, self._next_arrival = now, next_arrival

    def add(self, request: int, prompt: list[int], num_output_tokens: int, priority: int = 0) -> None:
        """Sends a request; before that, sleeps until the wall clock is where the simulation's is."""
        self._wait_for_wall_clock()
        self._wanted[request] = num_output_tokens
        self._new.append((request, len(prompt)))
        body = {
            "model": self._model,
            "prompt": prompt if self._options.prompt_as == "tokens" else " ".join(f"w{token}" for token in prompt),
            "max_tokens": num_output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        body |= self._options.extra_body
        threading.Thread(target=self._read, args=(request, body), daemon=True).start()

    def _read(self, request: int, body: dict[str, Any]) -> None:
        usage: dict[str, Any] = {}
        num_tokens = 0
        try:
            for piece in self._server.stream(body):
                usage = piece.get("usage") or usage
                choice = (piece.get("choices") or [{}])[0]
                number = len(choice.get("token_ids") or ()) or int(bool(choice.get("text")))
                if number:
                    num_tokens += number
                    self._pieces.put(Piece(request, time.perf_counter(), number))
            late = int(usage.get("completion_tokens", num_tokens)) - num_tokens
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
            self._pieces.put(Piece(request, time.perf_counter(), late, is_last=True, num_cached_tokens=cached))
        except (OSError, http.client.HTTPException, ValueError, AttributeError, TypeError) as error:
            self._pieces.put(Piece(request, time.perf_counter(), error=f"{type(error).__name__}: {error}"))

    def has_work(self) -> bool:
        """Tells whether a request is in flight."""
        return bool(self._wanted)

    def step(self) -> Step:
        """Waits for the next pieces, or until a request is due, and says how far the wall clock has come by then."""
        began_at_s = self._now()
        step = Step(0.0)
        step.scheduled = [Scheduled(request, num_prompt, 0) for request, num_prompt in self._new]
        step.admitted = [request for request, _ in self._new]
        self._new = []
        piece = self._next_piece(began_at_s)
        if piece is not None:
            self._take(step, piece)
        ended = piece.at if piece is not None else time.perf_counter()
        assert self._started_at is not None, "a request is in flight, so one was sent"
        step.lasted_s = max(0.0, ended - self._started_at - began_at_s)
        free = self.limits.num_gpu_blocks - 1
        step.num_free_blocks = (free, free)
        return step

    def _take(self, step: Step, piece: Piece) -> None:
        request = piece.request
        if request not in self._wanted:
            return
        num_tokens = min(piece.num_tokens, self._wanted[request])
        self._wanted[request] -= num_tokens
        if num_tokens > 0:
            step.tokens[request] = step.tokens.get(request, []) + [0] * num_tokens
        if piece.error or (piece.is_last and self._wanted[request]):
            step.failed[request] = piece.error or f"the answer ended {self._wanted[request]} tokens early"
        elif piece.is_last:
            step.finished.append(request)
        if piece.num_cached_tokens is not None:
            step.cached[request] = piece.num_cached_tokens
        if piece.is_last or piece.error:
            del self._wanted[request]

    def _next_piece(self, began_at_s: float) -> Piece | None:
        """Returns the next piece; None if none comes for a while, or a request is due first."""
        due_s = self._next_arrival() - began_at_s
        try:
            return self._pieces.get(timeout=max(0.0, min(POLL_S, due_s)))
        except queue.Empty:
            return None

    def _wait_for_wall_clock(self) -> None:
        if self._started_at is None:
            self._started_at = time.perf_counter() - self._now()
        ahead_s = self._started_at + self._now() - time.perf_counter()
        if ahead_s > 0:
            time.sleep(ahead_s)

    def abort(self, requests: list[int]) -> None:
        """Forgets requests; what still comes for them is dropped."""
        for request in requests:
            self._wanted.pop(request, None)

    def count_blocks(self) -> tuple[int, int]:
        """Says that all blocks are free: the server's are not seen."""
        return 0, self.limits.num_gpu_blocks - 1

    def shut_down(self) -> None:
        """Leaves the server alone."""
        self._wanted.clear()
