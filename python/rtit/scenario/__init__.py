"""Scenarios: what happens on a processor, line by line, and the packets that each line must give.

>>> from rtit import scenario
>>> scenario.run(scenario.find_scenario("table_33_10_begin")).as_expected
True

`rtit scenario --syntax` describes the format; `library/` holds a scenario for every row of the
chapter's tables and for much else.
"""

from rtit.errors import ScenarioError
from rtit.scenario.catalogue import LIBRARY, find_scenario, shipped_scenarios
from rtit.scenario.model import (
    ChapterTableRow,
    ExpectedPackets,
    PacketLine,
    Scenario,
    ScenarioEvent,
)
from rtit.scenario.parser import load, parse
from rtit.scenario.runner import ScenarioResult, run, run_steps
from rtit.scenario.step import ScenarioStep, UnitStatus

__all__ = [
    "LIBRARY",
    "ChapterTableRow",
    "ExpectedPackets",
    "PacketLine",
    "Scenario",
    "ScenarioError",
    "ScenarioEvent",
    "ScenarioResult",
    "ScenarioStep",
    "UnitStatus",
    "find_scenario",
    "load",
    "parse",
    "run",
    "run_steps",
    "shipped_scenarios",
]
