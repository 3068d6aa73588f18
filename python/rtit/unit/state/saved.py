"""What the processor keeps aside while it runs something else: plain values in `State`."""

from __future__ import annotations

from dataclasses import dataclass

from rtit.registers.hexadecimal import hexadecimal_repr
from rtit.unit.state.arch import Arch


@dataclass(frozen=True, slots=True)
class Smram:
    """What SMI delivery saves and RSM restores (section 33.2.9.3).

    `ip` is effective, None if it is an AEP that is not known; `trace_en` IA32_RTIT_CTL.TraceEn;
    `host` what VM exit goes back to, if the interrupted code ran in VMX non-root operation.
    """

    __repr__ = hexadecimal_repr("ip")

    arch: Arch
    ip: int | None
    trace_en: bool
    host: Arch | None


@dataclass(frozen=True, slots=True)
class Executive:
    """What an SMM VM exit left: the executive monitor or its guest (section 33.6)."""

    arch: Arch
    host: Arch | None


@dataclass(frozen=True, slots=True)
class Acm:
    """What an authenticated code module suspends (section 33.2.9.6): TraceEn, and the core cycles
    of tracing that no CYC has told yet.
    """

    trace_en: bool
    cycles: int = 0


@dataclass(frozen=True, slots=True)
class Ssa:
    """What an asynchronous exit saves and ERESUME restores (section 33.2.9.5).

    `ip` is effective; `opted_out` says that the enclave is not traced.
    """

    __repr__ = hexadecimal_repr("ip")

    ip: int
    opted_out: bool
