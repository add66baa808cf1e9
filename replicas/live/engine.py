"""vLLM in this process: the one file that knows it. Started, it is stepped and measured; nothing runs between two steps."""

import contextlib
import dataclasses
import gc
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from replicas.live.interface import Limits, Scheduled, Step
from replicas.live.recorder import Overlap, Recorder
from sim.errors import EngineError
from sim.texts import did_you_mean

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine core in this process, so that a step is a call
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "OMP_NUM_THREADS": "1",  # on a CPU two threads that contend took a step from 27 to 457 ms
}
"""Set before vLLM is imported, where the user has not."""

WARM_UP = ((64, 8), (200, 8))
"""Prompt and output lengths of requests that are run before an engine counts as ready: first steps are slow."""

MOST_EMPTY_STEPS = 1000
"""Calls in a row that neither plan nor yield anything, while requests are there, before an engine counts as stuck."""


class VllmEngine:
    """A vLLM engine (see `LiveEngine`).

    With `is_cpu_clock` the virtual clock moves by the CPU time of the engine's thread instead of the wall's: what one thread
    would take on a machine that nothing else runs on. Only for an engine on a CPU with one OpenMP thread.

    Args:
        arguments: vLLM's `EngineArgs`, by name.
        model_config: if given, the `config.json` of the model to make up; its weights are random.
        version: what the installed version must begin with; "any" lets every one pass.
        is_cpu_clock: see above.

    Attributes:
        runs_free: does not wait for the device between steps: for recording in real time.

    Raises:
        EngineError: no vLLM here, another version, an unknown argument, or it did not start (out of memory, too large a model).
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        model_config: Mapping[str, Any] | None = None,
        version: str = "any",
        is_cpu_clock: bool = False,
    ) -> None:
        vllm = load_vllm(version)
        self.start_s: dict[str, float] = {}
        self.runs_free = False
        self._is_cpu_clock = is_cpu_clock
        self._ids: dict[str, int] = {}  # vLLM's id -> the simulation's
        self._names: dict[int, str] = {}
        self._num_empty_steps = 0
        began = time.perf_counter()
        with one_line("did not start"), _model_folder(arguments, model_config) as given:
            self._engine = self._start(vllm, given)
            core = self._engine.engine_core.engine_core
            self._core, self._scheduler = core, core.scheduler
            self._recorder = Recorder(core.scheduler)
            self._overlap = Overlap() if core.batch_queue is not None else None
            self._synchronize = _device_barrier()
            self.limits = self._limits(vllm.__version__)
            self._warm_up()
        total_s = time.perf_counter() - began
        self.start_s["start_s"] = max(0.0, total_s - self.start_s["weights_s"] - self.start_s["capture_s"])

    def _start(self, vllm: Any, arguments: Mapping[str, Any]) -> Any:
        """Starts the engine, timing its worker's making (device and weights) and what follows (KV cache, graphs)."""
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine
        from vllm.v1.executor.abstract import Executor

        _check_arguments(arguments, [field.name for field in dataclasses.fields(EngineArgs)])
        config = EngineArgs(**arguments).create_engine_config()
        kind = Executor.get_class(config)
        loaded_at = 0.0

        def timed_executor(vllm_config: Any) -> Any:
            nonlocal loaded_at
            began = time.perf_counter()
            executor = kind(vllm_config)
            loaded_at = time.perf_counter()
            self.start_s["weights_s"] = loaded_at - began
            return executor

        engine = LLMEngine(vllm_config=config, executor_class=timed_executor, log_stats=False, multiprocess_mode=False)
        self.start_s["capture_s"] = time.perf_counter() - loaded_at
        # vLLM's own way out, taken when an engine is forgotten, also ends torch's process groups, which the others here use
        engine.engine_core._finalizer.detach()
        return engine

    def _limits(self, version: str) -> Limits:
        config = self._engine.vllm_config
        return Limits(
            max_model_len=config.model_config.max_model_len,
            max_num_seqs=config.scheduler_config.max_num_seqs,
            max_num_batched_tokens=config.scheduler_config.max_num_batched_tokens,
            block_size=config.cache_config.block_size,
            num_gpu_blocks=self._scheduler.kv_cache_manager.block_pool.num_gpu_blocks,
            enable_prefix_caching=bool(config.cache_config.enable_prefix_caching),
            async_scheduling=self._core.batch_queue is not None,
            vocab_size=config.model_config.get_vocab_size(),
            version=version,
            max_graph_tokens=_max_graph_tokens(config.compilation_config),
            memory=self._core.model_executor.collective_rpc(_memory_of)[0],
        )

    def _warm_up(self) -> None:
        for number, (num_prompt, num_output) in enumerate(WARM_UP):
            num_prompt = min(num_prompt, self.limits.max_model_len - num_output)
            self.add(-1 - number, [1 + k % (self.limits.vocab_size - 1) for k in range(num_prompt)], num_output)
        while self.has_work():
            self.step()
        self._engine.reset_prefix_cache()
        self._overlap = Overlap() if self._overlap is not None else None

    def add(self, request: int, prompt: list[int], num_output_tokens: int, priority: int = 0) -> None:
        """Gives it a request that will yield exactly so many tokens."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=0.0,
            max_tokens=num_output_tokens,
            min_tokens=num_output_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        with one_line(f"did not take request {request}"):
            name = self._engine.add_request(str(request), {"prompt_token_ids": prompt}, params, priority=priority)
        self._ids[name], self._names[request] = request, name

    def has_work(self) -> bool:
        """Tells whether a request is waiting or running, or a step in flight."""
        return bool(self._engine.has_unfinished_requests() or self._core.batch_queue)

    def step(self) -> Step:
        """Runs one iteration and measures it, the device included; the recorder's own time is taken off again."""
        with one_line("failed in a step"):
            began = _instant()
            outputs = self._engine.step()
            if self._overlap is None and not self.runs_free:
                self._synchronize()
            ended = _instant()
            if self._overlap is not None and not self.runs_free:
                self._synchronize()
            left_s = time.perf_counter() - ended["t"]
        settling = self._recorder.settling
        planned, done, overhead_s = self._recorder.take()
        clock = "c" if self._is_cpu_clock and not self.runs_free else "t"
        lasted_s = ended[clock] - began[clock] - overhead_s[clock]
        if self._overlap is not None and not self.runs_free:
            settles_at, overhead_before_s = settling or (ended["t"], overhead_s["t"])
            launch_s = settles_at - began["t"] - overhead_before_s
            lasted_s = self._overlap.lasted(launch_s, lasted_s - launch_s, left_s, waits=settling is not None)
        self._check_progress(bool(planned or outputs))
        step = Step(lasted_s, ended["c"] - began["c"] - overhead_s["c"])
        self._note_plan(step, planned, clock, began[clock])
        self._note_output(step, done, clock, ended[clock])
        self._note_tokens(step, outputs)
        return step

    def _note_plan(self, step: Step, rows: list[dict[str, Any]], clock: str, began: float) -> None:
        """Fills in what the call planned, and makes the rows' instants seconds from its start, on the clock that counts."""
        ids, free = self._ids, self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        step.num_free_blocks = (rows[-1]["free_blocks"] if rows else free, free)
        for row in rows:
            row["reqs"] = [[ids[name], *numbers] for name, *numbers in row["reqs"]]
            for key in ("new", "resumed", "preempted"):
                row[key] = [ids[name] for name in row[key]]
            step.scheduled += [Scheduled(*numbers[:3]) for numbers in row["reqs"]]
            step.admitted += [*row["new"], *row["resumed"]]
            step.preempted += row["preempted"]
            row["t0"], row["t1"] = row[f"{clock}0"] - began, row[f"{clock}1"] - began
        step.planned = rows

    def _note_output(self, step: Step, rows: list[dict[str, Any]], clock: str, ended: float) -> None:
        """Makes the last instants of rows whose output the call took in seconds before its end, on the clock that counts."""
        for row in rows:
            row["finished"] = [self._ids[name] for name in row["finished"]]
            row["t2"], row["t3"] = row[f"{clock}2"] - ended, row[f"{clock}3"] - ended
        step.done = rows

    def _note_tokens(self, step: Step, outputs: list[Any]) -> None:
        """Fills in who got which tokens, and who is done."""
        for output in outputs:
            request = int(output.request_id)
            step.tokens[request] = list(output.outputs[0].token_ids)
            if output.finished:
                step.finished.append(request)
                self._ids.pop(self._names.pop(request))

    def _check_progress(self, has_moved: bool) -> None:
        self._num_empty_steps = 0 if has_moved else self._num_empty_steps + 1
        if self._num_empty_steps > MOST_EMPTY_STEPS and self.has_work():
            raise EngineError(f"vLLM is stuck: {MOST_EMPTY_STEPS} steps without a token, and requests are waiting")

    def follow(self, now: Callable[[], float], next_arrival: Callable[[], float]) -> None:
        """Needs no clock: it tells how long its steps last."""

    def abort(self, requests: list[int]) -> None:
        """Takes requests out that are still in it."""
        names = [self._names.pop(request) for request in requests]
        self._engine.abort_request(names, internal=True)
        for name in names:
            del self._ids[name]

    def count_blocks(self) -> tuple[int, int]:
        """Counts, block by block, those that requests hold and those that are free."""
        manager = self._scheduler.kv_cache_manager
        held = {
            block.block_id
            for group in manager.coordinator.single_type_managers
            for blocks in group.req_to_blocks.values()
            for block in blocks
        }
        pool = manager.block_pool
        num_free = sum(block.ref_cnt == 0 and block.block_id != pool.null_block.block_id for block in pool.blocks)
        return len(held - {pool.null_block.block_id}), num_free

    def shut_down(self) -> None:
        """Ends it and gives its memory back."""
        with contextlib.suppress(Exception):  # one that has crashed may fail at this too
            self._core.model_executor.shutdown()
            self._scheduler.shutdown()
        del self._engine, self._core, self._scheduler, self._recorder
        gc.unfreeze()  # vLLM freezes what it started with, and frozen garbage would never go
        gc.collect()
        _empty_device_cache()


