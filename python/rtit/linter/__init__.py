"""Check a stream of packets against the rules of the chapter.

>>> from rtit.linter import lint
>>> for finding in lint(bytes.fromhex("02 23")):
...     print(finding)
00000000  PSBEND: a PSBEND ends a PSB+ [psbend, 33.4.2.18]
"""

from rtit.linter.checker import RULES, lint
from rtit.linter.rules import Finding, Rule

__all__ = ["RULES", "Finding", "Rule", "lint"]
