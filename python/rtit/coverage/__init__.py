"""Code coverage of unmodified programs: lines, both outcomes of branches, functions, blocks.

`coverage` adds up recordings; `source_files` maps counts to source lines by DWARF; `formats` has
a module per format: text, HTML, lcov, Cobertura, drcov, AFL.
"""

from __future__ import annotations

from rtit.coverage.file_coverage import Coverage, coverage
from rtit.coverage.source_coverage import Branch, Function, SourceFile, source_files

__all__ = ["Branch", "Coverage", "Function", "SourceFile", "coverage", "source_files"]
