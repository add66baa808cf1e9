"""`kind` chooses a class from a table, or from the user's own module; the other keys are that class's fields."""

import inspect
import json
from collections.abc import Mapping
from typing import Any

from pydantic import GetJsonSchemaHandler, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from experiments.settings.outside import EXTERNAL, load_external, own_code
from experiments.settings.texts import bounded, listed, nearest, unknown_name
from sim.errors import ConfigError
from sim.kinds import Kinds
from sim.params import Params

OUTSIDE = "package.module:name"
"""The title of such a policy's place in the JSON Schema."""


class KindOf:
    """Marks a field whose value is one of a table of classes: `traffic: Annotated[Traffic, KindOf("traffic", ...)]`.

    In YAML the field is a mapping: `kind` names the class, the rest are its fields. Errors inside keep their place.
    """

    def __init__(self, noun: str, table: Mapping[str, Any], base: type[Params]) -> None:
        self.noun, self.base = noun, base
        self.table = table if isinstance(table, Kinds) else Kinds(table)

    def parts(self, entry: Any) -> list[type[Params]]:
        """Returns the classes that share the keys of a table's entry; unknown keys are the last one's mistake."""
        return [entry]

    def build(self, kind: str, values: list[Params]) -> Any:
        """Returns the field's value, made of one valid object for each of the parts."""
        return values[0]

    def meaning(self, entry: Any) -> str:
        """Returns what a table's entry says of itself, for the reference."""
        return inspect.cleandoc(entry.__doc__ or "")

    def check(self, entry: Any) -> Any:
        """Returns what an outside module offers, as an entry of the table.

        Raises:
            ValueError: it does not fit.
        """
        if not (isinstance(entry, type) and issubclass(entry, self.base)):
            raise ValueError(f"is not a subclass of {self.base.__module__}.{self.base.__name__}")
        if inspect.isabstract(entry):
            raise ValueError(f"lacks {', '.join(sorted(entry.__abstractmethods__))}, which every {self.noun} has")
        return entry

    def look_up(self, kind: object) -> Any:
        """Returns the entry called `kind`.

        Raises:
            ValueError: no such name in the table, or nothing fitting at `package.module:name`.
        """
        if not isinstance(kind, str):
            raise ValueError(f"must be a word, given {bounded(repr(kind))}; known: {listed(sorted(self.table))}")
        if kind in self.table:
            return self.table[kind]
        if not EXTERNAL.fullmatch(kind):
            raise ValueError(unknown_name(self.noun, kind, self.table))
        try:
            return self.check(load_external(kind))
        except ValueError as error:
            raise ValueError(f"'{bounded(kind)}': {error}") from error

    def models(self, data: object) -> list[type[Params]]:
        """Returns the classes whose fields the mapping `data` may hold; a misspelled kind counts as the nearest one."""
        kind = data.get("kind") if isinstance(data, Mapping) else None
        try:
            return self.parts(self.look_up(kind))
        except ValueError:
            match = nearest(kind, self.table) if isinstance(kind, str) else None
            return self.parts(self.table[match]) if match else []

    def parse(self, data: object) -> Any:
        """Turns a mapping into the object it describes, an object into itself.

        Raises:
            ValidationError: with every mistake in its place, the kind's own included.
        """
        if isinstance(data, self.base):
            return data
        if not isinstance(data, Mapping):
            example = f"such as {{kind: {next(iter(self.table), '...')}, ...}}"
            text = f"must be a mapping {example}, given {bounded(repr(data))}"
            raise PydanticCustomError("mapping", "{text}", {"text": text})
        mistakes = []
        if "kind" not in data:
            known = listed(sorted(self.table))
            mistakes.append(_mistake("kind", f"missing; it chooses the {self.noun}, one of: {known}", None))
        else:
            try:
                self.look_up(data["kind"])
            except ValueError as error:
                mistakes.append(_mistake("kind", str(error), data["kind"]))
        values = []
        for model, fields in self._shares(data):
            try:
                with own_code(model):
                    values.append(model.model_validate_json(json.dumps(fields)))
            except ValidationError as error:
                mistakes.extend(_again(error))
            except ConfigError as error:
                mistakes.append(_mistake("kind", str(error), data.get("kind")))
        if mistakes:
            raise ValidationError.from_exception_data(self.noun, mistakes)
        return self.build(data["kind"], values)

    def _shares(self, data: Mapping[str, Any]) -> list[tuple[type[Params], dict[str, Any]]]:
        models = self.models(data)
        left = {key: value for key, value in data.items() if key != "kind"}
        shares = []
        for model in models[:-1]:
            shares.append((model, {key: left.pop(key) for key in list(left) if key in model.model_fields}))
        return [*shares, *((model, left) for model in models[-1:])]

    def write(self, value: Any) -> dict[str, Any]:
        """Returns the mapping that `parse` would turn into `value`, defaults written out."""
        kind = self.table.kind_of(type(value)) or f"{type(value).__module__}:{type(value).__qualname__}"
        return {"kind": kind, **value.model_dump(mode="json")}

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(self.write)
        return core_schema.no_info_plain_validator_function(self.parse, serialization=written)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        choices = [self._choice(kind, entry, handler) for kind, entry in self.table.items()]
        external = {"type": "string", "pattern": f"^{EXTERNAL.pattern}$"}
        choices.append({"title": OUTSIDE, "type": "object", "properties": {"kind": external}})
        return {"oneOf": [{**choice, "required": ["kind", *choice.get("required", [])]} for choice in choices]}

    def _choice(self, kind: str, entry: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        properties: JsonSchemaValue = {"kind": {"const": kind}}
        required = []
        for model in self.parts(entry):
            schema = handler.resolve_ref_schema(handler(model.__pydantic_core_schema__))
            properties.update(schema.get("properties", {}))
            required += schema.get("required", [])
        return {
            "title": kind,
            "description": self.meaning(entry),
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }


def _mistake(key: str, text: str, given: object) -> InitErrorDetails:
    """One error in the form that pydantic merges into the errors around it; braces in the text are taken literally."""
    kind = PydanticCustomError("kind", "{text}", {"text": text})
    return InitErrorDetails(type=kind, loc=(key,), input=given)


def _again(error: ValidationError) -> list[InitErrorDetails]:
    """The errors of one validation, ready to be raised as part of another."""
    details = []
    for line in error.errors(include_url=False):
        kind: Any = line["type"]
        again = PydanticCustomError(kind, "{text}", {**line.get("ctx", {}), "text": line["msg"]})
        details.append(InitErrorDetails(type=again, loc=line["loc"], input=line["input"]))
    return details
