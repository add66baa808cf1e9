"""Closed forms of queueing theory: what a simulated queue must come to, and what a planner can know without simulating.

All queues here take Poisson arrivals, lose nobody and wait in one line; but for `mg1_ps` they serve first come first served.
Pure functions;
seconds in, seconds out. A queue that cannot keep up (utilisation 1 or more) has no steady state and is refused.
"""

import math
from dataclasses import dataclass

from sim.checks import check_not_negative, check_positive, check_whole


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
    _check_percent(percent)
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
    check_not_negative("service_scv", service_scv)
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


def mmc_wait_percentile_s(arrivals_per_s: float, service_s: float, servers: int, percent: float) -> float:
    """Returns a percentile, 0 to 100, of the wait in an M/M/c queue: 0 for those who find a free server, else exponential.

    P(wait > t) = C exp(-(servers / service_s - arrivals_per_s) t), with C from `erlang_c`.

    Source: Kleinrock (1975), Queueing Systems I, section 3.5; with one server his equation 5.122.

    >>> round(mmc_wait_percentile_s(8.0, 0.1, 1, 99), 2), mmc_wait_percentile_s(8.0, 0.1, 1, 10)
    (2.19, 0.0)

    Raises:
        ValueError: as `mmc`, or `percent` is not in [0, 100).
    """
    _check_percent(percent)
    utilization = _utilization(arrivals_per_s, service_s, servers)
    late = erlang_c(arrivals_per_s * service_s, servers) / (1 - percent / 100)
    return max(0.0, math.log(late)) * service_s / servers / (1 - utilization)


def mg1_ps(arrivals_per_s: float, service_s: float) -> Queue:
    """Returns the M/G/1 queue under processor sharing: all in the system are served at once, each at an equal rate.

    Whatever the law of service, one of x seconds takes x / (1 - rho); nobody waits, everybody is slowed, and `wait_s` is the
    time lost to that. The closest closed form to an engine that gives every request a share of each step.

    Source: Kleinrock (1976), Queueing Systems II, equation 4.17.

    >>> mg1_ps(5.0, 0.1).sojourn_s == mm1(5.0, 0.1).sojourn_s  # insensitive: the same as the exponential queue's mean
    True

    Raises:
        ValueError: an argument is not a positive number, or the queue cannot keep up.
    """
    utilization = _utilization(arrivals_per_s, service_s, 1)
    return _queue(arrivals_per_s, service_s, utilization, service_s / (1 - utilization) - service_s)


def split_and_pooled(arrivals_per_s: float, service_s: float, servers: int) -> tuple[Queue, Queue]:
    """Returns what a request sees when `servers` servers have a line each, filled at random, and when they share one.

    Poisson arrivals split at random are Poisson on every line, so the first is M/M/1 with its share, the second M/M/c. The
    gain of a router lies between the two.

    Source: docs/sources.md [1], Queues and headroom.

    >>> [round(queue.wait_s, 2) for queue in split_and_pooled(6.4, 1.0, 8)]
    [4.0, 0.29]

    Raises:
        ValueError: an argument is not a positive number, or the queues cannot keep up.
    """
    check_whole("servers", servers)
    return mm1(arrivals_per_s / servers, service_s), mmc(arrivals_per_s, service_s, servers)


def num_in_system(arrivals_per_s: float, sojourn_s: float) -> float:
    """Returns the mean number of requests in any stable system: Little's law, L = lambda W, whatever its laws and order.

    Source: Little (1961), A proof for the queuing formula L = lambda W.

    >>> num_in_system(40.0, 20.0)
    800.0

    Raises:
        ValueError: an argument is not a positive number.
    """
    check_positive("arrivals_per_s", arrivals_per_s)
    check_positive("sojourn_s", sojourn_s)
    return arrivals_per_s * sojourn_s


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
    check_positive("offered", offered)
    check_whole("servers", servers)
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
    check_positive("service_s", service_s)
    check_whole("d", d)
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
    check_positive("arrivals_per_s", arrivals_per_s)
    check_positive("service_s", service_s)
    check_whole("servers", servers)
    utilization = arrivals_per_s * service_s / servers
    if utilization >= 1:
        raise ValueError(f"the queue cannot keep up: utilization {utilization:.6g} must be below 1")
    return utilization


def _check_percent(percent: float) -> None:
    if not 0 <= percent < 100:
        raise ValueError(f"percent must lie in [0, 100), got {percent!r}")
