"""A GPU's calibration that carries kernel times: how they are read from tables, and a step that is put together from them."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from replicas.calibration.aiconfigurator import KernelError, LeftOut
from replicas.calibration.fit import predicted_s
from replicas.calibration.gpu import GpuCalibration, read_any, read_for, write_gpu
from replicas.calibration.kernel_tables import read_all_reduces, read_kernel_times
from replicas.calibration.kernel_times import AllReduceTimes, KernelTimes
from replicas.catalog import gpu, model
from replicas.step_time import step_time
from replicas.surrogate import Surrogate
from sim.records import BATCH, records
from tests.shared import shared
from tests.unit.replicas.calibration.test_calibrated import RANGE

H200, LARGE = gpu("h200-sxm"), model("llama-3.1-70b")
BLOCKS = LARGE.num_params - 2 * 128256 * 8192
"""Weights of the layers: all but embedding table and output head."""

TIMES: dict[str, Any] = {
    "source": "made up",
    "gemm": {
        "fp8": {"rows": [1, 64, 512], "s": [5e-6, 6e-6, 8e-6], "s_per_weight": [2e-13, 3e-13, 8e-13]},
        "bfloat16": {"rows": [1, 64], "s": [4e-6, 4e-6], "s_per_weight": [5e-13, 5e-13]},
    },
    "attention": {"fp8": {"decode_s": 1e-5, "kv_bytes_per_s": 3e12, "prompt_s": 3e-5, "flops_per_s": 5e14}},
    "all_reduce": {"message_bytes": [16384, 4 * 2**20], "num_gpus": [2, 4], "s": [[4e-6, 16e-6], [4e-6, 64e-6]]},
}


def a_calibration(**efficiencies: float) -> GpuCalibration:
    given = {"fixed_s": 1e-3, "bandwidth_efficiency": 0.5, **efficiencies}
    wide = {name: [1.0, 1e9] for name in RANGE}
    document = {"gpu": H200, "source": "made up", "efficiencies": given, "kernel_times": TIMES, "range": wide}
    return GpuCalibration.model_validate(document)


def a_step(new: int, cached: int, requests: int) -> Any:
    batch = records(BATCH, 1)[0]
    batch.num_tokens, batch.num_requests, batch.kv_tokens = requests * new, requests, requests * (cached + new)
    batch.attended_tokens = requests * new * (cached + new / 2)
    return batch


def engine_of(folder: Path, **efficiencies: float) -> Any:
    write_gpu(a_calibration(**efficiencies), folder / "gpu.yaml")
    options = {"quantization": "fp8", "kv_cache_dtype": "fp8", "tensor_parallel_size": 4, "enforce_eager": True}
    return Surrogate(calibration=str(folder / "gpu.yaml"), **options).engine(LARGE, H200)[0]  # type: ignore[arg-type]


def gemms_s(rows: int, constant_s: float, s_per_weight: float) -> float:
    """What all but attention takes of 70B on four GPUs, without all-reduces: GEMMs, the head, and activations at 2.4 TB/s."""
    head_s = 4e-6 + 5e-13 * 128256 * 8192 / 4
    norms, rotary, activation = 2 * 4 * 8192, 2 * (64 + 2 * 8) * 128 / 4, 3 * 28672 / 4
    return 4 * 80 * constant_s + s_per_weight * BLOCKS / 4 + head_s + 80 * rows * 2 * (norms + rotary + activation) / 2.4e12


def test_a_decode_is_the_sum_of_its_kernels(tmp_path: Path) -> None:
    """64 decodes of 1,000 tokens: measured with 64 rows, and 64 x 16 KiB go through each of 160 all-reduces."""
    reduced_s = 4e-6 + 60e-6 * (64 - 1) / (256 - 1)  # 64 times the bytes, on the line from one to 256 times
    kv_s = 80 * 1e-5 + 64 * 1000 * 80 * 2 * 2 * 128 / 3e12
    attended_s = 4 * 80 * 64 * 128 * 64 * 999.5 / (4 * 5e14)
    expected_s = gemms_s(64, 6e-6, 3e-13) + 160 * (reduced_s + 2e-6) + kv_s + attended_s + 1e-3
    engine = engine_of(tmp_path, all_reduce_s=2e-6)
    assert step_time(a_step(1, 999, 64), engine) == pytest.approx(expected_s, rel=1e-4)  # the file has five digits


def test_between_two_sizes_and_beyond_the_last_lies_a_line(tmp_path: Path) -> None:
    engine = engine_of(tmp_path)

    def seconds(tokens: int) -> float:
        """Of decodes on nothing, so that hardly any KV is read."""
        attended_s = 4 * 80 * 64 * 128 * tokens * 0.5 / (4 * 5e14)
        return step_time(a_step(1, 0, tokens), engine) - attended_s - tokens * 80 * 2 * 2 * 128 / 3e12

    few, many = seconds(64), seconds(512)
    assert seconds(288) == pytest.approx((few + many) / 2, rel=1e-9)
    assert seconds(960) == pytest.approx(many + (many - few), rel=1e-9)


def test_a_prompt_takes_its_attention_and_at_least_the_launches(tmp_path: Path) -> None:
    """512 tokens are more than 256 rows, so their GEMMs are scaled; 512 x 16 KiB are twice the largest message."""
    reduced_s = 64e-6 + 60e-6 * (512 - 256) / (256 - 1)  # on the line from 1 x 16 KiB to 256 x 16 KiB
    attention_s = 80 * 3e-5 + 4 * 80 * 64 * 128 * 512 * 256 / (4 * 5e14) + 512 * 80 * 2 * 2 * 128 / 3e12
    scaled = 0.5 * (4 * 80 * 8e-6 + 8e-13 * BLOCKS / 4)
    expected_s = gemms_s(512, 8e-6, 8e-13) + scaled + 160 * reduced_s + attention_s + 1e-3
    prompt = a_step(512, 0, 1)
    assert step_time(prompt, engine_of(tmp_path, large_gemm_scale=1.5)) == pytest.approx(expected_s, rel=1e-4)
    launched = engine_of(tmp_path, large_gemm_scale=1.5, launch_s=0.2)
    assert step_time(prompt, launched) == 0.2
    assert step_time(a_step(1, 999, 64), launched) < 0.1  # decodes alone are one CUDA graph


def test_recorded_steps_are_predicted_as_they_are_simulated(tmp_path: Path) -> None:
    """Decodes and prompts of sizes between, at and beyond those that were measured."""
    engine = engine_of(tmp_path, launch_s=0.02)
    measured = read_for(tmp_path / "gpu.yaml", LARGE, "fp8", 4, 1).device_time
    shapes = [(1, 500, 1), (1, 500, 40), (1, 500, 64), (300, 0, 2), (512, 0, 1), (4000, 100, 1), (8, 0, 1)]
    batches = [a_step(*shape) for shape in shapes]
    names = ("num_tokens", "num_requests", "attended_tokens", "kv_tokens")
    steps = pd.DataFrame([{name: getattr(batch, name) for name in names} for batch in batches])
    assert predicted_s(steps, measured) == pytest.approx([step_time(batch, engine) for batch in batches], rel=1e-9)


def test_an_all_reduce_between_two_measured_sizes_lies_on_a_line() -> None:
    """A start of 4 us and 1 GB/s: between 1 and 4 MB a power law has 2.006 ms for 2 MB, and twice the time beyond the last."""
    times = AllReduceTimes(message_bytes=[1e6, 4e6], num_gpus=[2], s=[[1.004e-3, 4.004e-3]])
    assert times.seconds(2, np.array([5e5, 2e6, 8e6])) == pytest.approx([1.004e-3, 2.004e-3, 8.004e-3])


def test_an_all_reduce_measured_between_two_gemms_is_not_passed_over() -> None:
    """32 rows lie between GEMMs of 1 and 64; all-reduces leave the line there, as vLLM's do at 256 KiB between eight."""
    reduces = {"message_bytes": [16384, 32 * 16384, 64 * 16384], "num_gpus": [4], "s": [[4e-6, 24e-6, 25e-6]]}
    bent = KernelTimes.model_validate({**TIMES, "all_reduce": reduces}).step(LARGE, "fp8", 4, 1.0, 2.4e12)
    at_32 = dict(zip(bent.tokens, bent.s, strict=True))[32]
    gemms = 5e-6 + 1e-6 * 31 / 63, 2e-13 + 1e-13 * 31 / 63
    assert at_32 + bent.weights_s == pytest.approx(gemms_s(32, *gemms) + 160 * 24e-6)


