"""Processors: architectural events, and the state that they change.

`Processor` turns each event into what its trace unit has to know of it: `processor` lists them all,
`core` has what they work on.
"""

from rtit.processor.changes import Changes
from rtit.processor.decode_settings import DecodeSettings
from rtit.processor.processor import Processor
from rtit.unit.arch_state import ArchState

__all__ = ["ArchState", "Changes", "DecodeSettings", "Processor"]
