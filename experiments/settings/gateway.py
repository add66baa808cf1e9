"""The `gateway` section of a config: who may send how much, and who is turned away before it costs anybody a token."""

from pydantic import Field

from sim.params import Params


class RateLimit(Params):
    """A token bucket: a request reserves prompt and longest answer when it comes, and gives back what it did not use."""

    tokens_per_s: float = Field(gt=0, description="Prompt and output tokens a second that the class may use in the long run")
    capacity_tokens: float = Field(
        gt=0, description="The largest burst; a request that may take more than this is always turned away"
    )


class Admission(Params):
    """Turns away who would miss a TTFT anyway, and so slows nobody down.

    The prediction: prompts that wait on the replica that the router chose, as it sees them, and the own one, at a stated rate.
    """

    ttft_s: float = Field(gt=0, description="Longest predicted time to first token, in seconds; a longer one is turned away")
    prefill_tokens_per_s: float = Field(gt=0, description="Prompt tokens a second that a replica computes; measure it")


class Gateway(Params):
    """The door to the fleet. Who is turned away gets a 429: `rejected`, with the reason `rate_limit` or `predicted_ttft`."""

    rate_limits: dict[str, RateLimit] = Field(
        default={}, description="By request class: {chat: {tokens_per_s: 50000, capacity_tokens: 200000}}"
    )
    admission: Admission | None = Field(
        default=None, description="Admission by predicted TTFT: {ttft_s: 1.0, prefill_tokens_per_s: 20000}; null = all"
    )

    def bucket(self, name: str) -> tuple[float, float, float, float]:
        """Returns the BUCKET of a class: it starts full; without a limit it is all 0."""
        limit = self.rate_limits.get(name)
        return (limit.tokens_per_s, limit.capacity_tokens, limit.capacity_tokens, 0.0) if limit else (0.0, 0.0, 0.0, 0.0)

    @property
    def admitted(self) -> tuple[float, float]:
        """CLASS.admitted_ttft_s and prefill_tokens_per_s."""
        return (self.admission.ttft_s, self.admission.prefill_tokens_per_s) if self.admission else (0.0, 0.0)


OPEN = Gateway()
"""Lets everything in."""