def load_vllm(version: str = "any") -> Any:
    """Imports vLLM, quietly and for use in this process.

    Raises:
        EngineError: it is not installed here, or is another version.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    logging.getLogger("torch._library.triton").setLevel(logging.ERROR)  # it warns of a Triton that a CPU has no use for
    try:
        import vllm
    except ImportError as error:
        raise EngineError(
            f"kind: vllm needs vLLM in the interpreter that runs this ({error}); `make live` makes one, see docs/live.md"
        ) from error
    logging.getLogger("vllm").setLevel(logging.ERROR)
    _give_llvm_a_dict()
    if version != "any" and not f"{vllm.__version__}.".startswith(f"{version}."):
        raise EngineError(
            f"required_version: {version} is asked for, and vLLM {vllm.__version__} is installed; install the one, or set "
            "required_version to the other, or to any: what we look at inside of it may have moved"
        )
    return vllm


def _instant() -> dict[str, float]:
    """Returns the present by the wall clock (t) and by this thread's CPU seconds (c)."""
    return {"t": time.perf_counter(), "c": time.thread_time()}


def _memory_of(worker: Any) -> dict[str, int]:
    """Returns the bytes that a worker's device holds: counted where we can, vLLM's own figures where it has any (GPUs)."""
    runner = worker.model_runner
    caches = [cache for cache in runner.kv_caches if hasattr(cache, "untyped_storage")]
    storages = {cache.untyped_storage().data_ptr(): cache.untyped_storage().nbytes() for cache in caches}
    found = {
        "weights": sum(one.numel() * one.element_size() for one in runner.model.parameters()),
        "kv_cache": sum(storages.values()),
        "activations": getattr(worker, "peak_activation_memory", None),
        "graphs": getattr(worker, "cudagraph_memory_estimate", None),
    }
    return {name: int(num_bytes) for name, num_bytes in found.items() if num_bytes}


