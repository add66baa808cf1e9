"""`kind` chooses a class from a table, or from the user's own module; the other keys are that class's fields."""

import difflib
import importlib
import inspect
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import GetJsonSchemaHandler, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from sim.params import Params

EXTERNAL = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""How a policy from outside is named: `package.module:name`."""

OUTSIDE = "package.module:name"
"""The title of such a policy's place in the JSON Schema."""


def nearest(given: object, known: Iterable[str]) -> str | None:
    """Returns the known word that `given` most likely stands for, or None.

    >>> nearest("forcast", ["fixed", "forecast", "queue_target"])
    'forecast'
    >>> nearest("zzz", ["fixed", "forecast"]) is None
    True
    """
    words = {word.lower().replace("-", "_"): word for word in known}
    plain = str(given).strip().lower().replace("-", "_").replace(" ", "_")
    matches = difflib.get_close_matches(plain, words, n=1, cutoff=0.6)
    return words[matches[0]] if matches else None


def unknown_name(noun: str, given: object, known: Iterable[str]) -> str:
    """Returns the sentence for a name that is not in a table.

    >>> unknown_name("autoscaler", "forcast", ["fixed", "forecast"])
    "no autoscaler named 'forcast'; did you mean 'forecast'? known: fixed, forecast"
    """
    known = sorted(known)
    match = nearest(given, known)
    hint = f"did you mean '{match}'? " if match else ""
    return f"no {noun} named '{given}'; {hint}known: {', '.join(known)}"


def load_external(name: str) -> Any:
    """Imports `package.module:name`; modules in the current folder are found too.

    Raises:
        ValueError: the module or the name in it is missing, or the module fails to import.
    """
    module_name, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())  # stays, so that what the module imports later is found as well
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = "" if error.name == module_name else f" (it needs '{error.name}')"
        raise ValueError(f"cannot import '{module_name}'{missing}; looked in {os.getcwd()} and on sys.path") from error
    except Exception as error:
        raise ValueError(f"importing '{module_name}' failed: {type(error).__name__}: {error}") from error
    if not hasattr(module, attribute):
        public = [word for word in vars(module) if not word.startswith("_")]
        match = nearest(attribute, public)
        hint = f"; did you mean '{match}'?" if match else ""
        raise ValueError(f"module '{module_name}' has no '{attribute}'{hint}")
    return getattr(module, attribute)


class KindOf:
    """Marks a field whose value is one of a table of classes: `traffic: Annotated[Traffic, KindOf("traffic", ...)]`.

    In YAML the field is a mapping: `kind` names the class, the rest are its fields. Errors inside keep their place.
    """

    def __init__(self, noun: str, table: Mapping[str, Any], base: type[Params]) -> None:
        self.noun, self.table, self.base = noun, table, base

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
        return entry

    def look_up(self, kind: object) -> Any:
        """Returns the entry called `kind`.

        Raises:
            ValueError: no such name in the table, or nothing fitting at `package.module:name`.
        """
        if not isinstance(kind, str):
            raise ValueError(f"must be a word, given {kind!r}; known: {', '.join(sorted(self.table))}")
        if kind in self.table:
            return self.table[kind]
        if not EXTERNAL.fullmatch(kind):
            raise ValueError(unknown_name(self.noun, kind, self.table))
        try:
            return self.check(load_external(kind))
        except ValueError as error:
            raise ValueError(f"'{kind}': {error}") from error

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
            raise PydanticCustomError("mapping", "{text}", {"text": f"must be a mapping {example}, given {data!r}"})
        mistakes = []
        if "kind" not in data:
            known = ", ".join(sorted(self.table))
            mistakes.append(_mistake("kind", f"missing; it chooses the {self.noun}, one of: {known}", None))
        else:
            try:
                self.look_up(data["kind"])
            except ValueError as error:
                mistakes.append(_mistake("kind", str(error), data["kind"]))
        values = []
        for model, fields in self._shares(data):
            try:
                values.append(model.model_validate_json(json.dumps(fields)))
            except ValidationError as error:
                mistakes.extend(_again(error))
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
        kinds = [kind for kind, model in self.table.items() if model is type(value)]
        kind = kinds[0] if kinds else f"{type(value).__module__}:{type(value).__qualname__}"
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
