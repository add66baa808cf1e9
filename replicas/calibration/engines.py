"""Engines that `kind: calibrate` can measure: what such an engine has to do, and the table of those that there are."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

from replicas.calibration.fitted import NOT_STATED, Fitted
from replicas.calibration.shapes import Shape
from replicas.catalog import Gpu, Model
from sim.params import Params


class StepTimes(NamedTuple):
    """How long one step took, part by part, in seconds; NaN = not measured."""

    device_s: float
    schedule_s: float = float("nan")
    update_s: float = float("nan")
    front_end_s: float = float("nan")


class Limits(NamedTuple):
    """What an engine can be asked to do in one step."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    num_kv_tokens: int  # that fit into its cache
    max_graph_tokens: int = 0  # tokens of its largest CUDA graph; 0 = none are used


class MeasuredEngine(Params):
    """An engine under measurement; its fields are what a config says of it."""

    def take(self, model: Model, gpu: Gpu) -> None:
        """Learns what is to be measured, before anything else."""

    def end(self) -> None:
        """Is told that nothing more will be measured."""

    @abstractmethod
    def limits(self) -> Limits:
        """Returns what it can do; starts it if need be."""

    @abstractmethod
    def measure(self, shape: Shape) -> StepTimes:
        """Runs one step of this shape and returns how long it took. What has to be in its cache is put there before."""

    @property
    def version(self) -> str | None:
        """The engine's version, if it says so."""
        return None

    @property
    def fitted(self) -> Fitted:
        """What else is known of the engine, besides model, dtype of the weights and tensor_parallel_size."""
        return NOT_STATED

    @property
    def kv_cache(self) -> tuple[int, int] | None:
        """(num_gpu_blocks, block_size) that the engine made for itself, if it says so."""
        return None

    @property
    def memory(self) -> Mapping[str, int]:
        """Bytes on one device, as far as it says: weights, kv_cache, activations, graphs."""
        return {}
