"""A function of the user's own that reads served results, as a config names it."""

from typing import Annotated

from pydantic import Field

from sim.outside import EXTERNAL

Reader = Annotated[str, Field(pattern=EXTERNAL.pattern)]

READER = (
    "`package.module:name` of a function that reads served results in a form of your own: given the file's path, it yields "
    "indices; null = the file is a report or an index"
)
"""What a config says of the key `reader`."""
