"""Closed forms of queueing theory: what a simulated queue must come to, and what a planner can know without simulating.

All queues here take Poisson arrivals, serve first come first served, lose nobody and wait in one line. Pure functions;
seconds in, seconds out. A queue that cannot keep up (utilisation 1 or more) has no steady state and is refused.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Queue:
    """A queue in its steady state; all values are means."""

    utilization: float  # share of the servers that is busy, below 1
    wait_s: float  # from arrival to the start of service
    sojourn_s: float  # from arrival to the end of service
    num_waiting: float
    num_in_system: float  # waiting and in service


def mm1(arrivals_per_s: float, service_s: float) -> Queue:
    """Returns the M/M/1 queue: one server, exponential service of mean `service_s`.

    Source: Kleinrock (1975), Queueing Systems I, section 3.2: W = service_s / (1 - rho).

    >>> [round(mm1(load, 1.0).wait_s, 1) for load in (0.8, 0.95)]
    [4.0, 19.0]

    Raises:
        ValueError: an argument is not a positive number, or the queue cannot keep up.
    """
    return mg1(arrivals_per_s, service_s, service_scv=1.0)


def mm1_sojourn_percentile_s(arrivals_per_s: float, service_s: float, percent: float) -> float:
    """Returns a percentile, 0 to 100, of the time in an M/M/1 queue: it is exponential, so the tail follows the mean.

    Source: Kleinrock (1975), Queueing Systems I, equation 5.118.

    >>> round(mm1_sojourn_percentile_s(8.0, 0.1, 99), 2)
    2.3

    Raises:
        ValueError: as `mm1`, or `percent` is not in [0, 100).
    """
    if not 0 <= percent < 100:
        raise ValueError(f"percent must lie in [0, 100), got {percent!r}")
    return -math.log1p(-percent / 100) * mm1(arrivals_per_s, service_s).sojourn_s


def mg1(arrivals_per_s: float, service_s: float, service_scv: float) -> Queue:
    """Returns the M/G/1 queue: one server and any law of service; its variance is all that counts.

    Args:
        arrivals_per_s: Poisson arrivals.
        service_s: mean service.
        service_scv: squared coefficient of variation of the service: 0 is deterministic (M/D/1), 1 exponential (M/M/1).

    Source: the Pollaczek-Khinchine formula, Kleinrock (1975), Queueing Systems I, equation 5.72.

    >>> mg1(0.8, 1.0, service_scv=0.0).wait_s / mm1(0.8, 1.0).wait_s
    0.5

    Raises:
        ValueError: an argument is out of range, or the queue cannot keep up.
    """
    utilization = _utilization(arrivals_per_s, service_s, 1)
    if not 0 <= service_scv < math.inf:
        raise ValueError(f"service_scv must be a number from 0 up, got {service_scv!r}")
    wait_s = utilization * service_s * (1 + service_scv) / 2 / (1 - utilization)
    return _queue(arrivals_per_s, service_s, utilization, wait_s)


def mmc(arrivals_per_s: float, service_s: float, servers: int) -> Queue:
    """Returns the M/M/c queue: `servers` servers behind one line, exponential service of mean `service_s`.

    Source: Kleinrock (1975), Queueing Systems I, section 3.5.

    >>> round(mmc(6.4, 1.0, 8).wait_s, 3)
    0.286

    Raises:
        ValueError: an argument is not a positive number, or the queue cannot keep up.
    """
    utilization = _utilization(arrivals_per_s, service_s, servers)
    wait_s = erlang_c(arrivals_per_s * service_s, servers) * service_s / servers / (1 - utilization)
    return _queue(arrivals_per_s, service_s, utilization, wait_s)


def erlang_b(offered: float, servers: int) -> float:
    """Returns the share of arrivals that find all `servers` busy and are lost, where nobody can wait.

    Args:
        offered: arrivals per service time; may exceed `servers`.
        servers: at least 1.

    Source: Erlang (1917); the recursion B(c) = a B(c-1) / (c + a B(c-1)) is stable for any size.

    >>> round(erlang_b(2.0, 2), 3)
    0.4

    Raises:
        ValueError: an argument is not a positive number.
    """
    _check_positive("offered", offered)
    _check_servers(servers)
    blocked = 1.0
    for server in range(1, servers + 1):
        blocked = offered * blocked / (server + offered * blocked)
    return blocked


def erlang_c(offered: float, servers: int) -> float:
    """Returns the share of arrivals that have to wait in an M/M/c queue.

    Source: Erlang (1917); from Erlang B, C = B / (1 - rho (1 - B)).

    >>> round(erlang_c(1.6, 2), 4)
    0.7111

    Raises:
        ValueError: an argument is not a positive number, or `offered` is not below `servers`.
    """
    blocked = erlang_b(offered, servers)
    utilization = _utilization(offered, 1.0, servers)
    return blocked / (1 - utilization * (1 - blocked))


def power_of_d_sojourn_s(utilization: float, service_s: float, d: int) -> float:
    """Returns the mean time in system where each arrival joins the shortest of `d` queues, drawn from very many M/M/1.

    The limit of infinitely many queues; n of them lie above it by a share of order 1/n. With d = 1 it is M/M/1.

    Source: Mitzenmacher (2001), The power of two choices in randomized load balancing, IEEE TPDS 12(10), theorem 4.

    >>> round(power_of_d_sojourn_s(0.9, 1.0, 1), 6), round(power_of_d_sojourn_s(0.9, 1.0, 2), 2)
    (10.0, 2.61)

    Raises:
        ValueError: an argument is not a positive number, or the queues cannot keep up.
    """
    _utilization(utilization, 1.0, 1)
    _check_positive("service_s", service_s)
    _check_servers(d, "d")
    if d == 1:
        return service_s / (1 - utilization)
    total, exponent = 0.0, 0  # sum over k of rho^((d^k - d) / (d - 1)), whose exponents are 0, d, d + d^2, ...
    while (term := utilization**exponent) > 1e-18:
        total += term
        exponent = d * (exponent + 1)
    return service_s * total


def _queue(arrivals_per_s: float, service_s: float, utilization: float, wait_s: float) -> Queue:
    """Completes a queue by Little's law."""
    sojourn_s = wait_s + service_s
    return Queue(utilization, wait_s, sojourn_s, arrivals_per_s * wait_s, arrivals_per_s * sojourn_s)


def _utilization(arrivals_per_s: float, service_s: float, servers: int) -> float:
    _check_positive("arrivals_per_s", arrivals_per_s)
    _check_positive("service_s", service_s)
    _check_servers(servers)
    utilization = arrivals_per_s * service_s / servers
    if utilization >= 1:
        raise ValueError(f"the queue cannot keep up: utilization {utilization:.6g} must be below 1")
    return utilization


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be a positive number, got {value!r}")


def _check_servers(servers: int, name: str = "servers") -> None:
    if servers < 1 or servers != int(servers):
        raise ValueError(f"{name} must be a whole number from 1 up, got {servers!r}")
