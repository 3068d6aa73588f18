"""Small changes to Python code; some test should notice each."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_TEXT_FUNCTIONS = frozenset(("__repr__", "__str__", "describe"))
"""Functions that return text for users."""
_SWAPPED = "swap statements"
_CHECKS = re.compile(r"_?(require|addresses|within|check|refuse)")
"""Functions that check arguments of the caller; their order is not promised."""


@dataclass(frozen=True, order=True)
class Mutation:
    """One change: `kind` names the change of a node of a module.

    `function` is the dotted name within the module, and `text` the source of the node, so that
    the name of a mutation does not depend on its line; `number` counts equal ones in a
    function.
    """

    module: str
    function: str
    kind: str
    text: str
    line: int
    column: int
    number: int = 1

    @property
    def name(self) -> str:
        """Name that stays the same when other code moves."""
        name = f"{self.module}:{self.function}: {self.kind}: {self.text}"
        return name if self.number == 1 else f"{name} ({self.number})"


@dataclass
class Effect:
    """The attributes that code loads and stores, by name, and the functions that it calls."""

    loaded: set[str] = field(default_factory=set)
    stored: set[str] = field(default_factory=set)
    called: set[str] = field(default_factory=set)

    def add(self, other: Effect) -> None:
        self.loaded |= other.loaded
        self.stored |= other.stored

    def conflicts(self, other: Effect) -> bool:
        """Return whether the order of both effects matters."""
        ours, theirs = self.loaded | self.stored, other.loaded | other.stored
        return bool(self.stored & theirs or other.stored & ours)


def effects(sources: Iterable[str]) -> dict[str, Effect]:
    """Return the effect of each function, including its calls; functions of one name are
    merged.
    """
    found: dict[str, Effect] = {}
    for source in sources:
        tree = ast.parse(source)
        imported = _imported(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                direct = _direct_effect(node, imported)
                effects_by_name = found.setdefault(node.name, Effect())
                effects_by_name.add(direct)
                effects_by_name.called |= direct.called
    before = -1
    while before != (before := sum(len(e.loaded) + len(e.stored) for e in found.values())):
        for each in found.values():
            for name in each.called & found.keys():
                each.add(found[name])
    return found


def mutations(
    module: str, source: str, effects_by_name: Mapping[str, Effect] | None = None
) -> Iterator[Mutation]:
    """Yield every mutation of the function bodies in `source`.

    `effects_by_name` are the effects of all functions that the source may call; by default
    those in `source`.
    """
    occurrences: Counter[str] = Counter()
    finder = _Finder(module, effects([source]) if effects_by_name is None else effects_by_name)
    for mutation in finder.found_in(ast.parse(source)):
        occurrences[mutation.name] += 1
        yield replace(mutation, number=occurrences[mutation.name])


def mutated(mutation: Mutation, source: str) -> ast.Module:
    """Return the tree of `source` with the mutation. Raises ValueError if the node is not
    there.
    """
    tree = ast.parse(source)
    changer = _Changer(mutation)
    changer.visit(tree)  # in place: no mutation is of the module itself
    if not changer.done:
        raise ValueError(f"no such place: {mutation.name}")
    return ast.fix_missing_locations(tree)


def _kinds(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield "swap"
    elif isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp):
        if type(node.op) in SWAPS:
            yield "swap"
        if isinstance(node, ast.AugAssign):
            yield "drop assignment"
        if isinstance(node, ast.BoolOp):
            yield from (f"drop operand {number}" for number in range(1, len(node.values) + 1))
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        if node.value is not None:
            yield "drop assignment"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "drop not"
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield "flip"
        elif isinstance(node.value, int):
            yield "add one"
    elif isinstance(node, ast.If | ast.IfExp):
        yield "negate"
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "drop call"


def _bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the blocks of statements of a node."""
    for name in ("body", "orelse", "finalbody"):
        statements = getattr(node, name, None)
        if isinstance(statements, list):
            yield statements


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    """Return the names that a node loads, or stores."""
    nodes = ast.walk(node)
    return {each.id for each in nodes if isinstance(each, ast.Name) and type(each.ctx) is context}


def _imported(tree: ast.Module) -> set[str]:
    """Return the names that the module imports."""
    return {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }


def _direct_effect(code: ast.AST, imported: set[str]) -> Effect:
    """Return the effect of code without that of its calls.

    A method may change its object, which may be known by several names.
    """
    effect = Effect()
    for node in ast.walk(code):
        if isinstance(node, ast.Attribute):
            into = effect.loaded if isinstance(node.ctx, ast.Load) else effect.stored
            into.add(node.attr)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            effect.called.add(node.func.id)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            effect.called.add(node.func.attr)
            base = node.func.value
            if not (isinstance(base, ast.Name) and base.id in imported):
                effect.stored.add(node.func.attr)
                if isinstance(base, ast.Attribute):
                    effect.stored.add(base.attr)
    return effect


def _is_call(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)


