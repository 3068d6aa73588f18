"""A recording request is checked when it is made, and errors use the same names everywhere."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, FrozenInstanceError, fields
from pathlib import Path

import pytest

import rtit
from rtit.capture.request import RecordRequest, SizeLimits
from rtit.errors import UsageError

# What `rtit.record` does not offer: it starts a program and waits for its end.
NOT_OF_RECORD = {"pids", "blocked"}


def test_record_passes_its_parameters_to_the_request() -> None:
    parameters = inspect.signature(rtit.record).parameters
    asked = {each.name: each.default for each in fields(RecordRequest)}
    assert set(parameters) == set(asked) - NOT_OF_RECORD
    for name, parameter in parameters.items():
        if name != "argv":
            assert parameter.kind is parameter.KEYWORD_ONLY
            assert asked[name] is not MISSING
            assert parameter.default == asked[name], name
        assert f"`{name}`" in (rtit.record.__doc__ or ""), name
        assert f"`{name}`" in (RecordRequest.__doc__ or ""), name


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "a list of the program"),
        ({"argv": "true"}, "not 'true'"),
        ({"argv": ["true", "a\0b"]}, "NUL"),
        (
            {"argv": ["true"], "backend": "gdb"},
            "unknown back end 'gdb'; valid back ends: auto",
        ),
        ({"argv": ["true"], "truth_form": "blocks"}, "unknown truth format 'blocks'"),
        ({"argv": ["true"], "event": "intel_pt/cyx/u"}, "cyx"),
        ({"argv": ["true"], "size_limits": SizeLimits(max_size=1)}, "--max-size"),
        ({"argv": ["true"], "pids": [1]}, "cannot be combined with a program to run"),
        ({"pids": [1], "start_at": "main"}, "--start-at"),
        ({"pids": [1], "aslr": False}, "--no-aslr"),
    ],
    ids=str,
)
def test_request_rejects_invalid_options(values: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        RecordRequest(**values)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_request_is_immutable() -> None:
    request = RecordRequest(["true"])
    with pytest.raises(FrozenInstanceError):
        request.event = "intel_pt/cyc/u"  # type: ignore[misc]


def test_plan_fills_in_defaults() -> None:
    plan = RecordRequest(["true", "x"], output="some.data").plan_recording()
    assert (plan.path, plan.command) == (Path("some.data"), ["rtit", "record", "true", "x"])
    assert (plan.size_limits, plan.filters, bool(plan.window)) == (SizeLimits(), (), False)
    assert RecordRequest(pids=[7, 9]).plan_recording().command == ["rtit", "record", "--pid", "7,9"]
