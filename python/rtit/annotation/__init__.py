"""Annotated functions: source and machine code of a function, with exact counts.

* `annotate(trace, "function", where=None, *, loop_bounds=False) -> AnnotatedFunction` decodes the
  selected threads.
* `annotate_functions(profile, binary, functions) -> list[AnnotatedFunction]` takes the counts from
  a profile (`rtit.profile.builder.build_profile`), for programs that annotate many functions;
  `annotate_function(profile, binary, function) -> AnnotatedFunction` does so for one.
* `match_counts(first, other) -> OtherCounts` has the counts of another recording for the lines and
  instructions of the first.
* `annotation_html(annotated, other_counts=None, *, prefix="f") -> Iterator[str]` (`formats.html`)
  returns the lines of an HTML fragment; a page with fragments has `STYLE` and `SCRIPT` of that
  module once.
* `formats` has a module per format: text, HTML, JSON.

Counts of lines are those of `rtit.coverage`, within the function. Addresses are those of the file,
as `objdump` prints them.
"""

from __future__ import annotations

from rtit.annotation.annotated_function import (
    AnnotatedFunction,
    AnnotatedInstruction,
    AnnotatedLine,
    BranchTarget,
    Loop,
    annotate,
    annotate_function,
    annotate_functions,
    annotate_streams,
)
from rtit.annotation.other_counts import OtherCounts, match_counts

__all__ = [
    "AnnotatedFunction",
    "AnnotatedInstruction",
    "AnnotatedLine",
    "BranchTarget",
    "Loop",
    "OtherCounts",
    "annotate",
    "annotate_function",
    "annotate_functions",
    "annotate_streams",
    "match_counts",
]
