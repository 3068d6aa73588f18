"""All system events together: VMX, SMM, enclaves, measured launch, XSAVES, LBR."""

from __future__ import annotations

from rtit.unit.enclave import Enclaves
from rtit.unit.launch import Launch
from rtit.unit.lbr import LastBranchRecords
from rtit.unit.smm import Smm
from rtit.unit.stm import Stm
from rtit.unit.xsave import Xsave


class SystemTracing(Stm, Smm, Enclaves, Launch, Xsave, LastBranchRecords):
    """Trace unit that knows what lies outside a program and its operating system."""

    __slots__ = ()
