"""Code coverage of unmodified programs: lines, both outcomes of branches, functions, blocks.

`coverage` adds up recordings; `source_files` maps counts to source lines by DWARF; `by_test` has
the code that each test ran; `corpus_coverage` has the edges of each of many short traces; `formats`
has a module per format: text, HTML, lcov, Cobertura, drcov, AFL.
"""

from __future__ import annotations

from rtit.coverage.corpus import CorpusCoverage, CorpusEdges, CorpusTraces, corpus_coverage
from rtit.coverage.file_coverage import Coverage, coverage
from rtit.coverage.source_coverage import (
    BranchCoverage,
    FolderTotals,
    FunctionCoverage,
    SourceFile,
    folder_totals,
    source_files,
)

__all__ = [
    "BranchCoverage",
    "CorpusCoverage",
    "CorpusEdges",
    "CorpusTraces",
    "Coverage",
    "FolderTotals",
    "FunctionCoverage",
    "SourceFile",
    "corpus_coverage",
    "coverage",
    "folder_totals",
    "source_files",
]
