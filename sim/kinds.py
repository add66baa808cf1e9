"""`kind` chooses a class from a table, or from the user's own module; the other keys are that class's fields."""

import inspect
import json
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, TypeVar

from pydantic import GetJsonSchemaHandler, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from sim.errors import ConfigError
from sim.outside import EXTERNAL, load_external, own_code
from sim.params import Params
from sim.texts import bounded, listed, nearest, unknown_name

OUTSIDE = "package.module:name"
"""The title of such a policy's place in the JSON Schema."""

T = TypeVar("T")


def imported(place: str) -> Any:
    """Returns what stands at `module:name` of our own; the module is imported for it.

    >>> imported("fractions:Fraction")(1, 2)
    Fraction(1, 2)
    """
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


class Kinds(Mapping[str, T]):
    """Maps the kinds of one thing to their classes; one that is given by its place is imported when it is first asked for.

    A config names few of all kinds that there are, and must not wait for the others to be imported.

    Args:
        entries: kind -> the class, or `module:class`.

    >>> numbers = Kinds[type]({"whole": int, "fraction": "fractions:Fraction"})
    >>> numbers["fraction"](1, 2), numbers.kind_of(int), numbers.kind_of(float)
    (Fraction(1, 2), 'whole', None)
    """

    def __init__(self, entries: Mapping[str, T | str]) -> None:
        self._entries = dict(entries)

    def __getitem__(self, kind: str) -> T:
        entry = self._entries[kind]
        return imported(entry) if isinstance(entry, str) else entry

    def __contains__(self, kind: object) -> bool:
        return kind in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def kind_of(self, found: type[Any]) -> str | None:
        """Returns what a class is called in the table, which need not be imported for that; None where it is not in it."""
        place = f"{found.__module__}:{found.__qualname__}"
        return next((kind for kind, entry in self._entries.items() if entry is found or entry == place), None)


class KindOf:
    """Marks a field whose value is one of a table of classes: `traffic: Annotated[Traffic, KindOf("traffic", ...)]`.

    In YAML the field is a mapping: `kind` names the class, the rest are its fields. Errors inside keep their place. Kinds nest:
    a field of such a class may be marked too.

    Args:
        noun: what it is, for messages.
        table: the classes by their names.
        base: what every class derives from, the user's own too.
        takes_word: whether a name of the table alone may stand for `{kind: NAME}`.
    """

    def __init__(self, noun: str, table: Mapping[str, Any], base: type[Params], takes_word: bool = False) -> None:
        self.noun, self.base, self.takes_word = noun, base, takes_word
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
        kind = data.get("kind") if isinstance(data, Mapping) else data if self.takes_word else None
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
        if self.takes_word and isinstance(data, str):
            data = self._of_word(data)
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

    def _of_word(self, word: str) -> dict[str, Any]:
        if word not in self.table:
            text = f"{unknown_name(self.noun, word, self.table)}; one of your own: {{kind: package.module:name, ...}}"
            raise PydanticCustomError("kind", "{text}", {"text": text})
        return {"kind": word}

    def _shares(self, data: Mapping[str, Any]) -> list[tuple[type[Params], dict[str, Any]]]:
        models = self.models(data)
        left = {key: value for key, value in data.items() if key != "kind"}
        shares = []
        for model in models[:-1]:
            shares.append((model, {key: left.pop(key) for key in list(left) if key in model.model_fields}))
        return [*shares, *((model, left) for model in models[-1:])]

    def write(self, value: Any) -> Any:
        """Returns what `parse` would turn into `value`, defaults written out."""
        kind, options = self.table.kind_of(type(value)), value.model_dump(mode="json")
        if kind is None:
            return {"kind": f"{type(value).__module__}:{type(value).__qualname__}", **options}
        return kind if self.takes_word and not options else {"kind": kind, **options}

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(self.write)
        return core_schema.no_info_plain_validator_function(self.parse, serialization=written)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        choices = [self._choice(kind, entry, handler) for kind, entry in self.table.items()]
        external = {"type": "string", "pattern": f"^{EXTERNAL.pattern}$"}
        choices.append({"title": OUTSIDE, "type": "object", "properties": {"kind": external}})
        mappings = [{**choice, "required": ["kind", *choice.get("required", [])]} for choice in choices]
        if self.takes_word:
            return {"anyOf": [{"enum": list(self.table)}, {"oneOf": mappings}]}
        return {"oneOf": mappings}

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
