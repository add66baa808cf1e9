"""Predictive admission: a request that would miss its TTFT anyway is refused at once, with a 429, and slows nobody down."""

from dataclasses import dataclass

from sim.checks import check_not_negative, check_positive


@dataclass(frozen=True)
class Admission:
    """The answer to one request."""

    is_admitted: bool
    predicted_ttft_s: float

    @property
    def http_status(self) -> int:
        """What its client gets: 200 and tokens, or 429 Too Many Requests."""
        return 200 if self.is_admitted else 429


def admit(queued_tokens: float, prompt_tokens: float, prefill_tokens_per_s: float, ttft_s: float) -> Admission:
    """Decides on a request by the TTFT that it would see: the prompts before it and its own, at the replica's prefill rate.

    The caller adds the prompt to the replica's queued tokens if it is admitted. Decodes and caches are left out.

    Args:
        queued_tokens: prompt tokens that wait on the replica.
        prompt_tokens: of the request.
        prefill_tokens_per_s: of the replica; measure it.
        ttft_s: the target; a prediction that just meets it is admitted.

    Source: `admit` of the second text, Queueing.

    >>> admit(8000, 2000, 10_000, 1.0).http_status, admit(8000, 2001, 10_000, 1.0).http_status
    (200, 429)

    Raises:
        ValueError: a number is out of range.
    """
    check_not_negative("queued_tokens", queued_tokens)
    check_positive("prompt_tokens", prompt_tokens)
    check_positive("prefill_tokens_per_s", prefill_tokens_per_s)
    check_positive("ttft_s", ttft_s)
    predicted_ttft_s = (queued_tokens + prompt_tokens) / prefill_tokens_per_s
    return Admission(predicted_ttft_s <= ttft_s, predicted_ttft_s)
