"""Open a trace and decode it: recordings, raw PT, streams, and tables of what ran.

`Trace` opens a recording, `decode` makes a trace of raw PT and an `rtit.Image`, and `Decoder`
decodes many short traces. A `Stream` is the PT of one logical processor. Its results are tables
(`Rows`, `Instructions`, `Branches`, ...), of the whole stream or of a `Selection`.
"""

from __future__ import annotations

from rtit.trace.many_recordings import find_recordings, map_many, open_many
from rtit.trace.raw_pt import Decoder, DecodeResult, RawTrace, decode
from rtit.trace.recording.byte_source import AuxDataSource, ByteSource, MemorySource
from rtit.trace.recording.decoder_settings import Settings, Start
from rtit.trace.stream import Stream
from rtit.trace.tables.arrow_rows import ArrowRows
from rtit.trace.tables.batch import Batch, BranchKind, End, ErrorClass, EventKind, Table, Trust
from rtit.trace.tables.block_ids import BlockIds, BlockIdTable, BlockTable, InstructionRuns
from rtit.trace.tables.call_tree import (
    CallKind,
    CallNode,
    CallTree,
    FunctionTotals,
    RootKind,
    StackStatistics,
)
from rtit.trace.tables.calls import Call, CallEnd, Calls
from rtit.trace.tables.counts import Counts, Edge, EdgeTotals, RunTotal, RunTotals, Totals
from rtit.trace.tables.coverage_ledger import Ledger, Span
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
from rtit.trace.tables.selection import SelectedRange, SelectedRanges, Selection, TimeRange
from rtit.trace.tables.unknown_loops import UnknownLoop, unknown_loops
from rtit.trace.threads.address_spaces import SpaceKey, Spaces
from rtit.trace.trace import Process, ProcessExit, Trace

__all__ = [
    "ArrowRows",
    "AuxDataSource",
    "Batch",
    "Block",
    "BlockIdTable",
    "BlockIds",
    "BlockTable",
    "Branch",
    "BranchKind",
    "Branches",
    "ByteSource",
    "Call",
    "CallEnd",
    "CallKind",
    "CallNode",
    "CallTree",
    "Calls",
    "Counts",
    "DecodeResult",
    "Decoder",
    "Edge",
    "EdgeTotals",
    "End",
    "ErrorClass",
    "Event",
    "EventKind",
    "Events",
    "FunctionTotals",
    "Instruction",
    "InstructionRuns",
    "Instructions",
    "Ledger",
    "MemorySource",
    "PacketRow",
    "Packets",
    "Process",
    "ProcessExit",
    "RawTrace",
    "RootKind",
    "Rows",
    "RunTotal",
    "RunTotals",
    "SelectedRange",
    "SelectedRanges",
    "Selection",
    "Settings",
    "SpaceKey",
    "Spaces",
    "Span",
    "StackStatistics",
    "Start",
    "Stream",
    "SyncPoint",
    "SyncPoints",
    "Table",
    "TimeRange",
    "Totals",
    "Trace",
    "Trust",
    "UnknownLoop",
    "decode",
    "find_recordings",
    "map_many",
    "open_many",
    "unknown_loops",
]
