"""Reads kernel profiles in LLMServingSim's form: the time of every layer's kernels, put together to the time of a step."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray
from scipy.interpolate import RegularGridInterpolator

from replicas.calibration.shapes import Shape
from replicas.calibration.steps import COLUMNS
from replicas.catalog import Model
from replicas.step_time import padded_tokens

Floats = NDArray[np.float64]

IN_EACH_LAYER = {"layernorm": 2, "qkv_proj": 1, "rotary_emb": 1, "o_proj": 1, "gate_up_proj": 1, "act_fn": 1, "down_proj": 1}
"""Kernels of `dense.csv`, and how often a dense transformer layer runs each."""

ONCE = ("embedding", "final_layernorm")
FOR_EACH_REQUEST = ("lm_head", "sampler")

AXES = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
"""What `attention.csv` is measured over, every one in steps of 2 from 16 (requests from 1), and at 0."""

US = 1e-6


class ProfileError(ValueError):
    """A profile is missing or wrong; the message names the file."""


@dataclass(frozen=True)
class Profile:
    """The kernels of one model on one GPU: `dense.csv`, `per_sequence.csv` and `attention.csv`, times in us.

    What lies between two measured sizes is on the line between them. Attention of a prefill and decodes together, where it was
    not measured, is the sum of both.
    """

    folder: Path
    layers: int
    tokens: Floats
    dense_s: Floats  # of all layers, by tokens
    requests: Floats
    per_request_s: Floats  # head and sampler, by requests
    attention: Any  # seconds of all layers, over AXES
    skew: pd.DataFrame | None  # share of the way to the time of the longest context, by prefill chunk and decodes

    def step_s(self, shape: Shape, max_graph_tokens: int, longest_context: int = 0) -> float:
        """Returns the seconds of the kernels of one step, its tokens padded to CUDA graphs as the engine does.

        Args:
            shape: the step; its decodes' context is their mean.
            max_graph_tokens: tokens of the largest CUDA graph; 0 = none.
            longest_context: of the decodes, which makes the attention of a batch slower than the mean context says; 0 = all
                are alike.
        """
        tokens = padded_tokens(shape.num_tokens, max_graph_tokens)
        dense_s = np.interp(tokens, self.tokens, self.dense_s)
        head_s = np.interp(shape.num_requests, self.requests, self.per_request_s)
        context = shape.decode_context if shape.num_decodes else 0
        attention_s = self._attention_s(shape, context)
        if self.skew is not None and shape.num_decodes > 1 and longest_context > context:
            attention_s += self._skew_of(shape) * (self._attention_s(shape, longest_context) - attention_s)
        return float(dense_s + head_s + attention_s)

    def _attention_s(self, shape: Shape, context: int) -> float:
        return float(np.ravel(self.attention((shape.chunk, shape.cached, shape.num_decodes, context)))[0])

    def _skew_of(self, shape: Shape) -> float:
        """The measured share at the nearest smaller chunk and batch."""
        assert self.skew is not None
        row = max(0, int(np.searchsorted(self.skew.index, shape.chunk, side="right")) - 1)
        column = max(0, int(np.searchsorted(self.skew.columns, shape.num_decodes, side="right")) - 1)
        return float(self.skew.to_numpy(np.float64)[row, column])


def read_profile(folder: str | Path, model: Model) -> Profile:
    """Reads the profile of `model`, such as `perf/RTX4090/meta-llama/Llama-3.1-8B/bf16/tp1`.

    Raises:
        ProfileError: a file or a kernel is missing, or the model has experts, whose kernels are not put together.
    """
    folder = Path(folder)
    if model.num_experts:
        raise ProfileError(f"{folder}: {model.name} has experts; only dense models are put together from kernels")
    dense = _table(folder / "dense.csv", "tokens", (*IN_EACH_LAYER, *ONCE))
    head = _table(folder / "per_sequence.csv", "sequences", FOR_EACH_REQUEST)
    layer_us = sum((count * dense[name] for name, count in IN_EACH_LAYER.items()), 0.0 * dense[ONCE[0]])
    return Profile(
        folder=folder,
        layers=model.layers,
        tokens=dense.index.to_numpy(np.float64),
        dense_s=(model.layers * layer_us + dense[[*ONCE]].sum(axis=1)).to_numpy(np.float64) * US,
        requests=head.index.to_numpy(np.float64),
        per_request_s=head[[*FOR_EACH_REQUEST]].sum(axis=1).to_numpy(np.float64) * US,
        attention=_attention(folder / "attention.csv", model.layers),
        skew=_skew(folder),
    )


def steps_of(profile: Profile, shapes: list[Shape], max_graph_tokens: int, longest_context: int = 0) -> pd.DataFrame:
    """Returns the steps of these shapes, in the columns of recorded ones; only `device_s` is known of their times."""
    rows = [
        {
            "num_requests": shape.num_requests,
            "num_prefills": int(shape.chunk > 0),
            "num_tokens": shape.num_tokens,
            "attended_tokens": shape.attended_tokens,
            "kv_tokens": shape.kv_tokens,
            "device_s": profile.step_s(shape, max_graph_tokens, longest_context),
        }
        for shape in shapes
    ]
    return pd.DataFrame(rows).reindex(columns=[*COLUMNS])


def shapes_served(
    num_prompt_tokens: int, num_output_tokens: int, max_num_seqs: int, max_num_batched_tokens: int, num_kv_tokens: int
) -> list[Shape]:
    """Returns steps as they come when requests of these mean lengths are served: decodes of every batch, prompts among them.

    A form with seven coefficients is not equally right everywhere, so it is fitted where it is used.
    """
    batches = [n for n in (*range(1, 9), *range(12, 65, 4), *range(72, 129, 8), *range(144, 1025, 16)) if n <= max_num_seqs]
    contexts = [round(num_prompt_tokens + num_output_tokens * share) for share in (0.1, 0.3, 0.5, 0.7, 0.9)]
    shapes = [Shape(batch, context) for batch in batches for context in contexts]
    among = [0, *(batch for batch in batches if batch & (batch - 1) == 0)]
    chunks = [64 * 2**power for power in range(12)]
    for batch in among:
        most = max_num_batched_tokens - batch
        sizes = sorted({min(chunk, most) for chunk in chunks if chunk < 2 * most}) if most > 0 else []
        shapes += [Shape(batch, contexts[2] if batch else 0, chunk) for chunk in sizes]
    return [shape for shape in shapes if shape.kv_tokens <= num_kv_tokens]


def _table(path: Path, index: str, needed: tuple[str, ...]) -> pd.DataFrame:
    try:
        rows = pd.read_csv(path)
        table = rows.pivot(index=index, columns="layer", values="time_us")
    except (OSError, KeyError, ValueError) as error:
        raise ProfileError(f"{path}: {error}") from error
    missing = [name for name in needed if name not in table]
    if missing:
        raise ProfileError(f"{path}: no layer {missing[0]}; needed are {', '.join(needed)}")
    return table.interpolate(method="index")


def _skew(folder: Path) -> pd.DataFrame | None:
    """Medians of `skew.csv` by prefill chunk and decodes; None where meta.yaml, a folder up, says it was not profiled."""
    try:
        meta = yaml.safe_load((folder.parent / "meta.yaml").read_text(encoding="utf-8"))
        if not meta["skew_fit"]["enabled"]:
            return None
        rows = pd.read_csv(folder / "skew.csv")
        return rows.pivot_table(index="pc", columns="n", values="alpha", aggfunc="median").ffill(axis=1).clip(0.0, 1.0)
    except (OSError, KeyError, TypeError, yaml.YAMLError):
        return None


def _attention(path: Path, layers: int) -> Any:
    """Interpolates the measured attention of one layer, times `layers`, seconds."""
    try:
        rows = pd.read_csv(path)[[*AXES, "time_us"]]
    except (OSError, KeyError) as error:
        raise ProfileError(f"{path}: {error}") from error
    doubling = {0, *(2**power for power in range(24))}
    rows = rows[rows[[*AXES]].isin(doubling).all(axis=1)].groupby([*AXES]).mean().reset_index()
    axes = [np.unique(np.append(0, rows[name].to_numpy(np.float64))) for name in AXES]
    grid = np.full([len(axis) for axis in axes], np.nan)
    places = tuple(np.searchsorted(axis, rows[name]) for axis, name in zip(axes, AXES, strict=True))
    grid[places] = rows["time_us"].to_numpy(np.float64) * US * layers
    grid[0, 0, 0, 0] = 0.0
    grid[0] = grid[0, :1]  # what no prefill has cached
    grid[:, :, 0] = grid[:, :, 0, :1]  # the contexts of no decodes
    grid[:, :, 1:, 0] = grid[:, :, 1:, 1]  # decodes of nearly no context
    apart = grid[:, :, :1, :1] + grid[:1, :1]
    filled = np.where(np.isnan(grid), apart, grid)
    if np.isnan(filled).any():
        raise ProfileError(f"{path}: decodes alone or prefills alone are not measured at every size")
    return RegularGridInterpolator(axes, filled, bounds_error=False, fill_value=None)
