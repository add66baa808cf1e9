"""Length laws: what they refuse, and that they are what they say."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from sim.errors import TraceError
from sim.records import ARRIVAL
from traces.length_laws import Empirical, Law, Lognormal
from traces.lengths import Lengths, Mix, RequestClass

LAW: TypeAdapter[Any] = TypeAdapter(Law)
LAWS: list[dict[str, Any]] = [
    {"kind": "fixed", "tokens": 7},
    {"kind": "uniform", "low": 3, "high": 9},
    {"kind": "exponential", "mean": 5.5},
    {"kind": "exponential", "mean": 40.0, "min": 10, "max": 90},
    {"kind": "exponential", "mean": 1.0},
    {"kind": "lognormal", "mean": 2000.0, "p99": 8000.0},
    {"kind": "lognormal", "mean": 400.0, "p50": 150.0, "min": 20, "max": 1000},
    {"kind": "lognormal", "mean": 50.0, "p90": 50.0},
    {"kind": "empirical", "values": [5, 1, 3, 3], "max": 4},
]


def test_the_shortest_that_may_be_asked_for_is_a_token() -> None:
    assert LAW.validate_python({"kind": "exponential", "mean": 5.0, "min": 1}).min == 1
    with pytest.raises(ValidationError, match="min"):
        LAW.validate_python({"kind": "exponential", "mean": 5.0, "min": 0})


def test_each_of_three_classes_has_its_share() -> None:
    """6,000 requests, shares of 1, 2 and 3: the standard error of the rarest is 29."""
    one = Lengths(
        prompt=LAW.validate_python({"kind": "fixed", "tokens": 1}), output=LAW.validate_python({"kind": "fixed", "tokens": 1})
    )
    rows = np.zeros(6000, ARRIVAL)
    Mix([RequestClass(name=name, share=share, lengths=one) for name, share in (("a", 1), ("b", 2), ("c", 3))], 1).fill(rows)
    assert np.bincount(rows["class_id"]).tolist() == pytest.approx([1000, 2000, 3000], abs=150)


def test_a_median_may_be_the_mean_where_nothing_varies() -> None:
    assert Lognormal(mean=100.0, p50=100.0).of_normal(np.array([-1.0, 0.0, 2.0])).tolist() == [100, 100, 100]


def drawn(law: Any, n: int = 400_000) -> Any:
    return law.of_normal(np.random.default_rng(3).standard_normal(n))


@pytest.mark.parametrize("spec", LAWS, ids=str)
def test_expected_tokens_is_the_mean_of_what_is_drawn(spec: dict[str, Any]) -> None:
    law = LAW.validate_python(spec)
    tokens = drawn(law)
    assert tokens.dtype == np.int64
    assert tokens.min() >= 1
    rounding = 0.02 if spec["kind"] == "lognormal" else 0.0
    assert tokens.mean() == pytest.approx(law.expected_tokens, abs=4 * tokens.std() / len(tokens) ** 0.5 + rounding)


@pytest.mark.parametrize("spec", LAWS, ids=str)
def test_lengths_rise_with_the_normal_number(spec: dict[str, Any]) -> None:
    tokens = LAW.validate_python(spec).of_normal(np.linspace(-8.5, 8.5, 1001))
    assert (np.diff(tokens) >= 0).all()


@pytest.mark.parametrize(("rank", "tokens"), [("p50", 800.0), ("p90", 3000.0), ("p95", 5000.0), ("p99", 8000.0)])
def test_lognormal_has_the_mean_and_percentile_it_was_given(rank: str, tokens: float) -> None:
    law = Lognormal.model_validate({"mean": 2000.0, rank: tokens})
    assert law.expected_tokens == pytest.approx(2000.0, abs=0.01)
    share = np.count_nonzero(drawn(law) <= tokens) / 400_000
    p = int(rank[1:]) / 100
    assert share == pytest.approx(p, abs=4 * (p * (1 - p) / 400_000) ** 0.5 + 1e-3)


def test_exponential_lengths_have_no_memory() -> None:
    tokens = drawn(LAW.validate_python({"kind": "exponential", "mean": 20.0}))
    for waited in (10, 40):
        left = tokens[tokens > waited] - waited
        assert left.mean() == pytest.approx(20.0, abs=4 * left.std() / len(left) ** 0.5)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"kind": "lognormal", "mean": 100.0, "p99": 2000.0}, "p99 lies between 100 and 1496"),
        ({"kind": "lognormal", "mean": 100.0, "p99": 50.0}, "no lognormal law has mean 100 and p99 50"),
        ({"kind": "lognormal", "mean": 100.0, "p50": 101.0}, "p50 lies between 0 and 100"),
        ({"kind": "lognormal", "mean": 100.0}, "exactly one of p50, p90, p95, p99; given: none"),
        ({"kind": "lognormal", "mean": 100.0, "p50": 50.0, "p99": 300.0}, "given: p50, p99"),
        ({"kind": "uniform", "low": 9, "high": 3}, "low 9 is above high 3"),
        ({"kind": "exponential", "mean": 9.0, "min": 5, "max": 4}, "min 5 is above max 4"),
        ({"kind": "exponential", "mean": 0.5}, "greater than or equal to 1"),
        ({"kind": "empirical"}, "either `values`, or `path` with `column`"),
        ({"kind": "empirical", "values": [3, 0]}, "values holds 0"),
        ({"kind": "fixed", "tokens": 0}, "greater than or equal to 1"),
        ({"kind": "gaussian", "mean": 5.0}, "no length law named 'gaussian'; known: empirical, exponential, fixed"),
    ],
)
def test_impossible_law_is_refused_with_what_is_possible(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message.replace("`", "`")):
        LAW.validate_python(spec)


def test_empirical_lengths_come_from_a_column(tmp_path: Path) -> None:
    (tmp_path / "lengths.csv").write_text("in,out\n5,1\n7,1\n")
    law = LAW.validate_python({"kind": "empirical", "path": str(tmp_path / "lengths.csv"), "column": "in"})
    assert set(drawn(law)) == {5, 7}
    assert law.expected_tokens == 6.0


def test_empirical_file_with_a_zero_length_names_the_row(tmp_path: Path) -> None:
    (tmp_path / "lengths.csv").write_text("in\n5\n0\n")
    law = LAW.validate_python({"kind": "empirical", "path": str(tmp_path / "lengths.csv"), "column": "in"})
    with pytest.raises(TraceError, match=r"lengths.csv: row 2: in is '0'; a length is 1 to 1,000,000,000 tokens"):
        drawn(law)


def test_correlation_ties_prompt_and_output_and_leaves_their_laws_alone() -> None:
    law = {"kind": "lognormal", "mean": 100.0, "p90": 200.0}
    normals = np.random.default_rng(5).standard_normal((2, 200_000))
    alone = Lengths.model_validate({"prompt": law, "output": law}).draw(normals)
    tied = Lengths.model_validate({"prompt": law, "output": law, "correlation": 0.8}).draw(normals)
    assert abs(np.corrcoef(np.log(alone))[0, 1]) < 0.01
    assert np.corrcoef(np.log(tied))[0, 1] == pytest.approx(0.8, abs=0.02)
    assert tied[1].mean() == pytest.approx(100.0, abs=4 * tied[1].std() / 200_000**0.5 + 0.02)


def test_classes_come_in_their_shares_with_their_own_lengths() -> None:
    classes = [
        RequestClass.model_validate(
            {
                "name": name,
                "share": share,
                "lengths": {"prompt": {"kind": "fixed", "tokens": tokens}, "output": {"kind": "fixed", "tokens": 1}},
            }
        )
        for name, share, tokens in (("chat", 3.0, 10), ("code", 1.0, 20))
    ]
    rows = np.zeros(40_000, [("num_prompt_tokens", "i8"), ("num_output_tokens", "i8"), ("class_id", "i8")])
    Mix(classes, seed=1).fill(rows)
    assert (rows["num_prompt_tokens"] == np.array([10, 20])[rows["class_id"]]).all()
    assert rows["class_id"].mean() == pytest.approx(0.25, abs=4 * (0.25 * 0.75 / 40_000) ** 0.5)


PARETO = """
import numpy as np
from pydantic import Field
from traces.length_laws import LengthLaw
from traces.normal import shares_below

