"""Small changes to source code, each of which some test should notice."""

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
_QUIET = frozenset(("__repr__", "__str__", "describe"))
"""Functions whose text is for people."""
_SWAPPED = "swap statements"
_CHECKS = re.compile(r"_?(require|addresses|within|check|refuse)")
"""Functions that refuse what their caller got wrong; their order is not promised."""


@dataclass(frozen=True, order=True)
class Mutation:
    """One change: what `kind` does to the node at a place of a module.

    `function` is the dotted name within the module and `text` the node's source, so that a mutation
    can be named without its line; `number` counts those of a function that are alike in these.
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
        """Stays the same when other code moves."""
        name = f"{self.module}:{self.function}: {self.kind}: {self.text}"
        return name if self.number == 1 else f"{name} ({self.number})"


@dataclass
class Effect:
    """The attributes that code loads and stores, by their own name, and the functions it calls."""

    loaded: set[str] = field(default_factory=set)
    stored: set[str] = field(default_factory=set)
    called: set[str] = field(default_factory=set)

    def add(self, other: Effect) -> None:
        self.loaded |= other.loaded
        self.stored |= other.stored

    def conflicts(self, other: Effect) -> bool:
        """Whether it matters which of two comes first."""
        ours, theirs = self.loaded | self.stored, other.loaded | other.stored
        return bool(self.stored & theirs or other.stored & ours)


def effects(sources: Iterable[str]) -> dict[str, Effect]:
    """What each function does, and all that it calls; functions of one name are taken together."""
    found: dict[str, Effect] = {}
    for source in sources:
        tree = ast.parse(source)
        imported = _imported(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                direct = _direct(node, imported)
                known = found.setdefault(node.name, Effect())
                known.add(direct)
                known.called |= direct.called
    before = -1
    while before != (before := sum(len(e.loaded) + len(e.stored) for e in found.values())):
        for each in found.values():
            for name in each.called & found.keys():
                each.add(found[name])
    return found


def mutations(
    module: str, source: str, known: Mapping[str, Effect] | None = None
) -> Iterator[Mutation]:
    """Every mutation of the bodies of the functions in `source`.

    `known` are the effects of all functions that it may call; None: of those in `source`.
    """
    alike: Counter[str] = Counter()
    finder = _Finder(module, effects([source]) if known is None else known)
    for mutation in finder.found_in(ast.parse(source)):
        alike[mutation.name] += 1
        yield replace(mutation, number=alike[mutation.name])


def mutated(mutation: Mutation, source: str) -> ast.Module:
    """The tree of `source` with the mutation in it. Raises ValueError if it is not there."""
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
    """The blocks of statements of a node."""
    for name in ("body", "orelse", "finalbody"):
        statements = getattr(node, name, None)
        if isinstance(statements, list):
            yield statements


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    """The names that are loaded, or stored, in a node."""
    nodes = ast.walk(node)
    return {each.id for each in nodes if isinstance(each, ast.Name) and type(each.ctx) is context}


def _imported(tree: ast.Module) -> set[str]:
    """The names that are modules, or come from one."""
    return {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }


def _direct(code: ast.AST, imported: set[str]) -> Effect:
    """What code does by itself. A method may change its object, and by any way all it is known by
    is its name."""
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


def _can_swap(first: ast.stmt, second: ast.stmt, effect: Effect, other: Effect) -> bool:
    """Whether two statements with these effects can be swapped, and their order may matter."""
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
    def __init__(self, module: str, known: Mapping[str, Effect]) -> None:
        self._module = module
        self._known = known
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
            if node.name in _QUIET:
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
            yield from self._of(node, name)
        for part in parts:
            yield from self._walk(part, name, inside=inside)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            self._bound |= _names(node, ast.Store)

    def _of(self, node: ast.AST, name: str) -> Iterator[Mutation]:
        """Those of the node itself. Without the first value of a name nothing would run."""
        if not isinstance(node, ast.FunctionDef):
            kinds = set(_kinds(node))
            if not _names(node, ast.Store) <= self._bound:
                kinds.discard("drop assignment")
            for kind in sorted(kinds):
                yield self._mutation(node, name, kind)
        for statements in _bodies(node):
            for first, second in pairwise(statements):
                if _can_swap(first, second, self._effect(first), self._effect(second)):
                    yield self._mutation(first, name, _SWAPPED)

    def _effect(self, statement: ast.stmt) -> Effect:
        effect = _direct(statement, self._imported)
        for name in effect.called & self._known.keys():
            effect.add(self._known[name])
        return effect

    def _mutation(self, node: ast.AST, name: str, kind: str) -> Mutation:
        place = (node.lineno, node.col_offset)  # type: ignore[attr-defined]
        return Mutation(self._module, name, kind, ast.unparse(node).splitlines()[0], *place)


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
