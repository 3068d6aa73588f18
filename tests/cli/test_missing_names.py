"""The sentence about code without a name."""

from __future__ import annotations

from rtit.cli.look.missing_names import describe_missing_names
from rtit.image import is_named_by_address

PYTHON, NODE = "/usr/bin/python3.11", "/usr/bin/node"


def test_few_missing_names_are_no_sentence() -> None:
    assert describe_missing_names({}) is None
    assert describe_missing_names({("f", PYTHON): 90, ("", PYTHON): 10}) is None


def test_file_with_most_missing_names_needs_its_debug_symbols() -> None:
    functions = {("f", PYTHON): 5, ("python3.11+0x4fee40", PYTHON): 70, ("", PYTHON): 5}
    assert describe_missing_names({**functions, ("", "//anon"): 20}) == (
        "95% of the instructions have no function name, most of them in /usr/bin/python3.11: "
        "install its debug symbols, or use --debuginfod"
    )


def test_jit_code_without_names_needs_an_option_of_its_compiler() -> None:
    for module in ("", "//anon"):
        found = describe_missing_names({("f", NODE): 88, ("", module): 12})
        assert found is not None
        assert found.startswith("12% of the instructions have no function name, in memory without")
        assert "node with --perf-basic-prof" in found


def test_only_file_and_address_stand_for_a_name() -> None:
    assert is_named_by_address("python3.11+0x4fee40", PYTHON)
    assert not is_named_by_address("node+0x10", PYTHON)
    assert not is_named_by_address("python3.11+0x4fee40 ", PYTHON)
    assert not is_named_by_address("main", PYTHON)