def test_measured_all_reduces_are_predicted_from_their_neighbours() -> None:
    """Each size left out in turn; on a power law between its neighbours they come out 2.1 % too long on average."""
    errors = []
    for path in sorted(shared("data/measurements/aiconfigurator/data").glob("*/comm/vllm/*/custom_allreduce_perf.parquet")):
        known = read_all_reduces(path.parent)
        sizes = np.array(known.message_bytes)
        for gpus, seconds in zip(known.num_gpus, np.array(known.s), strict=True):
            for left_out in range(1, len(sizes) - 1):
                kept = np.arange(len(sizes)) != left_out
                others = {"message_bytes": sizes[kept].tolist(), "num_gpus": [gpus], "s": [seconds[kept].tolist()]}
                found = AllReduceTimes.model_validate(others).seconds(gpus, sizes[[left_out]])[0]
                errors.append(found / seconds[left_out] - 1)
    assert len(errors) > 500
    assert abs(np.mean(errors)) < 0.005
    assert np.mean(np.abs(errors)) < 0.05


def test_one_gpu_needs_no_all_reduce() -> None:
    alone = KernelTimes.model_validate({**TIMES, "all_reduce": None})
    small = model("llama-3.1-8b")
    assert alone.step(small, "fp8", 1, 1.0, 1e12) == KernelTimes.model_validate(TIMES).step(small, "fp8", 1, 1.0, 1e12)
    with pytest.raises(ValueError, match="kernel times have no all-reduce, which tensor_parallel_size 2 needs"):
        alone.step(small, "fp8", 2, 1.0, 1e12)


