"""Mutants of modules in plain Python: cosmic-ray's operators, as far as a change in one place says something of a test.

Of its operators those are taken that change a boundary, a sign, a condition, a number or the way through a loop. Left out are
the other operators in the same place (`a - b` as `a ** b` and `a << b` say no more than as `a + b`), and those that hit
annotations (`int | None`), which fail at import and would count as noticed. cosmic-ray's own runner is not used: it changes the
working tree.
"""

import ast
import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

from tests.mutants.meant import modules, tests_of
from tests.mutants.mutant import Mutant, is_compiled, lines_that_differ

OPERATORS = (
    *(f"ReplaceComparisonOperator_{pair}" for pair in ("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Eq_NotEq", "NotEq_Eq")),
    *(f"ReplaceComparisonOperator_{pair}" for pair in ("Is_IsNot", "IsNot_Is")),
    *(f"ReplaceBinaryOperator_{pair}" for pair in ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Div", "Mod_FloorDiv")),
    *(f"ReplaceUnaryOperator_{pair}" for pair in ("USub_UAdd", "Delete_Not")),
    *("AddNot", "ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "NumberReplacer"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ZeroIterationForLoop"),
)

LARGE = 100.0
"""A number from here on is not changed: one more or less is less than a percent of it."""


class Place(NamedTuple):
    """Where an operator can change a file."""

    file: str  # from the root of the project
    operator: str
    occurrence: int
    tests: tuple[str, ...]


def places(root: Path, only: Sequence[str] = ()) -> list[Place]:
    """Returns where modules can be changed, in order of module, operator and place.

    Args:
        root: of the project.
        only: modules to keep to, by their paths; none = all.
    """
    found = []
    for file in modules(root):
        if not only or file in only:
            nodes = list(ast_nodes(get_ast((root / file).read_text(encoding="utf-8"))))
            found += [Place(file, *where, tests_of(file)) for where in _places_in(nodes)]
    return found


def _places_in(nodes: Sequence[Any]) -> Iterator[tuple[str, int]]:
    """Yields operator and occurrence."""
    for name in OPERATORS:
        operator = get_operator(f"core/{name}")()
        occurrence = itertools.count()
        for node in nodes:
            for _ in operator.mutation_positions(node):
                here = next(occurrence)
                if name != "NumberReplacer" or abs(complex(ast.literal_eval(node.value))) < LARGE:
                    yield name, here


def sample(root: Path, found: Sequence[Place], size: int, seed: int) -> list[Mutant]:
    """Returns the mutants of `size` places, the same for the same seed, in the order of the places.

    A place whose mutant is no Python, or says the same as before, gives way to another.
    """
    order = random.Random(seed).sample(range(len(found)), len(found))
    mutants = ((index, made) for index in order if (made := _mutant(root, found[index])) is not None)
    return [made for _, made in sorted(itertools.islice(mutants, size), key=lambda pair: pair[0])]


def _mutant(root: Path, place: Place) -> Mutant | None:
    source = (root / place.file).read_text(encoding="utf-8")
    changed = mutate_code(source, get_operator(f"core/{place.operator}")(), place.occurrence)
    if changed is None or _parsed(changed) in (None, _parsed(source)):
        return None
    return Mutant(place.file, changed, lines_that_differ(source, changed), place.tests, is_compiled(source))


def _parsed(source: str) -> str | None:
    """What a source says, whatever its spelling; None where it is no Python."""
    try:
        return ast.dump(ast.parse(source))
    except SyntaxError:
        return None
