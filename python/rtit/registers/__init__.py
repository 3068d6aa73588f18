"""The PT MSRs and the CPUID leaves of PT as tables of bit-fields, with their #GP rules.

`Msr.CTL` is the address of an MSR, `CTL` its table of fields.

`msr` and `cpuid` hold the tables, `fields` their types. `register_file` holds values,
`access_rules` implements RDMSR and WRMSR. `profile` and `profiles` describe processors, with the
source of each value, `errata` their errata. `describe` formats values, `parse_names` parses names.
"""

from __future__ import annotations

from rtit.registers.access_rules import (
    check_rdmsr,
    check_wrmsr,
    is_canonical,
    rdmsr,
    wrmsr,
    wrmsr_faults,
)
from rtit.registers.cpuid import LEAVES, Leaf
from rtit.registers.describe import FieldDescription, describe_fields
from rtit.registers.errata import ERRATA, Erratum
from rtit.registers.fields import DecodedRegister, Field, Register
from rtit.registers.msr import (
    ADDR,
    CR3_MATCH,
    CTL,
    MSRS,
    OUTPUT_BASE,
    OUTPUT_MASK_PTRS,
    STATUS,
    Msr,
)
from rtit.registers.profiles import (
    ALDERLAKE,
    BROADWELL,
    FULL,
    GOLDMONT_PLUS,
    ICELAKE,
    PROFILES,
    SKYLAKE,
    Profile,
)
from rtit.registers.register_file import RegisterFile

__all__ = [
    "ADDR",
    "ALDERLAKE",
    "BROADWELL",
    "CR3_MATCH",
    "CTL",
    "ERRATA",
    "FULL",
    "GOLDMONT_PLUS",
    "ICELAKE",
    "LEAVES",
    "MSRS",
    "OUTPUT_BASE",
    "OUTPUT_MASK_PTRS",
    "PROFILES",
    "SKYLAKE",
    "STATUS",
    "DecodedRegister",
    "Erratum",
    "Field",
    "FieldDescription",
    "Leaf",
    "Msr",
    "Profile",
    "Register",
    "RegisterFile",
    "check_rdmsr",
    "check_wrmsr",
    "describe_fields",
    "is_canonical",
    "rdmsr",
    "wrmsr",
    "wrmsr_faults",
]
