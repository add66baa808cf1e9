"""Checks of a contract: which apply, and running them without a test framework."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import SkipTest

from sim.params import Params

PREFIX = "test_"


class Result(NamedTuple):
    """What became of one check."""

    name: str  # in words
    held: bool | None  # None: it does not apply
    why: str = ""  # it does not hold, or does not apply


def unless(is_free: bool, why: str) -> None:
    """Leaves a check that does not apply; pytest shows it as skipped."""
    if is_free:
        raise SkipTest(why)


def undescribed(params: Params, path: str = "") -> Iterator[str]:
    """Yields the fields without a description, dotted, those of kinds inside too."""
    for name, field in type(params).model_fields.items():
        if not field.description:
            yield f"{path}{name}"
        if isinstance(value := getattr(params, name), Params):
            yield from undescribed(value, f"{path}{name}.")


def results(contract: Any) -> Iterator[Result]:
    """Yields what becomes of each check of a contract, an object of a subclass, in the order in which they are written."""
    names = [name for one in reversed(type(contract).__mro__) for name in vars(one) if name.startswith(PREFIX)]
    for name in dict.fromkeys(names):
        yield _result(name.removeprefix(PREFIX).replace("_", " "), getattr(contract, name))


def _result(name: str, check: Callable[[], None]) -> Result:
    try:
        check()
    except SkipTest as left_out:
        return Result(name, None, str(left_out))
    except Exception as error:
        said = " ".join(str(error).split("\n")[0].split())
        return Result(name, False, said if isinstance(error, AssertionError) else f"{type(error).__name__}: {said}")
    return Result(name, True)