def _is_check(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    return bool(_CHECKS.match(ast.unparse(statement.value.func).split(".")[-1]))


def _is_swap_relevant(first: ast.stmt, second: ast.stmt, effect: Effect, other: Effect) -> bool:
    """Return whether two statements with these effects can be swapped, and their order may
    matter.
    """
    both = (first, second)
    if not all(_is_call(each) or isinstance(each, ast.Assign | ast.AugAssign) for each in both):
        return False
    if ast.dump(first) == ast.dump(second):
        return False
    if _names(first, ast.Store) & (_names(second, ast.Load) | _names(second, ast.Store)):
        return False  # a name that the second needs would not be bound
    if _is_check(first) and _is_check(second):
        return False
    if _is_check(first) or _is_check(second):
        # Nothing may have changed when a check fails.
        change = other if _is_check(first) else effect
        return bool(change.stored)
    return effect.conflicts(other)


class _Finder:
    def __init__(self, module: str, effects_by_name: Mapping[str, Effect]) -> None:
        self._module = module
        self._known = effects_by_name
        self._imported: set[str] = set()
        self._bound: set[str] = set()

    def found_in(self, tree: ast.Module) -> Iterator[Mutation]:
        self._imported = _imported(tree)
        yield from self._walk(tree, "", inside=False)

    def _walk(self, node: ast.AST, name: str, *, inside: bool) -> Iterator[Mutation]:
        if isinstance(node, ast.ClassDef):
            parts: list[ast.AST] = list(node.body)
            name = f"{name}.{node.name}".lstrip(".")
        elif isinstance(node, ast.FunctionDef):
            if node.name in _TEXT_FUNCTIONS:
                return
            parts = list(node.body)
            name, inside = f"{name}.{node.name}".lstrip("."), True
            self._bound = {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
        elif isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr):
            return
        elif isinstance(node, ast.AnnAssign):
            parts = [node.value] if node.value is not None else []
        else:
            parts = list(ast.iter_child_nodes(node))
        if inside:
            yield from self._mutations_of_node(node, name)
        for part in parts:
            yield from self._walk(part, name, inside=inside)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            self._bound |= _names(node, ast.Store)

    def _mutations_of_node(self, node: ast.AST, name: str) -> Iterator[Mutation]:
        """Yield the mutations of the node itself.

        The first assignment of a name is kept: without it nothing would run.
        """
        if not isinstance(node, ast.FunctionDef):
            kinds = set(_kinds(node))
            if not _names(node, ast.Store) <= self._bound:
                kinds.discard("drop assignment")
            for kind in sorted(kinds):
                yield self._mutation(node, name, kind)
        for statements in _bodies(node):
            for first, second in pairwise(statements):
                if _is_swap_relevant(first, second, self._effect(first), self._effect(second)):
                    yield self._mutation(first, name, _SWAPPED)

    def _effect(self, statement: ast.stmt) -> Effect:
        effect = _direct_effect(statement, self._imported)
        for name in effect.called & self._known.keys():
            effect.add(self._known[name])
        return effect

    def _mutation(self, node: ast.AST, name: str, kind: str) -> Mutation:
        position = (node.lineno, node.col_offset)  # type: ignore[attr-defined]
        return Mutation(self._module, name, kind, ast.unparse(node).splitlines()[0], *position)


class _Changer(ast.NodeTransformer):
    def __init__(self, mutation: Mutation) -> None:
        self._mutation = mutation
        self.done = False

    def visit(self, node: ast.AST) -> ast.AST:
        if self._mutation.kind == _SWAPPED:
            self._swap_in(node)
        elif not self.done and self._is_at(node) and self._mutation.kind in _kinds(node):
            self.done = True
            return _changed(node, self._mutation.kind)
        visited: ast.AST = super().generic_visit(node)
        return visited

    def _is_at(self, node: ast.AST) -> bool:
        wanted = self._mutation
        here = (getattr(node, "lineno", None), getattr(node, "col_offset", None))
        there = (wanted.line, wanted.column)
        return here == there and ast.unparse(node).splitlines()[0] == wanted.text

    def _swap_in(self, node: ast.AST) -> None:
        for statements in _bodies(node):
            for index, (first, second) in enumerate(pairwise(statements)):
                if not self.done and self._is_at(first):
                    statements[index : index + 2] = [second, first]
                    self.done = True


def _changed(node: ast.AST, kind: str) -> ast.AST:
    changed: ast.AST = node
    if kind.startswith("drop operand") and isinstance(node, ast.BoolOp):
        del node.values[int(kind.rsplit(maxsplit=1)[-1]) - 1]
        changed = node if len(node.values) > 1 else node.values[0]
    elif kind in ("drop assignment", "drop call"):
        changed = ast.Pass()
    elif isinstance(node, ast.Compare):
        node.ops = [SWAPS[type(node.ops[0])]()]  # type: ignore[list-item]
    elif isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp):
        node.op = SWAPS[type(node.op)]()  # type: ignore[assignment]
    elif isinstance(node, ast.UnaryOp):
        changed = node.operand
    elif isinstance(node, ast.Constant):
        flipped = not node.value if isinstance(node.value, bool) else int(str(node.value)) + 1
        changed = ast.Constant(flipped)
    elif isinstance(node, ast.If | ast.IfExp):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    return ast.copy_location(changed, node)