def test_what_was_not_measured_is_said(tmp_path: Path) -> None:
    write_gpu(a_calibration(), tmp_path / "gpu.yaml")
    with pytest.raises(ValueError, match=r"calibration .*gpu\.yaml: kernel times have no attention with KV in bfloat16"):
        Surrogate(calibration=str(tmp_path / "gpu.yaml"), quantization="fp8").engine(model("llama-3.1-8b"), H200)
    measured = KernelTimes.model_validate(TIMES)
    with pytest.raises(ValueError, match="no all-reduce between 8 GPUs; measured were 2, 4"):
        measured.step(LARGE, "fp8", 8, 1.0, 1e12)
    with pytest.raises(ValueError, match="for dense models with grouped-query attention, which mixtral-8x7b is not"):
        measured.step(model("mixtral-8x7b"), "fp8", 2, 1.0, 1e12)
    with pytest.raises(ValueError, match="no attention with KV in bfloat16; measured were fp8"):
        measured.attention_with(2)


def test_the_file_reads_as_it_was_written_and_holds_no_idle_coefficient(tmp_path: Path) -> None:
    write_gpu(a_calibration(), tmp_path / "gpu.yaml")
    assert read_any(tmp_path / "gpu.yaml") == a_calibration()
    assert "flops_efficiency" not in (tmp_path / "gpu.yaml").read_text()
    with pytest.raises(ValueError, match=r"efficiencies\.serial_share has no effect with kernel_times"):
        a_calibration(serial_share=0.5)


