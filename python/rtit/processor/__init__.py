"""A logical processor: takes architectural events and drives a trace unit.

`Processor` lists every event. Each computes the new state, checks that the event is possible, and
calls the event of the same name of the trace unit.
"""

from rtit.processor.core import ArchStateChanges
from rtit.processor.processor import Processor
from rtit.processor.register_access import DecodeSettings
from rtit.unit.arch_state import ArchState

__all__ = ["ArchState", "ArchStateChanges", "DecodeSettings", "Processor"]
