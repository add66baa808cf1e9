"""A fleet that somebody published, run backwards: how many nodes its tokens take at its own rates, and what they reach."""

from dataclasses import dataclass

from sim.checks import check_not_negative, check_positive, check_whole

DAY_S = 86_400.0


@dataclass(frozen=True)
class PublishedFleet:
    """One day of a fleet that prefills and decodes on separate nodes. None = not published.

    Raises:
        ValueError: a number is not positive, the mean is above the peak, or more input is cached than there is.
    """

    peak_nodes: float
    mean_nodes: float
    gpus_per_node: int
    input_tokens: float | None = None  # of the day, cached ones included
    cached_input_tokens: float = 0.0
    output_tokens: float | None = None
    input_tokens_per_s_per_node: float | None = None  # of a prefill node, cached ones included
    output_tokens_per_s_per_node: float | None = None  # of a decode node

    def __post_init__(self) -> None:
        check_whole("gpus_per_node", self.gpus_per_node)
        for name in ("peak_nodes", "mean_nodes"):
            check_positive(name, getattr(self, name))
        for name in ("input_tokens", "output_tokens", "input_tokens_per_s_per_node", "output_tokens_per_s_per_node"):
            if (value := getattr(self, name)) is not None:
                check_positive(name, value)
        check_not_negative("cached_input_tokens", self.cached_input_tokens)
        given = self.input_tokens or 0.0
        if self.cached_input_tokens > given:
            raise ValueError(f"cached_input_tokens {self.cached_input_tokens:g} is above input_tokens {given:g}")
        if self.mean_nodes > self.peak_nodes:
            raise ValueError(f"mean_nodes {self.mean_nodes:g} is above peak_nodes {self.peak_nodes:g}")

    @property
    def peak_to_mean(self) -> float:
        """How much larger the fleet is at its peak than on average.

        >>> round(PublishedFleet(278, 226.75, 8).peak_to_mean, 3)
        1.226
        """
        return self.peak_nodes / self.mean_nodes

    @property
    def prefill_nodes(self) -> float | None:
        """Mean nodes that the day's input takes at the published rate of a node."""
        return _nodes(self.input_tokens, self.input_tokens_per_s_per_node)

    @property
    def decode_nodes(self) -> float | None:
        """Mean nodes that the day's output takes at the published rate of a node."""
        return _nodes(self.output_tokens, self.output_tokens_per_s_per_node)

    @property
    def computed_input_per_s(self) -> float | None:
        """Input tokens/s, mean over the day, that no cache answered."""
        return None if self.input_tokens is None else (self.input_tokens - self.cached_input_tokens) / DAY_S

    def dollars_per_day(self, price_per_gpu_hour: float) -> float:
        """Returns what its mean nodes cost.

        >>> PublishedFleet(278, 226.75, 8).dollars_per_day(2.0)
        87072.0
        """
        return self.mean_nodes * self.gpus_per_node * 24 * price_per_gpu_hour


def _nodes(tokens: float | None, per_s_per_node: float | None) -> float | None:
    return None if tokens is None or per_s_per_node is None else tokens / DAY_S / per_s_per_node
