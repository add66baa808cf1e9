"""The traces of Azure's LLM inference services, as published."""

from typing import ClassVar

from traces.recorded import Columns, Recorded


class Azure(Recorded):
    """Replays a file of AzurePublicDataset: `TIMESTAMP,ContextTokens,GeneratedTokens`, 2023 or 2024.

    The stamps of 2023 have seven fraction digits and no zone, those of 2024 `+00:00` and no fraction on whole seconds;
    both are UTC.

    Source: Patel et al. (2024), Splitwise; Stojkovic et al. (2025), DynamoLLM. Licence CC-BY.
    """

    where_to_get: ClassVar[str] = (
        "set traffic.path to where it is; the traces are in https://github.com/Azure/AzurePublicDataset "
        "(folder data; the README there links the files of 2024)"
    )

    @property
    def layout(self) -> Columns:
        """The published columns."""
        return Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens", None, "iso8601")
