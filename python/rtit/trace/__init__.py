"""What a user opens: a recording, its streams, and what ran.

`Trace` opens a recording, `decode` makes one of raw PT and an `rtit.Image`. A `Stream` is decoded
from plain values (bytes in parts, an image of the code, `Settings`), wherever they come from;
`Rows` and `Span` are what decoding gives, of all or of a `Selection`.
"""

from __future__ import annotations

from rtit.trace.batch import Batch, Table
from rtit.trace.categories import End, ErrorClass, EventKind, Trust
from rtit.trace.counts import Counts
from rtit.trace.decoder import Decoder, Run
from rtit.trace.ledger import Ledger, Span
from rtit.trace.numbers import KnownBlocks, Numbered, Numbers, Runs
from rtit.trace.packets import PacketRow, Packets
from rtit.trace.places import Place, Places
from rtit.trace.raw_pt import decode
from rtit.trace.results import (
    Branch,
    Branches,
    Instruction,
    Instructions,
    SyncPoint,
    SyncPoints,
)
from rtit.trace.rounds import Repeats, repeats
from rtit.trace.rows import Block, Event, Events, Rows
from rtit.trace.selection import Selection, Times
from rtit.trace.settings import Settings, Start
from rtit.trace.source import AuxBytes, Bytes, Source
from rtit.trace.spaces import SpaceKey, Spaces
from rtit.trace.stream import Stream
from rtit.trace.totals import Edge, EdgeTotals, RunTotal, RunTotals, Totals
from rtit.trace.trace import Ended, Process, Trace

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
    "Ended",
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