def _max_graph_tokens(config: Any) -> int:
    """Returns the tokens of the largest CUDA graph that vLLM captured."""
    mode = getattr(config, "cudagraph_mode", None)
    if mode is None or mode.name == "NONE":
        return 0
    return int(getattr(config, "max_cudagraph_capture_size", None) or 0)


def _give_llvm_a_dict() -> None:
    """Lets vLLM look through numba's LLVM library without harm.

    vLLM 0.32.0 looks at `vars()` of every attribute of every module (`_rebind_kernels`, on a CPU); the library takes any name
    for one of its functions, `__dict__` too, and what it gives for that is no mapping.
    """
    from llvmlite.binding import ffi

    ffi.lib._fntab["__dict__"] = {}


@contextlib.contextmanager
def one_line(what: str) -> Iterator[None]:
    """Turns whatever vLLM or torch raise into one line that says what it did and why."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except EngineError:
        raise
    except (Exception, SystemExit) as error:
        raise EngineError(f"vLLM {what}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"[:400] if text else type(error).__name__


def _check_arguments(arguments: Mapping[str, Any], known: list[str]) -> None:
    for name in arguments:
        if name not in known:
            raise EngineError(f"engine_args.{name}: this vLLM has no such argument{did_you_mean(name, known)}")


@contextlib.contextmanager
def _model_folder(arguments: Mapping[str, Any], model_config: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yields the arguments; without real weights, with a folder that holds the model's config alone."""
    if model_config is None:
        yield dict(arguments)
        return
    import json

    with tempfile.TemporaryDirectory(prefix="daybreak-model-") as folder:
        Path(folder, "config.json").write_text(json.dumps(model_config), encoding="utf-8")
        yield {"model": folder, "load_format": "dummy", "skip_tokenizer_init": True} | dict(arguments)


def _device_barrier() -> Callable[[], None]:
    """Returns what waits until the device is idle."""
    import torch

    return torch.cuda.synchronize if torch.cuda.is_available() else lambda: None


def _empty_device_cache() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()
