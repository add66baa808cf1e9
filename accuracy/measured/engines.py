"""Which engine served a result, by the words of a report or an index."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from accuracy.measured.arguments import arguments_of
from accuracy.measured.names import DTYPES, gpu_of, model_of
from replicas import catalog


class Engine(NamedTuple):
    """An engine that served, in our words."""

    title: str  # its model as it was given, without the owner
    model: str  # of the catalogue, or of `own`; "" where it has none
    gpu: str
    size: int  # tensor parallel
    dtype: str
    arguments: dict[str, Any]
    own: dict[str, Any]  # its model and gpu, spelled out where the catalogue has none

    def fields(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Returns those fields of a served result that say what served."""
        return {
            "group": row["group"],
            "model": self.model,
            "gpu": self.gpu,
            "tensor_parallel_size": self.size,
            "quantization": DTYPES.get(self.dtype),
            "engine_version": str(row["engine_version"] or ""),
            "arguments": self.arguments,
            "own": self.own,
        }


def engine_of(row: Mapping[str, Any]) -> Engine:
    """Returns the engine that an index says served."""
    arguments = arguments_of(row["server_args"])
    own = {key: row[key] for key in ("model", "gpu") if isinstance(row.get(key), Mapping)}
    names = {key: found(own[key]).name for key, found in (("model", catalog.model), ("gpu", catalog.gpu)) if key in own}
    model, gpu = (names.get(key) or row[key] for key in ("model", "gpu"))
    return Engine(
        title=model.split("/")[-1],
        model=names.get("model") or model_of(model),
        gpu=names.get("gpu") or gpu_of(gpu),
        size=int(arguments.get("tensor_parallel_size") or row["tp"] or 1),
        dtype=str(row["dtype"]).lower(),
        arguments=arguments,
        own=own,
    )


def engine_problems(row: Mapping[str, Any], engine: Engine) -> dict[str, bool]:
    """Returns why an engine may not be simulated, and whether it is so."""
    return {
        f"engine {str(row['engine'])[:40]}, not vllm": row["engine"] != "vllm",
        f"model {str(row['model'])[:80]} is not in the catalogue": not engine.model,
        f"GPU {str(row['gpu'])[:80]} is not in the catalogue": not engine.gpu,
        f"dtype {str(row['dtype'])[:40]} is not known": engine.dtype.split("?")[0] not in DTYPES,
    }
