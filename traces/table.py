"""Any table of requests."""

from typing import Literal

from pydantic import Field

from sim.params import Params
from traces.recorded import Columns, Recorded


class ColumnMap(Params):
    """The names that a file gives to what a request needs."""

    arrived_at: str = Field(default="arrived_at_s", description="Column of the arrival instants.")
    num_prompt_tokens: str = Field(default="num_prompt_tokens", description="Column of the prompt lengths, in tokens.")
    num_output_tokens: str = Field(default="num_output_tokens", description="Column of the output lengths, in tokens.")
    class_name: str | None = Field(default=None, description="Column of the request's class; null: one class.")


class Table(Recorded):
    """Replays any CSV or Parquet file that has a row for each request; a run's own requests.parquet is one."""

    columns: ColumnMap = Field(default_factory=ColumnMap, description="Which column holds what.")
    time_unit: Literal["s", "ms", "us", "ns", "iso8601"] = Field(
        description="Unit of the arrival instants; iso8601 for dates such as 2024-05-10 00:00:00.25+00:00 (without a "
        "zone: UTC). Only differences count: instants may start anywhere."
    )

    @property
    def layout(self) -> Columns:
        """The columns as configured."""
        columns = self.columns
        return Columns(
            columns.arrived_at, columns.num_prompt_tokens, columns.num_output_tokens, columns.class_name, self.time_unit
        )
