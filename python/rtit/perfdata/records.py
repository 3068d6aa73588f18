"""The records of a perf.data file: one declaration each, from which reader and writer derive.

A record is a header (u32 type, u16 misc, u16 size of the whole record), a fixed part, a tail whose
length the size gives, and, for the kernel's records (types below 64) of events with sample_id_all,
a sample_id. The layouts are those of include/uapi/linux/perf_event.h and, from 64 up, of perf's own
tools.

pid, tid and cpu are signed: -1 stands for none, or the kernel. Times are nanoseconds of the perf
clock.
"""

from __future__ import annotations

from .kernel_records import (
    Aux,
    AuxOutputHwId,
    Comm,
    Exit,
    Fork,
    ItraceStart,
    Ksymbol,
    Lost,
    LostSamples,
    Mmap,
    Mmap2,
    Switch,
    SwitchCpuWide,
    TextPoke,
)
from .record import (
    COMPRESSED,
    FIRST_USER_TYPE,
    HEADER,
    LARGEST,
    NAMES,
    SAMPLE,
    TABLE,
    AuxFlag,
    Layout,
    Misc,
    Raw,
    Record,
    Sample,
    SampleId,
    Tail,
    encode,
)
from .tool_records import (
    Auxtrace,
    AuxtraceInfo,
    BuildId,
    FinishedRound,
    HeaderAttr,
    HeaderFeature,
    IdIndex,
    TimeConv,
    TracingData,
)

__all__ = [
    "COMPRESSED",
    "FIRST_USER_TYPE",
    "HEADER",
    "LARGEST",
    "NAMES",
    "SAMPLE",
    "TABLE",
    "Aux",
    "AuxFlag",
    "AuxOutputHwId",
    "Auxtrace",
    "AuxtraceInfo",
    "BuildId",
    "Comm",
    "Exit",
    "FinishedRound",
    "Fork",
    "HeaderAttr",
    "HeaderFeature",
    "IdIndex",
    "ItraceStart",
    "Ksymbol",
    "Layout",
    "Lost",
    "LostSamples",
    "Misc",
    "Mmap",
    "Mmap2",
    "Raw",
    "Record",
    "Sample",
    "SampleId",
    "Switch",
    "SwitchCpuWide",
    "Tail",
    "TextPoke",
    "TimeConv",
    "TracingData",
    "encode",
]
