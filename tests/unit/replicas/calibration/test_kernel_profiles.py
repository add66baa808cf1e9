"""Kernel tables of others: put together to steps, and to shares of a GPU's peaks; what is missing is said."""

from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from experiments import run
from replicas.calibration.aiconfigurator import KernelError, LeftOut, read_efficiencies
from replicas.calibration.file import read
from replicas.calibration.fit import fit_kernels, predicted_s
from replicas.calibration.llmservingsim import (
    IN_A_DENSE_LAYER,
    IN_EACH_LAYER,
    ONCE,
    ProfileError,
    read_profile,
    shapes_served,
    steps_of,
)
from replicas.calibration.mixture import mixture_of
from replicas.calibration.shapes import Shape
from replicas.calibration.steps import COLUMNS
from replicas.catalog import gpu, model
from replicas.links import Links, links_of
from tests.commands import ROOT
from tests.engines import truth
from tests.shared import shared

MODEL = model("llama-3.1-8b")
MIXTRAL = model("mixtral-8x7b")
LLMSERVINGSIM = "data/measurements/llmservingsim"
SIZES = [16 * 2**power for power in range(11)]


def layer_us(chunk: int, cached: int, decodes: int, context: float) -> float:
    """A layer's attention: each KV token 2 ns, four times as much for decodes in a step with a prefill, each pair 0.1 ns."""
    decoded = decodes * context
    return 5 + 2e-3 * (decoded * (4 if chunk else 1) + cached + chunk) + 1e-4 * chunk * (cached + chunk / 2)


