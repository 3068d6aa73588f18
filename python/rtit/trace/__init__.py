"""What a user opens: a recording, its streams, and what ran.

`Trace` opens a recording, `decode` makes one of raw PT and an `rtit.Image`. A `Stream` is decoded
from plain values (bytes in parts, an image of the code, `Settings`), wherever they come from;
`Rows` and `Span` are what decoding gives, of all or of a `Selection`.
"""

from __future__ import annotations

from rtit.trace.raw_pt import Decoder, Run, decode
from rtit.trace.recording.byte_source import AuxBytes, Bytes, Source
from rtit.trace.recording.settings import Settings, Start
from rtit.trace.stream import Stream
from rtit.trace.tables.batch import Batch, End, ErrorClass, EventKind, Table, Trust
from rtit.trace.tables.block_ids import KnownBlocks, Numbered, Numbers, Runs
from rtit.trace.tables.counts import (
    Counts,
    Edge,
    EdgeTotals,
    Repeats,
    RunTotal,
    RunTotals,
    Totals,
    repeats,
)
from rtit.trace.tables.ledger import Ledger, Span
from rtit.trace.tables.packets import PacketRow, Packets
from rtit.trace.tables.rows import (
    Block,
    Branch,
    Branches,
    Event,
    Events,
    Instruction,
    Instructions,
    Rows,
    SyncPoint,
    SyncPoints,
)
from rtit.trace.tables.selection import Place, Places, Selection, Times
from rtit.trace.threads.address_spaces import SpaceKey, Spaces
from rtit.trace.trace import Process, ProcessExit, Trace

__all__ = [
    "AuxBytes",
    "Batch",
    "Block",
    "Branch",
    "Branches",
    "Bytes",
    "Counts",
    "Decoder",
    "Edge",
    "EdgeTotals",
    "End",
    "ErrorClass",
    "Event",
    "EventKind",
    "Events",
    "Instruction",
    "Instructions",
    "KnownBlocks",
    "Ledger",
    "Numbered",
    "Numbers",
    "PacketRow",
    "Packets",
    "Place",
    "Places",
    "Process",
    "ProcessExit",
    "Repeats",
    "Rows",
    "Run",
    "RunTotal",
    "RunTotals",
    "Runs",
    "Selection",
    "Settings",
    "Source",
    "SpaceKey",
    "Spaces",
    "Span",
    "Start",
    "Stream",
    "SyncPoint",
    "SyncPoints",
    "Table",
    "Times",
    "Totals",
    "Trace",
    "Trust",
    "decode",
    "repeats",
]
