"""The catalogue: complete, sourced, recomputable, and helpful when misspelled."""

from collections.abc import Mapping

import pytest
from pydantic import ValidationError

from replicas.catalog import Gpu, Model, gpu, gpus, model, models
from replicas.memory import kv_bytes_per_token


def counted_params(m: Model) -> int:
    """Embeddings, attention and gated MLPs of a model, without norms and biases (below 0.1 %)."""
    if m.kv_lora_rank:  # DeepSeek-V3: query rank 1536, heads of 128 + 64, values of 128
        attention = m.hidden * 1536 + 1536 * m.heads * 192 + m.hidden * 576 + 512 * m.heads * 256 + m.heads * 128 * m.hidden
    else:
        attention = m.head_dim * (2 * m.heads + 2 * m.kv_heads) * m.hidden
    shared = 3 * m.hidden * m.moe_intermediate if m.name == "deepseek-v3" else 0
    router = m.hidden * m.num_experts
    dense = (m.layers - m.moe_layers) * 3 * m.hidden * m.intermediate
    tied = m.name in ("qwen3-0.6b", "qwen3-1.7b")
    embeddings = m.vocab * m.hidden * (1 if tied else 2)
    return embeddings + m.layers * attention + dense + m.num_expert_params + m.moe_layers * (shared + router)


@pytest.mark.parametrize("name", models())
def test_parameters_follow_from_the_architecture(name: str) -> None:
    known = model(name)
    assert counted_params(known) == pytest.approx(known.num_params, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "active_billion"),
    [("mixtral-8x7b", 12.9), ("mixtral-8x22b", 39.1), ("qwen3-30b-a3b", 3.3), ("qwen3-235b-a22b", 22), ("deepseek-v3", 37)],
)
def test_active_parameters_are_those_the_makers_publish(name: str, active_billion: float) -> None:
    assert model(name).num_active_params / 1e9 == pytest.approx(active_billion, rel=0.02)


def test_every_row_has_a_source_and_a_name() -> None:
    catalogues: tuple[Mapping[str, Gpu | Model], ...] = (gpus(), models())
    for known in catalogues:
        assert list(known) == [row.name for row in known.values()]
        assert all(len(row.source) > 20 for row in known.values())
    for row in gpus().values():
        assert len(row.memory_source) > 20
        # Dense peaks: on every part with fp8 units they do twice the bf16 rate (within rounding), never four times.
        assert row.fp8_flops_per_s is None or row.fp8_flops_per_s == pytest.approx(2 * row.bf16_flops_per_s, rel=0.02)


@pytest.mark.parametrize(("wrong", "right"), [("h100-smx", "h100-sxm"), ("RTX4090", "rtx-4090"), ("b200", "b200-sxm")])
def test_misspelled_gpu_names_the_nearest(wrong: str, right: str) -> None:
    with pytest.raises(ValueError, match=f"no GPU named '{wrong}'; did you mean '{right}'\\? known: a100-pcie, "):
        gpu(wrong)


def test_unknown_model_lists_what_is_known() -> None:
    with pytest.raises(ValueError, match=r"no model named 'zzz'; known: codellama-34b, .*yi-34b$"):
        model("zzz")
    with pytest.raises(ValueError, match=r"did you mean 'llama-3\.1-70b'"):
        model("Llama-3.1-70B")


def test_inline_gpu_and_model() -> None:
    mine = gpu({"bf16_flops_per_s": 1e15, "memory_bytes": 96e9, "bytes_per_s": 4e12, "link_bytes_per_s": 450e9})
    assert (mine.name, mine.fp8_flops_per_s, mine.source) == ("inline", None, "given inline")
    fields = model("llama-3.1-8b").model_dump()
    assert model(fields) == model("llama-3.1-8b")


def test_a_latent_without_a_rotary_key_is_cached_alone() -> None:
    fields = model("llama-3.1-8b").model_dump(exclude={"qk_rope_head_dim"}) | {"kv_lora_rank": 512}
    assert kv_bytes_per_token(model(fields), 1, 2.0) == 32 * 512 * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sliding_window": 4096}, "sliding_window"),
        ({"layers": 0}, "layers"),
        ({"num_experts": 8}, "go together"),
        ({"num_experts": 2, "experts_per_token": 3, "moe_layers": 1, "moe_intermediate": 8}, "above num_experts"),
        ({"num_experts": 8, "experts_per_token": 1, "moe_layers": 33, "moe_intermediate": 8}, "above layers"),
        ({"num_experts": 512, "experts_per_token": 1, "moe_layers": 32, "moe_intermediate": 14336}, "the experts alone"),
    ],
)
def test_inline_model_that_contradicts_itself(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        model({**model("llama-3.1-8b").model_dump(), **change})


def test_missing_fields_of_an_inline_gpu_are_named() -> None:
    with pytest.raises(ValidationError, match="memory_bytes"):
        gpu({"name": "mine"})


def test_rows_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        gpu("l4").memory_bytes = 1.0
    assert isinstance(gpu("l4"), Gpu)
