"""The base of everything that a config can spell: typed once, at the edge."""

from pydantic import BaseModel, ConfigDict


class Params(BaseModel):
    """Parameters of one `kind`, as written in YAML: strict types, no unknown keys, unchanging.

    Every field carries its unit in its name (`_s _tokens _per_s ...`), its meaning in `Field(description=...)` and its
    range in `Field(ge=..., gt=..., le=...)`; the reference page is generated from them. Finite numbers only.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    def __eq__(self, other: object) -> bool:
        """Tells whether its parameters are the same; what has been worked out from them since does not count."""
        return type(self) is type(other) and dict(self) == dict(other)
