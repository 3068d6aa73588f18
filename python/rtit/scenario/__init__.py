"""Scenarios: what happens on a processor, line by line, and the packets that each line must give.

>>> from rtit import scenario
>>> scenario.run(scenario.find("table_33_10_begin")).as_expected
True

`rtit scenario --syntax` describes the format; `library/` holds a scenario for every row of the
chapter's tables and for much else.
"""

from rtit.errors import ScenarioError
from rtit.scenario.nodes import Event, Expected, Line, Row, Scenario
from rtit.scenario.parser import load, parse
from rtit.scenario.runner import Result, Step, run, steps
from rtit.scenario.shipped import LIBRARY, find, shipped

__all__ = [
    "LIBRARY",
    "Event",
    "Expected",
    "Line",
    "Result",
    "Row",
    "Scenario",
    "ScenarioError",
    "Step",
    "find",
    "load",
    "parse",
    "run",
    "shipped",
    "steps",
]