def write_profile(folder: Path, skew: bool = False) -> Path:
    """A profile whose kernels follow simple laws.

    Dense 10 us, or 50 ns a token where that is longer; head 1 us a request; experts 5 us, 6 us for each that is hit and 0.1 us
    a token; and 10 ns for each token that the longest context is above the mean, in units of a third of a us.
    """
    own = folder / "bf16" / "tp1"
    own.mkdir(parents=True)
    tokens = [1, *range(8, 2049, 8)]
    layers = [*IN_EACH_LAYER, *IN_A_DENSE_LAYER, *ONCE]
    pd.DataFrame(
        [(layer, n, max(10.0, 0.05 * n)) for layer, n in product(layers, tokens)], columns=["layer", "tokens", "time_us"]
    ).to_csv(own / "dense.csv", index=False)
    pd.DataFrame(
        [(layer, n, 0.5 * n) for layer, n in product(("lm_head", "sampler"), (1, 128))],
        columns=["layer", "sequences", "time_us"],
    ).to_csv(own / "per_sequence.csv", index=False)
    pd.DataFrame(
        [(n, hit, 5 + 6 * hit + 0.1 * n) for n, hit in product((1, 4, 16, 2048), (2, 4, 8)) if hit <= 2 * n],
        columns=["tokens", "activated_experts", "time_us"],
    ).to_csv(own / "moe.csv", index=False)
    chunks, batches = [0, *SIZES[:8]], [0, *(2**power for power in range(8))]
    rows = [
        (c, k, n, kv, layer_us(c, k, n, kv))
        for c, k, n, kv in product(chunks, [0, *SIZES], batches, [0, *SIZES])
        if (c or n) and (c or not k) and (bool(n) == bool(kv))
    ]
    names = ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"]
    pd.DataFrame(rows, columns=names).to_csv(own / "attention.csv", index=False)
    mean = 1024 + (4096 - 1024) / 8  # an eighth of them is long
    waits = [
        (c, 0, n, n // 8, 4096, mean, 3 * layer_us(c, 0, n, mean), 3 * (layer_us(c, 0, n, mean) + 0.01 * (4096 - mean)))
        for c, n in product(chunks, batches[4:])
    ]
    names = ["pc", "kp", "n", "nb", "kv_big", "kv_mean", "t_mean_us", "t_skew_us"]
    pd.DataFrame(waits, columns=names).to_csv(own / "skew.csv", index=False)
    (folder / "bf16" / "meta.yaml").write_text(yaml.safe_dump({"skew_fit": {"enabled": skew}}))
    return own


def test_a_step_is_the_sum_of_its_kernels(tmp_path: Path) -> None:
    """By hand: 8 kernels a layer (two norms) of 10 us, attention of 8 x 1,024 KV tokens, 2 kernels once, 8 rows of the head."""
    profile = read_profile(write_profile(tmp_path), MODEL)
    expected_us = 32 * (8 * 10 + 5 + 2e-3 * 8 * 1024) + 2 * 10 + 8
    assert profile.step_s(Shape(8, 1024), 0) * 1e6 == pytest.approx(expected_us, rel=1e-9)
    chunk_us = 32 * (8 * 0.05 * 512 + layer_us(512, 0, 0, 0)) + 2 * 0.05 * 512 + 1
    assert profile.step_s(Shape(chunk=512), 0) * 1e6 == pytest.approx(chunk_us, rel=1e-9)


def test_attention_between_two_sizes_is_on_the_line_between(tmp_path: Path) -> None:
    profile = read_profile(write_profile(tmp_path), MODEL)
    low, high = (profile.step_s(Shape(8, context), 0) for context in (1024, 2048))
    assert profile.step_s(Shape(8, 1536), 0) == pytest.approx((low + high) / 2, rel=1e-9)


@pytest.mark.parametrize(("max_graph_tokens", "computed"), [(0, 264), (512, 272)])
def test_tokens_are_padded_to_the_next_size_that_was_measured_or_captured(
    max_graph_tokens: int, computed: int, tmp_path: Path
) -> None:
    """257 tokens: dense kernels work in tiles, here measured every 8; there is a CUDA graph of 272."""
    profile = read_profile(write_profile(tmp_path), MODEL)
    more_s = profile.step_s(Shape(chunk=257), max_graph_tokens) - profile.step_s(Shape(chunk=256), 0)
    attention_s = 32e-6 * (layer_us(257, 0, 0, 0) - layer_us(256, 0, 0, 0))
    # between 256 and 512 attention, whose pairs grow with the square, is on the line between
    assert more_s == pytest.approx((32 * 8 + 2) * (computed - 256) * 0.05e-6 + attention_s, rel=0.01)


def test_a_batch_waits_for_its_longest_context_where_that_was_profiled(tmp_path: Path) -> None:
    """10 ns a token and layer; nothing where meta.yaml says that it was not profiled, or for one decode alone."""
    with_skew = read_profile(write_profile(tmp_path / "a", skew=True), MODEL)
    without = read_profile(write_profile(tmp_path / "b"), MODEL)
    for shape in (Shape(16, 1024), Shape(100, 1024), Shape(16, 1024, 64), Shape(3, 1024, 300)):
        assert with_skew.step_s(shape, 0, 4096) - with_skew.step_s(shape, 0) == pytest.approx(32 * 3072 * 10e-9, rel=1e-6)
        assert without.step_s(shape, 0, 4096) == without.step_s(shape, 0)
    assert with_skew.step_s(Shape(1, 1024), 0, 4096) == with_skew.step_s(Shape(1, 1024), 0)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_rank_works_its_part_of_the_experts_for_the_tokens_of_all(num_ranks: int, tmp_path: Path) -> None:
    """By hand: eight tokens on each rank, each of which visits two of eight experts; no other MLP, so five kernels a layer.

    Visits to experts elsewhere move 2 x (5 x 14336 + 2 x 4096) bytes, as fast as the norm of 2,048 tokens, 102.4 us, moves
    8 x 4096 of each.
    """
    profile = read_profile(write_profile(tmp_path), MIXTRAL)
    hit = 8 / num_ranks * (1 - (1 - 2 / 8) ** (8 * num_ranks))
    elsewhere = 8 * num_ranks * 2 * (1 - 1 / num_ranks) * 2 * (5 * 14336 + 2 * 4096) / (8 * 4096 * 2048 / 102.4)
    expected_us = 32 * (5 * 10 + layer_us(0, 0, 8, 1024) + 5 + 6 * hit + 0.1 * 8 + elsewhere) + 2 * 10 + 8
    assert profile.step_s(Shape(8, 1024), 0, 0, num_ranks) * 1e6 == pytest.approx(expected_us, rel=1e-9)


def test_messages_are_those_of_rings(tmp_path: Path) -> None:
    """Two GPUs: an all-reduce is two messages of half the hidden states, an all-gather and a reduce-scatter are one each."""
    h100 = gpu("h100-sxm")
    hidden_s = 4096 * 2 / (h100.link_bytes_per_s * 0.5)
    two = links_of(MODEL, h100, 2, 1, 3e-6, 0.5)
    assert two.step_s(10) == pytest.approx(2 * 32 * 2 * (3e-6 + 10 * hidden_s / 2))
    ranks = links_of(MIXTRAL, h100, 1, 2, 3e-6, 0.5)
    assert ranks.step_s(10) == pytest.approx(2 * 32 * (3e-6 + 10 * hidden_s))
    assert links_of(MODEL, h100, 1, 1, 3e-6, 0.5) == Links()
    profile, shape = read_profile(write_profile(tmp_path), MIXTRAL), Shape(10, 1024)
    (step,) = steps_of(profile, [shape], 0, 0, ranks)["device_s"]
    assert step - profile.step_s(shape, 0, 0, 2) == pytest.approx(ranks.step_s(10))


def test_the_laws_of_the_kernels_are_found(tmp_path: Path) -> None:
    """Not all of these laws are of the form: dense kernels bend at 200 tokens and attention does not, where the form has one
    bend for all of a step, which hides some of the KV, and it counts the KV of the prompt among that of the decodes. Hence the
    tolerances.
    """
    profile = read_profile(write_profile(tmp_path), MODEL)
    steps = steps_of(profile, shapes_served(800, 600, 128, 2048, 300_000), 256)
    found = fit_kernels(steps, 256)
    time = found.device_time
    assert found.residuals.p50 < 0.03
    assert time.s_per_token == pytest.approx((32 * 8 + 2) * 0.05e-6, rel=0.05)
    assert time.s_per_kv_token + time.s_per_attended_token == pytest.approx(32 * 2e-9, rel=0.1)
    assert time.s_per_mixed_kv_token == pytest.approx(3 * 32 * 2e-9, rel=0.2)


def test_known_coefficients_are_found() -> None:
    shapes = shapes_served(800, 600, 128, 2048, 300_000)
    rows = [(s.num_requests, s.num_tokens, s.attended_tokens, s.kv_tokens) for s in shapes]
    steps = pd.DataFrame(rows, columns=["num_requests", "num_tokens", "attended_tokens", "kv_tokens"]).reindex(
        columns=[*COLUMNS]
    )
    known = truth(serial_share=0.3, fixed_s=2e-3, s_per_mixed_kv_token=1e-7)
    found = fit_kernels(steps.assign(device_s=predicted_s(steps, known, 256)), 256)
    # the mixed term is looked for to a hundredth of the most it could be
    assert found.device_time.s_per_mixed_kv_token == pytest.approx(1e-7, rel=0.03)
    assert found.device_time.s_per_token == pytest.approx(known.s_per_token, rel=0.03)
    assert found.residuals.p99 < 0.01


def test_what_is_given_is_not_fitted() -> None:
    """Links and what is between kernels come out as they went in, and the rest as without them."""
    shapes, links, experts = shapes_served(800, 600, 128, 2048, 300_000), Links(2, 1e-3, 3e-6), mixture_of(MIXTRAL, 2)
    rows = [(s.num_requests, s.num_tokens, s.attended_tokens, s.kv_tokens) for s in shapes]
    steps = pd.DataFrame(rows, columns=["num_requests", "num_tokens", "attended_tokens", "kv_tokens"]).reindex(
        columns=[*COLUMNS]
    )
    known = truth(serial_share=0.3, fixed_s=2e-3)
    plain = steps.assign(device_s=predicted_s(steps, known, 256, experts))
    given = {"link_s": 1e-3, "link_s_per_token": 3e-6}
    linked = steps.assign(device_s=predicted_s(steps, known.model_copy(update=given), 256, experts))
    found, alone = fit_kernels(linked, 256, experts, links, between_s=5e-4), fit_kernels(plain, 256, experts)
    assert found.device_time.model_dump(include=set(given)) == given
    assert found.device_time.fixed_s == pytest.approx(alone.device_time.fixed_s + 5e-4, rel=1e-6)
    assert found.device_time.s_per_token == pytest.approx(alone.device_time.s_per_token, rel=1e-6)
    assert alone.residuals.p99 < 0.01


def test_shapes_stay_within_the_engines_limits() -> None:
    shapes = shapes_served(800, 600, 64, 512, 20_000)
    assert max(shape.num_requests for shape in shapes) <= 65
    assert max(shape.num_tokens for shape in shapes) == 512
    assert max(shape.kv_tokens for shape in shapes) <= 20_000
    assert len(set(shapes)) == len(shapes)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    own = write_profile(tmp_path)
    with pytest.raises(ProfileError, match="1 layers of mixtral-8x7b have no experts; all or none may"):
        read_profile(own, MIXTRAL.model_copy(update={"moe_layers": 31}))
    dense = pd.read_csv(own / "dense.csv")
    dense[dense["layer"] != "o_proj"].to_csv(own / "dense.csv", index=False)
    with pytest.raises(ProfileError, match=r"dense\.csv: no layer o_proj; needed are layernorm"):
        read_profile(own, MODEL)
    with pytest.raises(ProfileError, match=r"dense\.csv.*No such file"):
        read_profile(tmp_path / "nowhere", MODEL)
    (own / "moe.csv").unlink()
    dense.to_csv(own / "dense.csv", index=False)
    with pytest.raises(ProfileError, match=r"moe\.csv.*No such file"):
        read_profile(own, MIXTRAL)


def write_tables(folder: Path, version: str, flops: float, weights: float, kv: float) -> None:
    """aiconfigurator's tables of kernels that reach these shares of an H100's peaks."""
    h100 = gpu("h100-sxm")
    gemm, attention = folder / "gemm" / "vllm" / version, folder / "attention" / "vllm" / version
    gemm.mkdir(parents=True)
    attention.mkdir(parents=True)
    rows = [
        ("bfloat16", m, 4096, 4096, 2e3 * 4096**2 * max(1 / h100.bytes_per_s / weights, m / h100.bf16_flops_per_s / flops))
        for m in (1, 8, 64, 512, 2048)
    ]
    rows += [("fp8", 1, 4096, 4096, 1e-9)]
    pd.DataFrame(rows, columns=["gemm_dtype", "m", "n", "k", "latency"]).to_parquet(gemm / "gemm_perf.parquet")
    decodes = [
        (batch, 32, 8, 128, "bfloat16", context - 1, 1e3 * batch * context * 4096 / h100.bytes_per_s / share)
        for batch, (context, share) in product((8, 32), ((512, 1.5), (1024, kv), (4096, kv)))
    ]
    names = ["batch_size", "num_heads", "num_key_value_heads", "head_dim", "kv_cache_dtype", "step", "latency"]
    pd.DataFrame(decodes, columns=names).to_parquet(attention / "generation_attention_perf.parquet")


def test_shares_of_the_peaks_are_those_of_the_newest_tables(tmp_path: Path) -> None:
    """Kernels that seem faster than the memory, because theirs was in the cache (here contexts of 512), do not count."""
    write_tables(tmp_path, "0.9.0", 0.5, 0.5, 0.5)
    write_tables(tmp_path, "0.14.0", 0.8, 0.7, 0.6)
    assert read_efficiencies(tmp_path, gpu("h100-sxm")) == pytest.approx((0.8, 0.7, 0.6))


def test_attention_that_is_not_used_is_counted(tmp_path: Path) -> None:
    """An RTX PRO 6000's profile has 10,721 such rows of 19,364."""
    folder = write_profile(tmp_path)
    header = (folder / "attention.csv").read_text().splitlines()[0].split(",")
    between = {"prefill_chunk": 100, "kv_prefill": 0, "n_decode": 0, "kv_decode": 0, "time_us": 1.0}
    with (folder / "attention.csv").open("a") as table:
        table.write(",".join(str(between.get(name, "")) for name in header) + "\n")
    profile = read_profile(folder, MODEL)
    assert profile.left_out == {"attention.csv: sizes between the powers of two": 1}


def test_kernels_that_are_not_used_are_counted(tmp_path: Path) -> None:
    write_tables(tmp_path, "0.14.0", 0.8, 0.7, 0.6)
    left_out = LeftOut()
    read_efficiencies(tmp_path, gpu("h100-sxm"), left_out)
    assert left_out == {"GEMM: not in bfloat16": 1, "faster than the peak: what they read was in a cache": 2}


def test_a_missing_table_is_said(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"no gemm/vllm/VERSION/gemm_perf\.parquet"):
        read_efficiencies(tmp_path, gpu("h100-sxm"))
    write_tables(tmp_path, "0.9.0", 0.5, 0.5, 0.5)
    path = tmp_path / "gemm" / "vllm" / "0.9.0" / "gemm_perf.parquet"
    pd.read_parquet(path).drop(columns="latency").to_parquet(path)
    with pytest.raises(KernelError, match=r"gemm_perf\.parquet: no column latency"):
        read_efficiencies(tmp_path, gpu("h100-sxm"))


@pytest.mark.parametrize(("system", "name"), [("h100_sxm", "h100-sxm"), ("a100_sxm", "a100-sxm"), ("l40s", "l40s")])
def test_the_shares_of_real_kernels_are_plausible(system: str, name: str) -> None:
    found = np.array(read_efficiencies(shared(f"data/measurements/aiconfigurator/data/{system}"), gpu(name)))
    assert ((found > 0.5) & (found < 0.9)).all()  # what vendors' libraries reach of dense peaks


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("rtx4090", "RTX4090/meta-llama/Llama-3.1-8B"),
        ("rtxpro6000", "RTXPRO6000/meta-llama/Llama-3.1-8B"),
        ("rtxpro6000_moe", "RTXPRO6000/Qwen/Qwen3-30B-A3B-Instruct-2507"),
    ],
)
def test_served_runs_follow_from_kernels(name: str, profile: str, tmp_path: Path) -> None:
    """The targets are 2 %, 1 % and 1 %. For the run with experts the links' bandwidth is fitted to its TPOT."""
    configs = ROOT / "configs" / "accuracy"
    kernels = shared(f"{LLMSERVINGSIM}/profiler/perf/{profile}/bf16/tp1")
    runs = shared(f"{LLMSERVINGSIM}/bench/examples")
    made = run(configs / f"calibrate_{name}_kernels.yaml", out=tmp_path, sets=[f"kernels.path={kernels}"], progress=False)
    shipped = run(configs / f"validate_{name}_served.yaml", out=tmp_path, sets=[f"recordings={runs}"], progress=False).folder
    validation = yaml.safe_load((shipped / "config.yaml").read_text())
    same = read(made.folder / "calibration.yaml").device_time, read(validation["calibration"]).device_time
    assert same[0].model_dump(exclude_none=True) == pytest.approx(
        same[1].model_dump(exclude_none=True), rel=1e-3
    )  # files have five digits
    table = pd.read_parquet(shipped / "errors.parquet").set_index(["metric", "statistic"])["error"].abs()
    assert table["ttft_s", "mean"] <= 0.02
    assert table["tpot_s", "mean"] <= 0.01
    assert table["e2e_s", "mean"] <= 0.01
