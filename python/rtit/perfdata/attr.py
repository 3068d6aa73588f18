"""struct perf_event_attr, and attr.config of the intel_pt PMU as text.

The layout is that of include/uapi/linux/perf_event.h. It grew over the years, so each attr has its
size; fields beyond that are 0.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from enum import IntFlag

from rtit.errors import UsageError


class SampleType(IntFlag):
    """attr.sample_type: the fields of a SAMPLE, and of the sample_id of other records."""

    IP = 1 << 0
    TID = 1 << 1
    TIME = 1 << 2
    ADDR = 1 << 3
    READ = 1 << 4
    CALLCHAIN = 1 << 5
    ID = 1 << 6
    CPU = 1 << 7
    PERIOD = 1 << 8
    STREAM_ID = 1 << 9
    RAW = 1 << 10
    BRANCH_STACK = 1 << 11
    REGS_USER = 1 << 12
    STACK_USER = 1 << 13
    WEIGHT = 1 << 14
    DATA_SRC = 1 << 15
    IDENTIFIER = 1 << 16
    TRANSACTION = 1 << 17
    REGS_INTR = 1 << 18
    PHYS_ADDR = 1 << 19
    AUX = 1 << 20
    CGROUP = 1 << 21
    DATA_PAGE_SIZE = 1 << 22
    CODE_PAGE_SIZE = 1 << 23
    WEIGHT_STRUCT = 1 << 24


class AttrFlag(IntFlag):
    """The bit-field word of perf_event_attr; only the bits that this project uses."""

    DISABLED = 1 << 0
    EXCLUDE_USER = 1 << 4
    EXCLUDE_KERNEL = 1 << 5
    EXCLUDE_HV = 1 << 6
    MMAP = 1 << 8
    COMM = 1 << 9
    ENABLE_ON_EXEC = 1 << 12
    TASK = 1 << 13
    SAMPLE_ID_ALL = 1 << 18
    EXCLUDE_GUEST = 1 << 20
    MMAP2 = 1 << 23
    COMM_EXEC = 1 << 24
    USE_CLOCKID = 1 << 25
    CONTEXT_SWITCH = 1 << 26
    TEXT_POKE = 1 << 33


class AuxAction(IntFlag):
    """attr.aux_action: the trace starts paused, or samples of the event pause or resume it."""

    START_PAUSED = 1 << 0
    PAUSE = 1 << 1
    RESUME = 1 << 2


_ATTR = struct.Struct("<IIQQQQQ IIQQ QQIiQ IHHII QQ")

MIN_ATTR_SIZE = 64
"""PERF_ATTR_SIZE_VER0: no attr is shorter."""
WRITTEN_ATTR_SIZE = 128
"""PERF_ATTR_SIZE_VER7: the size of the attrs that rtit writes."""


@dataclass(frozen=True, slots=True)
class Attr:
    """perf_event_attr: what one event counts or traces. All fields except `clockid` are unsigned.

    `config1` and `config2` are also bp_addr and bp_len. `flags` is the whole bit-field word.
    `aux_action` (Linux 6.13) is what an event does to the trace of its group, see `AuxAction`.
    """

    type: int
    size: int = WRITTEN_ATTR_SIZE
    config: int = 0
    sample_period: int = 0
    sample_type: int = 0
    read_format: int = 0
    flags: int = 0
    wakeup_events: int = 0
    bp_type: int = 0
    config1: int = 0
    config2: int = 0
    branch_sample_type: int = 0
    sample_regs_user: int = 0
    sample_stack_user: int = 0
    clockid: int = 0
    sample_regs_intr: int = 0
    aux_watermark: int = 0
    sample_max_stack: int = 0
    reserved_2: int = 0
    aux_sample_size: int = 0
    aux_action: int = 0
    sig_data: int = 0
    config3: int = 0

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Attr:
        """Return an attr of any length. Fields of later kernels are ignored."""
        supported = bytes(data[: _ATTR.size])
        return cls(*_ATTR.unpack(supported.ljust(_ATTR.size, b"\0")))

    def encode(self) -> bytes:
        """Return the attr in `size` bytes."""
        return _ATTR.pack(*astuple(self))[: self.size].ljust(self.size, b"\0")

    @property
    def sample_id_all(self) -> bool:
        """Whether records other than SAMPLE end with a sample_id."""
        return bool(self.flags & AttrFlag.SAMPLE_ID_ALL)


CONFIG_TERMS: Mapping[str, tuple[int, int]] = {
    "pt": (0, 0),
    "cyc": (1, 1),
    "pwr_evt": (4, 4),
    "fup_on_ptw": (5, 5),
    "mtc": (9, 9),
    "tsc": (10, 10),
    "noretcomp": (11, 11),
    "ptw": (12, 12),
    "branch": (13, 13),
    "mtc_period": (14, 17),
    "cyc_thresh": (19, 22),
    "psb_period": (24, 27),
    "event": (31, 31),
    "notnt": (55, 55),
}
"""Term of the intel_pt PMU -> lowest and highest bit in attr.config, as in IA32_RTIT_CTL."""

_TERM = re.compile(r"([a-z_]+)(?:=(0x[0-9a-f]+|\d+))?")


def config_mask(term: str) -> int:
    """Return the bits of a term in attr.config."""
    low, high = CONFIG_TERMS[term]
    return (2 << high) - (1 << low)


def config_value(config: int, term: str) -> int:
    """Return the value of a term in an attr.config."""
    return (config & config_mask(term)) >> CONFIG_TERMS[term][0]


def format_config(config: int) -> str:
    """Return the terms as perf accepts them, such as `tsc,mtc,mtc_period=3,branch`.

    Bits without a name are `config=0x..`.
    """
    terms = []
    for term, (low, high) in CONFIG_TERMS.items():
        value = config_value(config, term)
        if value:
            terms.append(term if low == high else f"{term}={value}")
        config &= ~config_mask(term)
    if config:
        terms.append(f"config={config:#x}")
    return ",".join(terms)


def parse_config(text: str) -> int:
    """Return attr.config for a text of `format_config`. A term without a value is 1.

    Raises UsageError for an unknown or malformed term, or a value that does not fit its bits.
    """
    config = 0
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        match = _TERM.fullmatch(part)
        name = match[1] if match else part
        if match is None or (name != "config" and name not in CONFIG_TERMS):
            raise UsageError(f"unknown term {part!r}; terms: {', '.join(CONFIG_TERMS)}")
        value = int(match[2], 0) if match[2] else 1
        if name == "config":
            config |= value
            continue
        low, high = CONFIG_TERMS[name]
        if value >> (high - low + 1):
            raise UsageError(f"{name}={value} does not fit {high - low + 1} bits")
        config = config & ~config_mask(name) | value << low
    return config
