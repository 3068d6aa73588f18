"""The loops of a function.

A loop is a natural loop, as compilers define it: its first instruction (the header) dominates an
instruction that continues to the header. Loops with the same header are one loop. Code that is
entered in the middle (irreducible code) is no loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rtit.annotation.function_code import CodeInstruction
from rtit.x86 import InstructionClass

_ENDS_PATH = frozenset(
    (
        InstructionClass.JUMP,
        InstructionClass.INDIRECT_JUMP,
        InstructionClass.RETURN,
        InstructionClass.FAR_TRANSFER,
    )
)
"""Instructions that never continue to the next instruction in memory."""
_JUMPS = frozenset((InstructionClass.JUMP, InstructionClass.CONDITIONAL))

_Graph = dict[int, list[int]]


@dataclass(frozen=True, slots=True)
class FoundLoop:
    """A loop, by file offset: its first instruction, all its instructions, and those that continue
    to the first. `depth` is 1 for a loop in no other loop.
    """

    header: int
    body: frozenset[int]
    latches: frozenset[int]
    depth: int


def find_loops(
    code: Sequence[CodeInstruction], indirect_targets: Mapping[int, Sequence[int]]
) -> list[FoundLoop]:
    """Return the loops of a function, by header. The entry of the function is `code[0]`.

    `indirect_targets` are the targets (file offsets) of each indirect jump.
    """
    successors = _successors(code, indirect_targets)
    order = _reverse_postorder(successors, code[0].offset)
    predecessors: _Graph = {offset: [] for offset in order}
    for source in order:
        for target in successors[source]:
            predecessors[target].append(source)
    dominators = _immediate_dominators(order, predecessors)
    position = {offset: number for number, offset in enumerate(order)}
    latches: dict[int, set[int]] = {}
    for source in order:
        for target in successors[source]:
            if position[target] <= position[source] and _dominates(
                target, source, dominators, position
            ):
                latches.setdefault(target, set()).add(source)
    bodies = {header: _body(header, each, predecessors) for header, each in latches.items()}
    return [
        FoundLoop(
            header,
            bodies[header],
            frozenset(latches[header]),
            sum(header in body for body in bodies.values()),
        )
        for header in sorted(bodies)
    ]


def _successors(
    code: Sequence[CodeInstruction], indirect_targets: Mapping[int, Sequence[int]]
) -> _Graph:
    known = {each.offset for each in code}
    successors = {}
    for each in code:
        targets = [*indirect_targets.get(each.offset, ())]
        if each.kind in _JUMPS and each.target is not None:
            targets.append(each.target)
        if each.kind not in _ENDS_PATH:
            targets.append(each.end)
        successors[each.offset] = [target for target in dict.fromkeys(targets) if target in known]
    return successors


def _reverse_postorder(successors: _Graph, entry: int) -> list[int]:
    """Return the instructions that are reachable from the entry, each before its successors,
    except along edges back.
    """
    order, seen = [], {entry}
    pending = [(entry, iter(successors[entry]))]
    while pending:
        offset, targets = pending[-1]
        for target in targets:
            if target not in seen:
                seen.add(target)
                pending.append((target, iter(successors[target])))
                break
        else:
            order.append(offset)
            pending.pop()
    return order[::-1]


def _immediate_dominators(order: Sequence[int], predecessors: _Graph) -> dict[int, int]:
    """Return the closest dominator of each instruction (Cooper, Harvey and Kennedy 2001)."""
    position = {offset: number for number, offset in enumerate(order)}
    dominators = {order[0]: order[0]}
    changed = True
    while changed:
        changed = False
        for offset in order[1:]:
            known = [each for each in predecessors[offset] if each in dominators]
            closest = known[0]
            for each in known[1:]:
                other = each
                while closest != other:
                    if position[closest] > position[other]:
                        closest = dominators[closest]
                    else:
                        other = dominators[other]
            if dominators.get(offset) != closest:
                dominators[offset] = closest
                changed = True
    return dominators


def _dominates(
    offset: int, other: int, dominators: Mapping[int, int], position: Mapping[int, int]
) -> bool:
    while position[other] > position[offset]:
        other = dominators[other]
    return other == offset


def _body(header: int, latches: set[int], predecessors: _Graph) -> frozenset[int]:
    body, pending = {header}, [*latches]
    while pending:
        offset = pending.pop()
        if offset not in body:
            body.add(offset)
            pending += predecessors[offset]
    return frozenset(body)
