"""Kinds of field that pydantic does not have: a word of a certain form, and an entry of a catalogue."""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from sim.params import Params
from sim.texts import bounded

LONGEST_NAME = 100
"""Characters of a name: files are named so."""


class _Word:
    """Marks a text that must match a pattern, with what to say when it does not."""

    def __init__(self, pattern: str, allowed: str) -> None:
        self.pattern, self.allowed = pattern, allowed

    def check(self, text: str) -> str:
        if not re.fullmatch(self.pattern, text):
            raise ValueError(f"must be {self.allowed}, given {bounded(repr(text))}")
        if len(text) > LONGEST_NAME:
            raise ValueError(f"must have at most {LONGEST_NAME} characters, given {len(text):,}: {bounded(text, 40)}")
        return text

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string", "pattern": f"^{self.pattern}$"}


Name = Annotated[str, _Word(r"[A-Za-z0-9][A-Za-z0-9_-]*", "made of letters, digits, _ and -")]
FolderName = Annotated[str, _Word(r"[A-Za-z0-9][A-Za-z0-9_.-]*", "made of letters, digits, _, . and -")]

Percentile = Annotated[str, _Word(r"p\d{1,2}(\.\d+)?", "a percentile such as p50, p99 or p99.9")]


class Catalogued:
    """Marks a field that is given by its name in a catalogue, or in full as a mapping.

    Args:
        look_up: name -> entry; raises ValueError with the nearest name for an unknown one.
        entries: the whole catalogue.
    """

    def __init__(self, look_up: Callable[[str], Params], entries: Callable[[], Mapping[str, Params]]) -> None:
        self.look_up, self.entries = look_up, entries

    def write(self, value: Params) -> Any:
        """Returns the name of what the catalogue knows, the fields of what it does not."""
        names = [name for name, entry in self.entries().items() if entry == value]
        return names[0] if names else value.model_dump(mode="json")

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def parse(value: Any, in_full: core_schema.ValidatorFunctionWrapHandler) -> Any:
            return self.look_up(value) if isinstance(value, str) else in_full(value)

        written = core_schema.plain_serializer_function_ser_schema(self.write)
        return core_schema.no_info_wrap_validator_function(parse, handler(source), serialization=written)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        in_full = handler(schema)
        return {"anyOf": [{"type": "string", "enum": sorted(self.entries())}, in_full]}
