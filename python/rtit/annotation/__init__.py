"""Annotated functions: source and machine code of a function, with exact counts.

* `annotate(trace, "function", where=None, ...) -> AnnotatedFunction` decodes the selected threads.
* `annotate_function(profile, binary, function) -> AnnotatedFunction` takes the counts from a
  profile (`rtit.profile.builder.build_profile`), for programs that annotate many functions:
  `binary` is one of `profile.binaries`, `function` one of `binary.symbols.functions`.
* `annotation_html(annotated, other=None) -> Iterator[str]` (`formats.html`) returns the lines of an
  HTML fragment; a page with fragments has `formats.html.STYLE` once, in its `<style>`.
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
)

__all__ = [
    "AnnotatedFunction",
    "AnnotatedInstruction",
    "AnnotatedLine",
    "BranchTarget",
    "Loop",
    "annotate",
    "annotate_function",
]
