"""Processors: architectural events, and the state that they change.

`Processor` turns each event into what its trace unit has to know of it: `processor` lists them all,
`core` has what they work on.
"""

from rtit.processor.processor import Processor
from rtit.processor.register_access import DecodeSettings
from rtit.processor.state_changes import StateChanges
from rtit.unit.arch_state import ArchState

__all__ = ["ArchState", "DecodeSettings", "Processor", "StateChanges"]
