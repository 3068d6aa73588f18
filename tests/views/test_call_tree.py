"""Call trees by function, by caller, and as folded stacks, from trees made by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from rtit.errors import UsageError
from rtit.trace.tables.call_tree import CallKind, CallTree, RootKind, join_call_trees
from rtit.views import call_tree
from rtit.views.call_tree import (
    FunctionNode,
    call_tree_json,
    count_each_path_once,
    folded_stacks,
    merge_callers,
    merge_functions,
    walk_tree,
)

Row = tuple[int, str, CallKind, int, int, int]
"""Parent, function, kind, calls, own instructions, and those with callees."""
Nested = dict[str, tuple[int, int, int, "Nested"]]
"""Calls, own and total of each node, and its children."""

ROOT, CALL, SIGNAL = CallKind.ROOT, CallKind.CALL, CallKind.SIGNAL


def make_tree(rows: Sequence[Row], tid: int = 7, root: RootKind = RootKind.START) -> CallTree:
    names = list(dict.fromkeys(row[1] for row in rows))
    columns = list(zip(*rows, strict=True))
    tree = CallTree(
        np.array(columns[0], np.int32),
        np.array([names.index(name) for name in columns[1]], np.uint32),
        np.array(columns[2], np.uint8),
        np.array([root if row[2] == ROOT else RootKind.NOT_A_ROOT for row in rows], np.uint8),
        np.arange(len(rows), dtype=np.uint64),
        np.arange(len(rows), dtype=np.uint64),
        *(np.array(column, np.uint64) for column in columns[3:]),
        np.zeros(len(rows), np.uint8),
        np.full(len(rows), tid, np.int32),
        *np.zeros((2, len(rows)), np.uint32),
    )
    return tree.replace(functions=names, modules=["/bin/program"])


def nested(node: FunctionNode) -> Nested:
    return {
        name: (each.calls, each.own, each.total, nested(each))
        for name, each in node.children.items()
    }


# main calls work from two lines, and each of them calls leaf; work also calls itself.
TWO_SITES = [
    (-1, "main", ROOT, 1, 10, 200),
    (0, "work", CALL, 2, 20, 70),
    (1, "leaf", CALL, 4, 50, 50),
    (0, "work", CALL, 3, 30, 120),
    (3, "leaf", CALL, 5, 60, 60),
    (3, "work", CALL, 6, 25, 30),
    (5, "leaf", CALL, 7, 5, 5),
]


def test_calls_from_two_lines_of_a_function_are_one_node() -> None:
    root = merge_functions(make_tree(TWO_SITES))
    assert root.total == 200
    inner: Nested = {"work": (6, 25, 30, {"leaf": (7, 5, 5, {})}), "leaf": (9, 110, 110, {})}
    assert nested(root) == {"main": (1, 10, 200, {"work": (5, 50, 190, inner)})}


def test_tree_of_a_function_has_its_outermost_calls_as_roots() -> None:
    root = merge_functions(make_tree(TWO_SITES), "work")
    assert root.total == 190
    inner: Nested = {"work": (6, 25, 30, {"leaf": (7, 5, 5, {})}), "leaf": (9, 110, 110, {})}
    assert nested(root) == {"work": (5, 50, 190, inner)}


def test_signal_handler_counts_for_the_whole_but_not_for_the_interrupted_function() -> None:
    rows = [(-1, "main", ROOT, 1, 10, 10), (0, "handler", SIGNAL, 2, 6, 6)]
    root = merge_functions(make_tree(rows))
    assert root.total == 16
    assert nested(root) == {"main": (1, 10, 10, {"handler [signal]": (2, 6, 6, {})})}


def test_root_with_an_unknown_caller_has_a_node_of_its_own() -> None:
    started = make_tree([(-1, "work", ROOT, 1, 10, 10)])
    lost = make_tree([(-1, "work", ROOT, 1, 20, 20)], root=RootKind.AFTER_LOSS)
    root = merge_functions(join_call_trees([started, lost]))
    assert nested(root) == {
        "work": (1, 10, 10, {}),
        "work [after lost packets]": (1, 20, 20, {}),
    }


def test_threads_with_titles_have_a_node_each() -> None:
    rows = [(-1, "main", ROOT, 1, 10, 15), (0, "work", CALL, 1, 5, 5)]
    tree = join_call_trees([make_tree(rows, 7), make_tree(rows[:1], 8)])
    root = merge_functions(tree, threads={7: "thread 7", 8: "thread 8"})
    assert nested(root) == {
        "thread 7": (0, 0, 15, {"main": (1, 10, 15, {"work": (1, 5, 5, {})})}),
        "thread 8": (0, 0, 15, {"main": (1, 10, 15, {})}),
    }
    assert root.total == 30


def test_threads_without_titles_are_added() -> None:
    rows = [(-1, "main", ROOT, 1, 10, 10)]
    root = merge_functions(join_call_trees([make_tree(rows, 7), make_tree(rows, 8)]))
    assert nested(root) == {"main": (2, 20, 20, {})}


def test_callers_have_the_counts_of_the_function_on_their_path() -> None:
    top = merge_callers(make_tree(TWO_SITES), "leaf")
    assert top.total == 115
    above_work: Nested = {
        "main": (9, 110, 110, {}),
        "work": (7, 5, 5, {"main": (7, 5, 5, {})}),
    }
    assert nested(top) == {"leaf": (16, 115, 115, {"work": (16, 115, 115, above_work)})}


def test_recursive_calls_count_once_for_the_callers_of_the_outermost() -> None:
    # work: 2 + 3 calls from main, 6 recursive ones whose instructions are part of the 120
    top = merge_callers(make_tree(TWO_SITES), "work")
    assert top.total == 190
    assert nested(top) == {"work": (11, 75, 190, {"main": (11, 75, 190, {})})}


def test_stacks_of_callers_add_up_to_the_total_of_the_function() -> None:
    leaf, work = (merge_callers(make_tree(TWO_SITES), each) for each in ("leaf", "work"))
    for top in (leaf, work):
        count_each_path_once(top)
    assert list(folded_stacks(leaf, 9)) == ["leaf;work;main 110", "leaf;work;work;main 5"]
    assert list(folded_stacks(work, 9)) == ["work;main 190"]


@pytest.mark.parametrize("merge", [merge_functions, merge_callers])
def test_unknown_function_is_an_error_with_similar_names(
    merge: Callable[[CallTree, str], FunctionNode],
) -> None:
    with pytest.raises(UsageError, match="no call of a function 'wrok'; similar names: work"):
        merge(make_tree(TWO_SITES), "wrok")


def test_folded_stacks_have_own_instructions_and_the_largest_function_first() -> None:
    rows = [
        (-1, "main", ROOT, 1, 0, 16),
        (0, "small", CALL, 1, 5, 5),
        (0, "large", CALL, 1, 8, 11),
        (2, "small", CALL, 1, 3, 3),
    ]
    assert list(folded_stacks(merge_functions(make_tree(rows)), 9)) == [
        "main;large 8",
        "main;large;small 3",
        "main;small 5",
    ]


def test_folded_stacks_replace_semicolons_and_escape_control_characters() -> None:
    rows = [(-1, "main", ROOT, 1, 1, 3), (0, "f(a;b)\n", CALL, 1, 2, 2)]
    assert list(folded_stacks(merge_functions(make_tree(rows)), 9)) == [
        "main 1",
        r"main;f(a:b)\n 2",
    ]


def test_folded_stacks_count_deeper_calls_for_their_caller() -> None:
    rows = [
        (-1, "main", ROOT, 1, 1, 31),
        (0, "work", CALL, 1, 2, 30),
        (1, "deep", CALL, 1, 4, 12),
        (2, "deeper", CALL, 1, 8, 8),
        (1, "signal handler", SIGNAL, 1, 16, 16),
    ]
    root = merge_functions(make_tree(rows))
    lines = folded_stacks(root, 2)
    assert [next(lines), next(lines)] == ["main 1", "main;work 30"]
    with pytest.raises(StopIteration) as end:
        next(lines)
    assert end.value.value == 3
    assert list(folded_stacks(root, 1)) == ["main 31"]


def test_walk_counts_the_callees_that_it_leaves_out() -> None:
    rows = [
        (-1, "main", ROOT, 1, 10, 100),
        (0, "large", CALL, 1, 60, 80),
        (1, "deep", CALL, 1, 20, 20),
        (0, "small", CALL, 1, 10, 10),
    ]
    root = merge_functions(make_tree(rows))

    def walked(min_total: float, max_depth: int) -> list[tuple[int, str, int]]:
        return [
            (depth, node.name, out) for depth, node, out in walk_tree(root, min_total, max_depth)
        ]

    everything = [(0, "main", 0), (1, "large", 0), (2, "deep", 0), (1, "small", 0)]
    assert walked(0, 9) == everything
    assert walked(20, 9) == [(0, "main", 1), (1, "large", 0), (2, "deep", 0)]
    assert walked(0, 2) == [(0, "main", 0), (1, "large", 1), (1, "small", 0)]
    assert walked(0, 1) == [(0, "main", 2)]
    assert walked(101, 9) == []


@pytest.mark.parametrize("nodes_at_once", [1, 9])
def test_json_has_null_for_what_a_node_does_not_have(
    nodes_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_tree, "_JSON_NODES", nodes_at_once)
    tree = make_tree([(-1, "main", ROOT, 1, 10, 10), (0, "handler", SIGNAL, 2, 6, 6)])
    main, handler = json.loads("".join(call_tree_json(tree)))["nodes"]
    assert main == {
        "parent": None,
        "function": "main",
        "module": "/bin/program",
        "kind": "root",
        "root": "start",
        "call_site": None,
        "entry": 0,
        "file": None,
        "calls": 1,
        "self": 10,
        "total": 10,
        "tid": 7,
    }
    assert (handler["parent"], handler["kind"], handler["root"]) == (0, "signal", None)
    assert handler["call_site"] == 1
