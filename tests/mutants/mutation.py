"""Small changes to source code, each of which some test should notice."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

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


def mutations(module: str, source: str) -> Iterator[Mutation]:
    """Every mutation of the bodies of the functions in `source`."""
    alike: Counter[str] = Counter()
    for mutation in _Finder(module).found_in(ast.parse(source)):
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


class _Finder:
    def __init__(self, module: str) -> None:
        self._module = module

    def found_in(self, tree: ast.Module) -> Iterator[Mutation]:
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
        elif isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr):
            return
        elif isinstance(node, ast.AnnAssign):
            parts = [node.value] if node.value is not None else []
        else:
            parts = list(ast.iter_child_nodes(node))
        if inside:
            for kind in _kinds(node):
                place = (node.lineno, node.col_offset)  # type: ignore[attr-defined]
                text = ast.unparse(node).splitlines()[0]
                yield Mutation(self._module, name, kind, text, *place)
        for part in parts:
            yield from self._walk(part, name, inside=inside)


class _Changer(ast.NodeTransformer):
    def __init__(self, mutation: Mutation) -> None:
        self._mutation = mutation
        self.done = False

    def visit(self, node: ast.AST) -> ast.AST:
        wanted = self._mutation
        here = (getattr(node, "lineno", None), getattr(node, "col_offset", None))
        if (
            not self.done
            and here == (wanted.line, wanted.column)
            and wanted.kind in _kinds(node)
            and ast.unparse(node).splitlines()[0] == wanted.text
        ):
            self.done = True
            return _changed(node)
        visited: ast.AST = super().generic_visit(node)
        return visited


def _changed(node: ast.AST) -> ast.AST:
    changed: ast.AST = node
    if isinstance(node, ast.Compare):
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
    else:
        changed = ast.Pass()
    return ast.copy_location(changed, node)