class Pareto(LengthLaw):
    least: int = Field(ge=1, description="Fewest tokens.")
    shape: float = Field(gt=1, description="How fast long ones become rare.")

    def of_normal(self, normal):
        return np.maximum(self.least * (1 - shares_below(normal)) ** (-1 / self.shape), 1).astype(np.int64)

    @property
    def expected_tokens(self):
        return self.least * self.shape / (self.shape - 1)
"""


def test_a_law_of_ones_own_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_laws.py").write_text(PARETO)
    monkeypatch.syspath_prepend(tmp_path)
    law = LAW.validate_python({"kind": "my_laws:Pareto", "least": 100, "shape": 3.0})
    assert drawn(law).mean() == pytest.approx(law.expected_tokens, rel=0.01)  # 150; the standard error is 0.1 %
    assert LAW.dump_python(law) == {"kind": "my_laws:Pareto", "least": 100, "shape": 3.0}
    with pytest.raises(ValidationError, match="shape"):
        LAW.validate_python({"kind": "my_laws:Pareto", "least": 100, "shape": 0.5})


def test_a_law_that_has_been_drawn_from_is_still_equal_to_one_that_has_not() -> None:
    """What it has worked out since is an array, which has no truth value."""
    first, second = (Empirical(values=[5, 1, 3]) for _ in range(2))
    for law in (first, second):
        law.of_normal(np.zeros(3))
    assert first == second == Empirical(values=[5, 1, 3]) != Empirical(values=[5, 1, 4])
