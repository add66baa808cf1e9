"""The standard normal law. SciPy has it, but takes longer to import than a config to read: it waits until lengths are drawn."""

import math

from traces.rates import Floats

Z = {"p50": 0.0, "p90": 1.2815515655446004, "p95": 1.6448536269514722, "p99": 2.3263478740408408}
"""Percentiles, as `scipy.special.ndtri` has them."""


def shares_below(z: Floats) -> Floats:
    """Returns the shares of the law that lie below these numbers."""
    from scipy.special import ndtr

    return ndtr(z)


def log_shares_below(z: Floats) -> Floats:
    """Returns the logarithms of these shares, exact however small they are."""
    from scipy.special import log_ndtr

    return log_ndtr(z)


def share_below(z: float) -> float:
    """Returns the share of the law that lies below one number, as SciPy has it (unless built to fuse multiplications).

    Source: Cephes, `ndtr`, `erf` and `erfc`.

    >>> share_below(0.0), round(share_below(1.96), 4), share_below(-40.0)
    (0.5, 0.975, 0.0)
    """
    x = z * math.sqrt(0.5)
    if abs(x) < 1:
        return 0.5 + 0.5 * (x * _polynomial(_T, x * x) / _polynomial(_U, x * x))
    above, below = (_P, _Q) if abs(x) < 8 else (_R, _S)
    beyond = 0.5 * (math.exp(-x * x) * _polynomial(above, abs(x)) / _polynomial(below, abs(x)))
    return 1 - beyond if x > 0 else beyond


def _polynomial(coefficients: tuple[float, ...], x: float) -> float:
    """The value of a polynomial by Horner's rule, the highest power first."""
    value = coefficients[0]
    for one in coefficients[1:]:
        value = value * x + one
    return value


# The coefficients of Cephes, by its names.
_T = (9.60497373987051638749, 90.0260197203842689217, 2232.00534594684319226, 7003.32514112805075473, 55592.3013010394962768)
_U = (
    1.0,
    33.5617141647503099647,
    521.357949780152679795,
    4594.32382970980127987,
    22629.0000613890934246,
    49267.3942608635921086,
)
_P = (
    2.46196981473530512524e-10,
    0.564189564831068821977,
    7.46321056442269912687,
    48.6371970985681366614,
    196.520832956077098242,
    526.445194995477358631,
    934.528527171957607540,
    1027.55188689515710272,
    557.535335369399327526,
)
_Q = (
    1.0,
    13.2281951154744992508,
    86.7072140885989742329,
    354.937778887819891062,
    975.708501743205489753,
    1823.90916687909736289,
    2246.33760818710981792,
    1656.66309194161350182,
    557.535340817727675546,
)
_R = (
    0.564189583547755073984,
    1.27536670759978104416,
    5.01905042251180477414,
    6.16021097993053585195,
    7.40974269950448939160,
    2.97886665372100240670,
)
_S = (
    1.0,
    2.26052863220117276590,
    9.39603524938001434673,
    12.0489539808096656605,
    17.0814450747565897222,
    9.60896809063285878198,
    3.36907645100081516050,
)
