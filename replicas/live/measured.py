"""`kind: calibrate`, `measure: {kind: vllm}`: a vLLM engine that step shapes are measured on."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field, PrivateAttr

from replicas.calibration.engines import Limits, MeasuredEngine, StepTimes
from replicas.calibration.fitted import Fitted
from replicas.calibration.shapes import Shape
from replicas.catalog import Gpu, Model
from replicas.live.bench import Bench
from replicas.live.config import Vllm
from replicas.live.interface import LiveEngine

ROOM_TOKENS = 64
"""What a context may grow by while those of a batch's other requests are put in place."""


class MeasuredVllm(MeasuredEngine):
    """vLLM in this process, started with scheduling ahead off, so that the device's time and the CPU's can be told apart."""

    engine: Vllm = Field(description="The options of `replicas: {kind: vllm}`.")
    max_kv_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Largest sum of contexts of a step that is measured: contexts have to be computed before they can be "
        "measured on, again when the cache has lost them; null = what the cache holds.",
    )
    _subject: tuple[Model, Gpu] | None = PrivateAttr(default=None)
    _live: Any = PrivateAttr(default=None)
    _bench: Any = PrivateAttr(default=None)

    def take(self, model: Model, gpu: Gpu) -> None:
        """Learns what is to be measured."""
        self._subject = model, gpu

    def limits(self) -> Limits:
        """Starts the engine and returns what it can do, less the room that measuring needs.

        Raises:
            EngineError: it did not start.
        """
        has = self._started().limits
        num_blocks = has.num_gpu_blocks - 1
        blocks_of_room = has.max_num_seqs * (1 + -(-ROOM_TOKENS // has.block_size))
        num_kv_tokens = max(num_blocks - blocks_of_room, num_blocks // 2) * has.block_size
        return Limits(
            max_num_seqs=has.max_num_seqs,
            max_num_batched_tokens=has.max_num_batched_tokens,
            max_model_len=has.max_model_len - ROOM_TOKENS,
            num_kv_tokens=min(num_kv_tokens, self.max_kv_tokens or num_kv_tokens),
            max_graph_tokens=has.max_graph_tokens,
        )

    def measure(self, shape: Shape) -> StepTimes:
        """Runs one step of this shape.

        Raises:
            EngineError: it failed, or ran another step.
        """
        self._started()
        return StepTimes(*self._bench.measure(*shape))

    def end(self) -> None:
        """Ends the engine."""
        if self._live is not None:
            self._live.shut_down()
            self._live = self._bench = None

    @property
    def version(self) -> str | None:
        """The engine's version."""
        return self._live.limits.version if self._live is not None else None

    @property
    def fitted(self) -> Fitted:
        """What is measured: decodes of one token, without adapters."""
        kv_cache_dtype = "fp8" if self.engine.kv_cache_dtype == "fp8" else self.engine.engine_dtype
        eager = [self.engine.enforce_eager]
        return Fitted.model_validate(
            {"kv_cache_dtypes": [kv_cache_dtype], "speculation": [False], "enforce_eager": eager, "adapters": [False]}
        )

    @property
    def kv_cache(self) -> tuple[int, int] | None:
        """(num_gpu_blocks, block_size) that the engine made for itself; None if it was told how many to make."""
        if self._live is None or self.engine.num_gpu_blocks is not None:
            return None
        return self._live.limits.num_gpu_blocks, self._live.limits.block_size

    @property
    def memory(self) -> Mapping[str, int]:
        """Bytes on one device."""
        return self._live.limits.memory if self._live is not None else {}

    def _started(self) -> LiveEngine:
        if self._live is None:
            assert self._subject is not None, "take() comes first"
            options = self.engine.model_copy(update={"async_scheduling": False})
            self._live = options.start(*self._subject, enable_prefix_caching=True)
            self._bench = Bench(self._live)
        live: LiveEngine = self._live
        return live


ENGINES: dict[str, type[MeasuredEngine]] = {"vllm": MeasuredVllm}
"""What `measure: {kind: ...}` can be."""
