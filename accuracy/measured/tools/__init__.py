"""Reports of load generators, one module a tool: what it sent, and what it measured."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from accuracy.measured.tools import aiperf, guidellm, inference_perf, sglang_bench, vllm_bench
from accuracy.measured.tools.report import Report


class Tool(Protocol):
    """The reader of one tool's reports."""

    NAME: str
    KEYS: tuple[str, ...]

    def read(self, report: Mapping[str, Any]) -> Iterator[Report]:
        """Yields what a report of this tool says, load by load.

        Raises:
            KeyError: a key is missing.
            ValueError: it says nothing that could be simulated.
        """


TOOLS: tuple[Tool, ...] = (sglang_bench, vllm_bench, inference_perf, guidellm, aiperf)  # type: ignore[assignment]
"""In this order: SGLang's reports have all keys of vLLM's."""


def tool_of(report: object) -> Tool | None:
    """Returns the tool that has written a report; None where none is known to write such."""
    if not isinstance(report, Mapping):
        return None
    return next((tool for tool in TOOLS if all(key in report for key in tool.KEYS)), None)


def known() -> str:
    """Names the tools, and the keys by which their reports are told apart."""
    names = [f"{tool.NAME} ({', '.join(tool.KEYS)})" for tool in (vllm_bench, inference_perf, guidellm, aiperf, sglang_bench)]
    return f"known are {', '.join(names[:-1])} and {names[-1]}"
