"""The normal law without SciPy: the lengths of two runs differ if it is not SciPy's."""

import numpy as np
from scipy import special

from traces.normal import Z, share_below


def test_the_share_below_a_number_is_scipys() -> None:
    numbers = np.concatenate([np.linspace(-37, 37, 20_001), np.random.default_rng(1).normal(size=20_000)])
    ours = np.array([share_below(float(z)) for z in numbers])
    np.testing.assert_array_max_ulp(ours, special.ndtr(numbers), maxulp=4)  # 0, unless SciPy fuses multiplications


def test_percentiles_are_scipys() -> None:
    assert {name: float(special.ndtri(int(name[1:]) / 100)) for name in Z} == Z
