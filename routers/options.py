"""What a config may set of routers, apart from their code: it is read without compiling anything."""

from pydantic import Field

from sim.limits import MAX_SLOTS
from sim.params import Params


class NoOptions(Params):
    """A router that takes no options."""


class DrawnChoices(Params):
    """How many replicas `power_of_d_choices` looks at."""

    d: int = Field(
        default=2, ge=1, le=MAX_SLOTS, description="Replicas drawn for each request; the least loaded of them gets it."
    )


class VllmClients(Params):
    """What the score of `vllm` needs to know of the deployment."""

    num_clients: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="API servers (`--api-server-count`). Requests come to them in turn, each balances on its own, and knows at "
        "once only what it sent itself; of the others it sees what the last scrape showed.",
    )
