"""Reads kernel profiles in LLMServingSim's form: the time of every layer's kernels, put together to the time of a step."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray
from scipy.interpolate import RegularGridInterpolator

from replicas.calibration.aiconfigurator import LeftOut, kept
from replicas.calibration.shapes import Shape
from replicas.calibration.steps import COLUMNS
from replicas.catalog import Model
from replicas.links import NO_LINKS, Links
from replicas.memory import BF16_BYTES
from replicas.step_time import padded_tokens

Floats = NDArray[np.float64]

IN_EACH_LAYER = {"layernorm": 2, "qkv_proj": 1, "rotary_emb": 1, "o_proj": 1}
"""Kernels of `dense.csv` that every transformer layer runs, and how often."""

IN_A_DENSE_LAYER = {"gate_up_proj": 1, "act_fn": 1, "down_proj": 1}
"""Its MLP, where it has no experts; `moe.csv` has those."""

IN_SOME_MODELS = {"qk_norm": 1}
"""Qwen3 norms its queries and keys."""

ONCE = ("embedding", "final_layernorm")
FOR_EACH_REQUEST = ("lm_head", "sampler")

AXES = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
"""What `attention.csv` is measured over, every one in steps of 2 from 16 (requests from 1), and at 0."""

FEW = 1 / 8
"""Share of a batch up to which long contexts are stragglers: where more are long, the others do not just wait for them."""

FAR = 1024
"""Tokens of the long ones at least, for the wait to stand out from the noise."""

US = 1e-6


def why(error: Exception) -> str:
    """Returns in a line what kept a file from being read, without its path again."""
    return str(error.strerror) if isinstance(error, OSError) else " ".join(str(error).split())


class ProfileError(ValueError):
    """A profile is missing or wrong; the message names the file."""


@dataclass(frozen=True)
class Stragglers:
    """What a batch waits for the longest of its contexts, by prompt tokens in the step and by decodes.

    Where a batch is large, or has prompt tokens in it, attention does not split a context over the GPU: one block reads all of
    it, and the step waits for the block with the longest.
    """

    chunks: Floats
    decodes: Floats
    s_per_token: Floats  # (chunks, decodes) of all layers, for each token that the longest is above the mean

    def of(self, shape: Shape) -> float:
        """At the nearest smaller measured chunk, 0 only where there is none, and the nearest larger measured batch."""
        row = int(np.searchsorted(self.chunks, shape.chunk, side="right")) - 1
        row = max(row, int(shape.chunk > 0))
        column = min(int(np.searchsorted(self.decodes, shape.num_decodes)), len(self.decodes) - 1)
        return float(self.s_per_token[row, column])


@dataclass(frozen=True)
class Profile:
    """The kernels of one model on one GPU: `dense.csv`, `per_sequence.csv`, `attention.csv`, and `moe.csv`; times in us.

    Attention between two measured sizes is on the line between them; that of a prefill and decodes together, where it was not
    measured, is the sum of both. Dense kernels work in tiles of tokens, so their times rise in steps, not on a line: they are
    taken from the nearest larger size.
    """

    folder: Path
    model: Model
    tokens: Floats
    dense_s: Floats  # of all layers, by tokens
    requests: Floats
    per_request_s: Floats  # head and sampler, by requests
    attention: Any  # seconds of all layers, over AXES
    stragglers: Stragglers | None  # None: not profiled
    experts: Any  # seconds of all layers, over tokens and experts that they hit; None: a dense model
    cached_bytes_per_s: float  # what its norms reach, whose data are in the GPU's L2 cache
    left_out: LeftOut = field(default_factory=LeftOut)  # rows of its tables that are not used

    def step_s(self, shape: Shape, max_graph_tokens: int, longest_context: int = 0, num_ranks: int = 1) -> float:
        """Returns the seconds of the kernels of one step, its tokens padded to CUDA graphs as the engine does.

        Args:
            shape: the step; its decodes' context is their mean.
            max_graph_tokens: tokens of the largest CUDA graph; 0 = none.
            longest_context: of the decodes, whom the others may have to wait for; 0 = all are alike.
            num_ranks: engines that share the experts and step together, each with a step of this shape.
        """
        tokens = padded_tokens(shape.num_tokens, max_graph_tokens)
        place = min(int(np.searchsorted(self.tokens, tokens)), len(self.tokens) - 1)
        head_s = np.interp(shape.num_requests, self.requests, self.per_request_s)
        seconds = float(self.dense_s[place] + head_s) + self._attention_s(
            shape, shape.decode_context if shape.num_decodes else 0
        )
        if self.stragglers is not None and shape.num_decodes > 1:
            seconds += self.stragglers.of(shape) * max(0, longest_context - shape.decode_context)
        if self.experts is not None:
            seconds += self.experts_s(tokens * num_ranks, num_ranks)
        return seconds

    def _attention_s(self, shape: Shape, context: int) -> float:
        return float(np.ravel(self.attention((shape.chunk, shape.cached, shape.num_decodes, context)))[0])

    def experts_s(self, tokens: int, num_ranks: int) -> float:
        """Returns the seconds of one rank's even part of the experts, which `tokens` of all ranks choose evenly.

        A rank has 1 / num_ranks of the experts and so does that part of each token's visits, as a profile of all experts does
        with that part of the tokens. Visits to experts elsewhere are memory traffic too: zeros are written for both of their
        products, the activation reads and writes them, and the sum over a token's experts reads them.
        Source: vLLM 0.30.0, `TritonExperts.apply` with an expert map.
        """
        own = self.model.num_experts / num_ranks
        hit = own * (1 - (1 - self.model.expert_hit_share) ** tokens)
        elsewhere = tokens * self.model.experts_per_token * (1 - 1 / num_ranks) * self.model.moe_layers
        row_bytes = BF16_BYTES * (5 * self.model.moe_intermediate + 2 * self.model.hidden)
        return float(np.ravel(self.experts((tokens / num_ranks, hit)))[0]) + elsewhere * row_bytes / self.cached_bytes_per_s


def read_profile(folder: str | Path, model: Model) -> Profile:
    """Reads the profile of `model`, such as `perf/RTX4090/meta-llama/Llama-3.1-8B/bf16/tp1`.

    Raises:
        ProfileError: a file or a kernel is missing, or only some of the model's layers have experts.
    """
    folder = Path(folder)
    if model.num_experts and model.moe_layers < model.layers:
        raise ProfileError(
            f"{folder}: {model.layers - model.moe_layers} layers of {model.name} have no experts; all or none may"
        )
    kernels = IN_EACH_LAYER if model.num_experts else IN_EACH_LAYER | IN_A_DENSE_LAYER
    dense = _table(folder / "dense.csv", "tokens", (*kernels, *ONCE))
    head = _table(folder / "per_sequence.csv", "sequences", FOR_EACH_REQUEST)
    kernels = kernels | {name: count for name, count in IN_SOME_MODELS.items() if name in dense}
    layer_us = sum((count * dense[name] for name, count in kernels.items()), 0.0 * dense[ONCE[0]])
    left_out = LeftOut()
    attention = _attention(folder / "attention.csv", model.layers, left_out)
    return Profile(
        folder=folder,
        model=model,
        tokens=dense.index.to_numpy(np.float64),
        dense_s=(model.layers * layer_us + dense[[*ONCE]].sum(axis=1)).to_numpy(np.float64) * US,
        requests=head.index.to_numpy(np.float64),
        per_request_s=head[[*FOR_EACH_REQUEST]].sum(axis=1).to_numpy(np.float64) * US,
        attention=attention,
        stragglers=_stragglers(folder, attention, left_out),
        experts=_experts(folder / "moe.csv", model) if model.num_experts else None,
        left_out=left_out,
        cached_bytes_per_s=float(4 * BF16_BYTES * model.hidden * dense.index[-1] / (dense["layernorm"].iloc[-1] * US)),
    )


def steps_of(
    profile: Profile, shapes: list[Shape], max_graph_tokens: int, longest_context: int = 0, links: Links = NO_LINKS
) -> pd.DataFrame:
    """Returns the steps of these shapes, in the columns of recorded ones; only `device_s` is known of their times."""
    rows = [
        {
            "num_requests": shape.num_requests,
            "num_prefills": int(shape.chunk > 0),
            "num_tokens": shape.num_tokens,
            "attended_tokens": shape.attended_tokens,
            "kv_tokens": shape.kv_tokens,
            "device_s": profile.step_s(shape, max_graph_tokens, longest_context, links.num_ranks)
            + links.step_s(padded_tokens(shape.num_tokens, max_graph_tokens)),
        }
        for shape in shapes
    ]
    return pd.DataFrame(rows).reindex(columns=[*COLUMNS])


def shapes_served(
    num_prompt_tokens: int, num_output_tokens: int, max_num_seqs: int, max_num_batched_tokens: int, num_kv_tokens: int
) -> list[Shape]:
    """Returns steps as they come when requests of these mean lengths are served: decodes of every batch, prompts among them.

    A form with eight coefficients is not equally right everywhere, so it is fitted where it is used. Prompts are of lengths
    around the mean, up to a whole step's: at powers of two kernels are at their best, which few prompts are. A batch is as
    often small as large, as where it grows and shrinks again.
    """
    mean = num_prompt_tokens + num_output_tokens / 2
    contexts = [round(mean * share) for share in (0.6, 0.8, 1.0, 1.25, 1.5)]
    largest = max(1, min(max_num_seqs, num_kv_tokens // (contexts[0] + 1)))
    batches = sorted({1, 2, *(round(largest * k / 32) for k in range(1, 33))} & {*range(1, largest + 1)})
    shapes = [Shape(batch, min(context, num_kv_tokens // batch - 1)) for batch in batches for context in contexts]
    for batch in (0, *batches[::2]):
        budget = max_num_batched_tokens - batch
        sizes = {min(round(num_prompt_tokens * share), budget) for share in (0.25, 0.4, 0.55, 0.7, 0.85, 1.0, 1.2, 1.5, 1.9)}
        shapes += [Shape(batch, contexts[2] if batch else 0, chunk) for chunk in sorted({*sizes, budget}) if chunk > 0]
    return [shape for shape in dict.fromkeys(shapes) if shape.kv_tokens <= num_kv_tokens]


def _table(path: Path, index: str, needed: tuple[str, ...]) -> pd.DataFrame:
    try:
        rows = pd.read_csv(path)
        table = rows.pivot(index=index, columns="layer", values="time_us")
    except (OSError, KeyError, ValueError) as error:
        raise ProfileError(f"{path}: {why(error)}") from error
    missing = [name for name in needed if name not in table]
    if missing:
        raise ProfileError(f"{path}: no layer {missing[0]}; needed are {', '.join(needed)}")
    return table.interpolate(method="index")


def _stragglers(folder: Path, attention: Any, left_out: LeftOut) -> Stragglers | None:
    """Medians of `skew.csv`; None where meta.yaml, a folder up, says that it was not profiled.

    Its times are in units of their own (sums over iterations), so what counts is how they compare with those of equal contexts.
    """
    try:
        meta = yaml.safe_load((folder.parent / "meta.yaml").read_text(encoding="utf-8"))
        if not meta["skew_fit"]["enabled"]:
            return None
        rows = pd.read_csv(folder / "skew.csv")
        is_of_stragglers = (rows["nb"] <= FEW * rows["n"]) & (rows["kv_big"] >= FAR)
        rows = kept(rows, is_of_stragglers, "skew.csv: many long contexts, or none that is long", left_out)
        equal_s = attention(rows[["pc", "kp", "n", "kv_mean"]].to_numpy(np.float64))
        waits_s = (rows["t_skew_us"] / rows["t_mean_us"] - 1) * equal_s / (rows["kv_big"] - rows["kv_mean"])
        table = rows.assign(s=waits_s).pivot_table(index="pc", columns="n", values="s", aggfunc="median")
    except (OSError, KeyError, TypeError, yaml.YAMLError):
        return None
    filled = table.ffill(axis=1).bfill(axis=1).clip(lower=0.0).to_numpy(np.float64)
    return Stragglers(table.index.to_numpy(np.float64), table.columns.to_numpy(np.float64), filled)


def _experts(path: Path, model: Model) -> Any:
    """Interpolates the measured experts of one layer, times all layers, seconds, over tokens and experts that they hit.

    A few tokens cannot hit many experts: there, the experts are read as for the fewest tokens that can.
    """
    try:
        table = pd.read_csv(path).pivot(index="tokens", columns="activated_experts", values="time_us").bfill(axis=0)
    except (OSError, KeyError, ValueError) as error:
        raise ProfileError(f"{path}: {why(error)}") from error
    axes = (table.index.to_numpy(np.float64), table.columns.to_numpy(np.float64))
    seconds = table.to_numpy(np.float64) * US * model.moe_layers
    return RegularGridInterpolator(axes, seconds, bounds_error=False, fill_value=None)


def _attention(path: Path, layers: int, left_out: LeftOut) -> Any:
    """Interpolates the measured attention of one layer, times `layers`, seconds."""
    try:
        rows = pd.read_csv(path)[[*AXES, "time_us"]]
    except (OSError, KeyError) as error:
        raise ProfileError(f"{path}: {why(error)}") from error
    doubling = {0, *(2**power for power in range(24))}
    is_doubling = rows[[*AXES]].isin(doubling).all(axis=1)
    rows = kept(rows, is_doubling, "attention.csv: sizes between the powers of two", left_out)
    rows = rows.groupby([*AXES]).mean().reset_index()
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