@pytest.mark.parametrize(
    ("where", "changes", "said"),
    [
        ("gemm", {"fp8": {"rows": [1, 2], "s": [0, 0, 0], "s_per_weight": [0, 0]}}, "2 rows, 3 s and 2 s_per_weight"),
        ("gemm", {"fp8": {"rows": [2, 1], "s": [0, 0], "s_per_weight": [0, 0]}}, "rows must ascend"),
        ("all_reduce", {"message_bytes": [2, 1], "num_gpus": [2], "s": [[1, 1]]}, "message_bytes must ascend"),
        ("all_reduce", {"message_bytes": [1, 2], "num_gpus": [2], "s": [[1, 1, 1]]}, "a number for each of message_bytes"),
    ],
)
def test_lists_that_do_not_fit_are_refused(where: str, changes: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        KernelTimes.model_validate({**TIMES, where: changes})


def write_tables(folder: Path) -> None:
    """Kernels that follow these laws: with one row more than a tile of 256, GEMMs take half as long again."""
    gemm, attention = folder / "gemm" / "vllm" / "0.24.0", folder / "attention" / "vllm" / "0.24.0"
    for path in (gemm, attention, folder / "comm"):
        path.mkdir(parents=True)
    rows = [
        (dtype, m, n, k, 1e3 * (5e-6 + m * n * k * width * 1e-15 * (1.5 if m % 256 == 1 and m > 1 else 1)))
        for (dtype, width), m, n, k in product(
            (("bfloat16", 2), ("fp8", 1)), (1, 8, 16, 256, 257, 512, 513, 8192), (1024, 4096), (4096, 8192)
        )
    ]
    rows.append(("fp8", 8, 64, 65536, 1.0))  # no layer has such a matrix
    pd.DataFrame(rows, columns=["gemm_dtype", "m", "n", "k", "latency"]).to_parquet(gemm / "gemm_perf.parquet")
    heads = ["num_heads", "num_key_value_heads", "head_dim", "kv_cache_dtype", "batch_size"]
    decodes = [
        (32, 8, 128, dtype, batch, context - 1, 1e3 * (1e-5 + batch * context * 2048 * width / 3e12))
        for (dtype, width), batch, context in product((("bfloat16", 2), ("fp8", 1)), (4, 16, 64), (512, 2048, 8192))
    ]
    pd.DataFrame(decodes, columns=[*heads, "step", "latency"]).to_parquet(attention / "generation_attention_perf.parquet")
    prompts = [
        (32, 8, 128, dtype, batch, length, 1e3 * (3e-5 + 2 * 32 * 128 * batch * length**2 / 4e14))
        for dtype, batch, length in product(("bfloat16", "fp8"), (1, 4), (512, 2048, 8192))
    ]
    pd.DataFrame(prompts, columns=[*heads, "isl", "latency"]).to_parquet(attention / "context_attention_perf.parquet")
    reduced = [
        (n, size, f"vllm_{how}", (n + size / 1e6) / 1e3 * slower)
        for n, size, (how, slower) in product((2, 4), (2048, 65536), (("graph", 1), ("eager", 5)))
    ]
    pd.DataFrame(reduced, columns=["num_gpus", "message_size", "backend", "latency"]).to_parquet(
        folder / "comm" / "custom_allreduce_perf.parquet"
    )


def test_the_laws_of_the_tables_are_found(tmp_path: Path) -> None:
    """Rows on a line are left out; beyond the last pair, a whole tile and one row more, time is in proportion to their mean."""
    write_tables(tmp_path)
    left_out = LeftOut()
    found = read_kernel_times(tmp_path, tmp_path / "comm", left_out)
    assert left_out["all-reduces: not in a CUDA graph"] == 4
    fp8, wide = found.gemm["fp8"], found.gemm["bfloat16"]
    assert fp8.rows == [1, 256, 257, 512.5, 1025]
    assert fp8.s == pytest.approx([5e-6, 5e-6, 5e-6, 5e-6, 1e-5], rel=1e-6)
    assert np.array(fp8.s_per_weight) / 1e-15 == pytest.approx([1, 256, 385.5, 640.75, 1281.5], rel=1e-6)
    assert np.array(wide.s_per_weight) / np.array(fp8.s_per_weight) == pytest.approx(2, rel=1e-6)
    for dtype in ("fp8", "bfloat16"):
        attention = found.attention[dtype]
        assert (attention.decode_s, attention.prompt_s) == pytest.approx((1e-5, 3e-5), rel=1e-4)
        assert (attention.kv_bytes_per_s, attention.flops_per_s) == pytest.approx((3e12, 4e14), rel=1e-4)
    assert found.all_reduce is not None
    assert (found.all_reduce.message_bytes, found.all_reduce.num_gpus) == ([4096, 131072], [2, 4])  # elements of 16 bit
    assert np.array(found.all_reduce.s) == pytest.approx(np.array([[2.002048e-6, 2.065536e-6], [4.002048e-6, 4.065536e-6]]))


def test_a_missing_table_is_said(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"no gemm/vllm/VERSION/gemm_perf\.parquet"):
        read_kernel_times(tmp_path)
    write_tables(tmp_path)
    with pytest.raises(KernelError, match=r"custom_allreduce_perf\.parquet: no such file"):
        read_kernel_times(tmp_path, tmp_path)
    path = tmp_path / "attention" / "vllm" / "0.24.0" / "context_attention_perf.parquet"
    table = pd.read_parquet(path)
    table.assign(head_dim=64).to_parquet(path)
    with pytest.raises(KernelError, match="no attention with KV in bfloat16 of the shapes that count"):
        read_kernel_times(tmp_path)
    table.drop(columns="isl").to_parquet(path)
    with pytest.raises(KernelError, match=r"context_attention_perf\.parquet: no column isl"):
        read_kernel_times(tmp_path)


@pytest.mark.parametrize("system", ["h100_sxm", "h200_sxm", "b200_sxm"])
def test_real_kernels_reach_a_plausible_share_of_the_peaks(system: str) -> None:
    """With 16 rows GEMMs read 65 to 90 % of the peak bandwidth; decodes 55 to 100 % of KV, as flash attention is known to."""
    found, peaks = read_kernel_times(shared(f"data/measurements/aiconfigurator/data/{system}")), gpu(system.replace("_", "-"))
    for dtype, width in (("fp8", 1), ("bfloat16", 2)):
        gemm = found.gemm[dtype]
        read = width / np.interp(16, gemm.rows, gemm.s_per_weight) / peaks.bytes_per_s
        assert 0.65 < read < 0.9
        assert 0.55 < found.attention[dtype].kv_bytes_per_s / peaks.bytes_per_s < 1
