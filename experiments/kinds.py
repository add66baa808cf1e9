"""`kind` chooses a class from a table, or from the user's own module; the other keys are that class's fields."""

import difflib
import importlib
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, GetJsonSchemaHandler, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from sim.params import Params

EXTERNAL = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""How a policy from outside is named: `package.module:name`."""


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

    def __init__(self, noun: str, table: Mapping[str, type[Params]], base: type[Params]) -> None:
        self.noun, self.table, self.base = noun, table, base

    def choose(self, kind: object) -> type[Params]:
        """Returns the class called `kind`.

        Raises:
            ValueError: no such name in the table, or nothing fitting at `package.module:Class`.
        """
        if isinstance(kind, str) and kind in self.table:
            return self.table[kind]
        if not isinstance(kind, str):
            raise ValueError(f"must be a word, given {kind!r}; known: {', '.join(sorted(self.table))}")
        if not EXTERNAL.fullmatch(kind):
            raise ValueError(unknown_name(self.noun, kind, self.table))
        found = load_external(kind)
        if not (isinstance(found, type) and issubclass(found, self.base)):
            raise ValueError(f"'{kind}' is not a subclass of {self.base.__module__}.{self.base.__name__}")
        return found

    def models(self, data: object) -> list[type[BaseModel]]:
        """Returns the classes whose fields the mapping `data` may hold; a misspelled kind counts as the nearest one."""
        kind = data.get("kind") if isinstance(data, Mapping) else None
        try:
            return [self.choose(kind)]
        except ValueError:
            match = nearest(kind, self.table) if isinstance(kind, str) else None
            return [self.table[match]] if match else []

    def parse(self, data: object) -> Any:
        """Turns a mapping into the object it describes, an object into itself.

        Raises:
            ValidationError: with every mistake in its place, the kind's own included.
        """
        if isinstance(data, self.base):
            return data
        if not isinstance(data, Mapping):
            example = f"such as {{kind: {next(iter(self.table), '...')}, ...}}"
            raise PydanticCustomError("mapping", "must be a mapping {example}", {"example": example})
        fields = {key: value for key, value in data.items() if key != "kind"}
        mistakes: list[InitErrorDetails] = []
        try:
            chosen = [self.choose(data["kind"])]
        except KeyError:
            known = ", ".join(sorted(self.table))
            mistakes.append(_mistake("kind", f"missing; it chooses the {self.noun}. known: {known}", None))
            chosen = []
        except ValueError as error:
            mistakes.append(_mistake("kind", str(error), data["kind"]))
            chosen = [model for model in self.models(data) if issubclass(model, Params)]
        value = None
        for model in chosen:
            try:
                value = model.model_validate_json(json.dumps(fields))
            except ValidationError as error:
                mistakes.extend(_again(error))
        if mistakes:
            raise ValidationError.from_exception_data(self.noun, mistakes)
        return value

    def write(self, value: Params) -> dict[str, Any]:
        """Returns the mapping that `parse` would turn into `value`, defaults written out."""
        kinds = [kind for kind, model in self.table.items() if model is type(value)]
        kind = kinds[0] if kinds else f"{type(value).__module__}:{type(value).__qualname__}"
        return {"kind": kind, **value.model_dump(mode="json")}

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(self.write)
        return core_schema.no_info_plain_validator_function(self.parse, serialization=written)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        choices = [self._choice(kind, model, handler) for kind, model in self.table.items()]
        external = {"pattern": f"^{EXTERNAL.pattern}$", "type": "string", "description": "your own class"}
        choices.append({"type": "object", "title": "pkg.module:Class", "properties": {"kind": external}})
        return {"oneOf": [{**choice, "required": ["kind", *choice.get("required", [])]} for choice in choices]}

    def _choice(self, kind: str, model: type[Params], handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = dict(handler.resolve_ref_schema(handler(model.__pydantic_core_schema__)))
        return {**schema, "title": kind, "properties": {"kind": {"const": kind}, **schema.get("properties", {})}}


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
