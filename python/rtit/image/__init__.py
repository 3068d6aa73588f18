"""Code by address and time, and symbol names for addresses.

`Image` is the code of one address space; callers add bytes, files or a page callback. `Images`
makes one for each process from sideband (mappings, forks, execs, written code). `Symbols` names
addresses at a time; `FileSymbols` has the symbols of one ELF file. Code that is not certain (its
file is missing or changed) is left out and reported as a `Problem`.
"""

from __future__ import annotations

from rtit.image.file_symbols import (
    FileFunction,
    FileSymbols,
    function_of_cold_part,
    is_named_by_address,
)
from rtit.image.image import Image, MappingLookup
from rtit.image.images import Images
from rtit.image.kernel import (
    GUEST_KERNEL_PID,
    KERNEL_PID,
    KernelFiles,
    guest_kernel_pid,
    guest_process_pid,
    machine_of_kernel_mapping,
)
from rtit.image.mapped_files import (
    Files,
    PackedFile,
    UnusableFile,
    load_bias,
    open_program_file,
)
from rtit.image.mappings import KERNEL_START, Mapping, guest_path, has_file
from rtit.image.memory_budget import MemoryBudget, MemoryLimits
from rtit.image.problems import Problem
from rtit.image.symbols import SymbolLocation, Symbols

__all__ = [
    "GUEST_KERNEL_PID",
    "KERNEL_PID",
    "KERNEL_START",
    "FileFunction",
    "FileSymbols",
    "Files",
    "Image",
    "Images",
    "KernelFiles",
    "Mapping",
    "MappingLookup",
    "MemoryBudget",
    "MemoryLimits",
    "PackedFile",
    "Problem",
    "SymbolLocation",
    "Symbols",
    "UnusableFile",
    "function_of_cold_part",
    "guest_kernel_pid",
    "guest_path",
    "guest_process_pid",
    "has_file",
    "is_named_by_address",
    "load_bias",
    "machine_of_kernel_mapping",
    "open_program_file",
]
