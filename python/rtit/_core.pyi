"""The native module: one class or function per file of crates/python."""

import builtins
from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Final, TypedDict, final

from typing_extensions import Buffer

__version__: Final[str]
MOST_PLACES: Final[int]
PACKETS: Final[tuple[str, ...]]

def decode_instruction(data: bytes, ip: int, bits: int = 64) -> tuple[int, int, int, bool]: ...
def arrow_schema(fields: Sequence[tuple[str, str, Sequence[str]]]) -> object: ...
def arrow_array(
    fields: Sequence[tuple[str, str, Sequence[str]]], columns: Sequence[object]
) -> object: ...
def arrow_stream(
    fields: Sequence[tuple[str, str, Sequence[str]]], batches: Iterator[Sequence[object]]
) -> object: ...
def demangle(name: str) -> str: ...
def disassemble(data: bytes, ip: int, bits: int = 64) -> str: ...
def find_psb(data: bytes, start: int = 0) -> int | None: ...
def scan_packets(
    data: bytes, offset: int = 0, limit: int = 65536, block: int = 0
) -> tuple[list[tuple[int, int, str, dict[str, Any]]], int, int, tuple[int, str, bool] | None]: ...
def conditionals(
    space: Space, starts: bytes, sizes: bytes, bits: int = 64
) -> tuple[Column, Column, Column, Column, tuple[int, int] | None]: ...
def unrolled(
    space: Space, starts: bytes, instructions: bytes, counts: bytes, bits: int = 64
) -> tuple[Column, Column, Column, Column, Column, int]: ...
def table_lines(
    columns: Sequence[
        tuple[str, object, int]
        | tuple[str, object, Sequence[str]]
        | tuple[str, object, object, Sequence[tuple[str, bool]]]
    ],
) -> bytes: ...
def calls(flow: Flow, names: Names, most: int) -> dict[str, Column]: ...
def return_freed_memory() -> None: ...
def read_truncated_maps_as_zeros() -> None: ...

@final
class Column:
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class PacketScan:
    def __init__(
        self,
        stream: Buffer | Iterable[Buffer],
        clocks: tuple[int, tuple[int, int], int, int, tuple[int, int]] | None = None,
        points: bool = False,
        perf: list[int] | None = None,
    ) -> None: ...
    def points(self) -> list[Column]: ...
    def perf_times(self) -> list[Column]: ...
    def next(
        self, limit: int
    ) -> (
        tuple[
            Column,
            Column,
            Column,
            Column,
            int,
            tuple[int, int, str, bool] | None,
            list[Column] | None,
        ]
        | None
    ): ...

@final
class Code:
    def __init__(self, data: bytes) -> None: ...
    def slice(self, offset: int, size: int) -> Code: ...
    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...

@final
class Space:
    def __init__(self) -> None: ...
    def map(self, time: int, address: int, code: Code | bytes) -> None: ...
    def poke(self, time: int, address: int, data: bytes) -> None: ...
    def unmap(self, time: int, address: int, size: int) -> None: ...
    def clear(self, time: int) -> None: ...
    def fork(self, time: int) -> Space: ...
    def adopt(self, time: int, parent: Space) -> None: ...
    def read(self, time: int, address: int, size: int) -> bytes: ...
    def set_missing(self, callable: Callable[[int], Buffer | None] | None) -> None: ...  # noqa: A002
    def forget(self, address: int, size: int) -> None: ...
    @property
    def epochs(self) -> int: ...
    @property
    def changes(self) -> int: ...

@final
class ElfFile:
    def __init__(self, path: str | PathLike[str]) -> None: ...
    @property
    def path(self) -> Path: ...
    @property
    def bits(self) -> int: ...
    @property
    def kind(self) -> int: ...
    @property
    def machine(self) -> int: ...
    @property
    def entry(self) -> int: ...
    @property
    def build_id(self) -> bytes | None: ...
    @property
    def debug_link(self) -> tuple[bytes, int] | None: ...
    @property
    def segments(self) -> list[tuple[int, int, int, int, int]]: ...
    @property
    def program_headers(self) -> tuple[int, int]: ...
    @property
    def dynamic(self) -> int: ...
    @property
    def is_program(self) -> bool: ...
    @property
    def has_loader(self) -> bool: ...
    def symbols(self) -> tuple[Column, Column, list[str], Column]: ...
    def symbol_values(self, names: Sequence[str]) -> dict[str, int]: ...

@final
class Functions:
    def __init__(self, elf: ElfFile, debug: ElfFile | None = None) -> None: ...
    @staticmethod
    def listed(start: int, end: int, rows: Sequence[tuple[int, int, str]]) -> Functions: ...
    def columns(self) -> tuple[Column, Column, Column, Column]: ...
    def name(self, index: int) -> str: ...
    def owned(self) -> tuple[Column, Column, Column]: ...
    def at(self, offset: int) -> int | None: ...
    def line(self, offset: int) -> tuple[str, int] | None: ...
    def lines(
        self, windows: Sequence[tuple[int, int]] | None = None, start: int = 0, most: int = ...
    ) -> tuple[Column, Column, Column, Column, list[str], int | None, bool]: ...
    def address(self, offset: int) -> int: ...

@final
class Names:
    def __init__(
        self, regions: Sequence[tuple[int, int, int, int, int, str, Functions | None]]
    ) -> None: ...

@final
class Listing:
    FIELDS: ClassVar[list[str]]
    def __init__(
        self,
        fields: Sequence[str],
        space: Space,
        names: Names,
        *,
        tid: int,
        clock: tuple[int, int, int] | None = None,
        places: Sequence[Sequence[tuple[int, int, int, int]]] | None = None,
        times: tuple[int, int] = ...,
        tail: int | None = None,
        others: Sequence[tuple[Space, Names]] = (),
    ) -> None: ...

class RowColumns(TypedDict):
    start: Column
    instructions: Column
    last: Column
    end: Column
    bits: Column
    in_tx: Column
    space: Column
    time: Column
    offset: Column
    event_row: bytes
    event_kind: bytes
    event_ip: bytes
    event_value: bytes
    event_time: bytes
    event_offset: bytes

class TotalColumns(TypedDict):
    run_start: bytes
    run_instructions: bytes
    run_count: bytes
    edge_from: bytes
    edge_to: bytes
    edge_kind: bytes
    edge_count: bytes
    other_runs: int
    other_edges: list[int]

class FlowCounts(TypedDict):
    packets: dict[str, int]
    errors: dict[str, int]
    bytes: dict[str, int]
    errata: dict[str, int]
    instructions: int
    conditional: int
    indirect: int
    returns: int
    compressed_returns: int
    asynchronous: int
    cycles: int
    measured: tuple[int, int]
    inactive: int

@final
class Flow:
    ENDS: ClassVar[dict[int, str]]
    EVENTS: ClassVar[dict[int, str]]
    ERRORS: ClassVar[dict[int, str]]
    def __init__(
        self,
        stream: Buffer | Iterable[Buffer],
        space: Space,
        *,
        mtc_freq: int = 0,
        tsc_ctc: tuple[int, int] = (0, 0),
        max_nonturbo_ratio: int = 0,
        start_time: int = 0,
        no_tnt: bool = False,
        no_retcomp: bool = False,
        cpu: tuple[int, int, int] | None = None,
        ranges: Sequence[tuple[int, int]] = (),
        spaces: dict[_Key, Space] | None = None,
        start: tuple[int | None, int, int] | None = None,
        turns: tuple[Buffer, Buffer, Sequence[_Whose]] | None = None,
        kernel: Space | None = None,
        guest: Space | None = None,
        guest_tsc: tuple[int, int] = ...,
        walk: bool = False,
        points: bool = False,
        threads: int = 1,
        places: int = MOST_PLACES,
    ) -> None: ...
    def next(self, max_rows: int) -> RowColumns | None: ...
    def runs(self, max_runs: int) -> tuple[Column, Column, Column] | None: ...
    def ips(self, max_instructions: int) -> tuple[Column, Column] | None: ...
    def instructions(self, max_instructions: int) -> builtins.list[Column] | None: ...
    def branches(self, max_branches: int) -> builtins.list[Column] | None: ...
    def block_ids(self, max_blocks: int) -> Column | None: ...
    def blocks(self, first: int = 0) -> builtins.list[Column]: ...
    def points(self) -> builtins.list[Column]: ...
    def list(self, listing: Listing) -> None: ...
    def lines(
        self, max_bytes: int, max_lines: int = ..., until: int = ...
    ) -> tuple[bytes, int] | None: ...
    def next_time(self) -> int | None: ...
    def functions(
        self, names: Names, others: Sequence[Names] = ()
    ) -> builtins.list[tuple[str, str, int]]: ...
    def count(self) -> FlowCounts: ...
    def totals(self) -> TotalColumns: ...
    def counts(self) -> FlowCounts: ...
    @property
    def turn(self) -> int: ...
    @property
    def visited(self) -> builtins.list[int]: ...
    def ledger(
        self, first: int = 0, most: int = ...
    ) -> builtins.list[tuple[int, int, str, str | None, str | None, int | None, int | None]]: ...

_Key = tuple[int, int] | tuple[int, int, int]
_Whose = tuple[Space | None, bool, Space | None, Space | None]

@final
class Decoder:
    INDEXES: ClassVar[builtins.list[str]]
    BRANCHES: ClassVar[builtins.list[str]]
    def __init__(
        self,
        space: Space,
        *,
        spaces: dict[_Key, Space] | None = None,
        mtc_freq: int = 0,
        tsc_ctc: tuple[int, int] = (0, 0),
        max_nonturbo_ratio: int = 0,
        start_time: int = 0,
        no_tnt: bool = False,
        no_retcomp: bool = False,
        cpu: tuple[int, int, int] | None = None,
        ranges: Sequence[tuple[int, int]] = (),
        guest_tsc: tuple[int, int] = ...,
        most: int = ...,
        walk: bool = False,
    ) -> None: ...
    def run(
        self,
        data: Buffer,
        bitmap: Buffer | None = None,
        *,
        index: int = 0,
        branches: int = 0,
        add: bool = False,
        classes: bool = False,
        start: tuple[int | None, int, int] | None = None,
    ) -> tuple[int, int, int, int, int, bool, int, int]: ...
    def edges(self) -> tuple[Column, Column, Column, Column]: ...
    def forget(
        self,
        space: Space,
        spaces: dict[_Key, Space] | None = None,
        start: int = 0,
        end: int = ...,
    ) -> None: ...
    def ledger(
        self, first: int = 0, most: int = ...
    ) -> builtins.list[tuple[int, int, str, str | None, str | None, int | None, int | None]]: ...
    def counts(self) -> FlowCounts: ...

class Compared(TypedDict, total=False):
    identical: bool
    instructions: int
    runs: int
    shortfall: int
    excess: int
    repeated: int
    unchecked: int
    truth_index: int
    decoded_index: int
    truth: tuple[int, int] | None
    decoded: tuple[int, int] | None
    until: int | None
    reason: str

Columns = tuple[Buffer, Buffer, Buffer]

@final
class TruthFile:
    def __init__(self, path: str) -> None: ...
    @property
    def complete(self) -> bool: ...
    def threads(self) -> list[tuple[int, int, int, int | None, bool]]: ...
    def runs(self, tid: int, start: int = 0, max: int = 65536) -> tuple[bytes, bytes, bytes]: ...  # noqa: A002
    def compare(
        self,
        tid: int,
        decoded: Columns | Iterable[Columns],
        *,
        filters: Sequence[tuple[int, int]] = (),
        stops: Sequence[tuple[int, int]] = (),
        prefix: bool = False,
        behind: int = 0,
    ) -> Compared: ...
    def find(
        self,
        tid: int,
        decoded: Columns | Iterable[Columns],
        *,
        filters: Sequence[tuple[int, int]] = (),
        stops: Sequence[tuple[int, int]] = (),
    ) -> Compared: ...
    def instructions(
        self,
        tid: int,
        *,
        filters: Sequence[tuple[int, int]] = (),
        stops: Sequence[tuple[int, int]] = (),
    ) -> int: ...

class TracerStats(TypedDict):
    retired: int
    stops: int
    seconds: float
    processes: int

def check_program(
    argv: Sequence[bytes],
    *,
    env: dict[bytes, bytes] | None = None,
    cwd: str | PathLike[str] | None = None,
) -> None: ...
def check_processes(pids: Sequence[int]) -> None: ...

@final
class Tracer:
    def __init__(
        self,
        argv: Sequence[bytes],
        *,
        env: dict[bytes, bytes] | None = None,
        cwd: str | PathLike[str] | None = None,
        no_aslr: bool = False,
        truth: str | PathLike[str] | None = None,
        cut_at_branches: bool = False,
        pin: bool = True,
        blocked: Sequence[int] = (),
        start: tuple[str | None, int, int, bool] | None = None,
        stop: tuple[str | None, int, int, bool] | None = None,
    ) -> None: ...
    @staticmethod
    def attach(
        pids: Sequence[int],
        *,
        truth: str | PathLike[str] | None = None,
        cut_at_branches: bool = False,
    ) -> Tracer: ...
    def next_batch(self, timeout: float) -> tuple[bytes, list[bytes]] | None: ...
    def signal(self, number: int) -> None: ...
    def release(self) -> None: ...
    def kill(self) -> None: ...
    @property
    def pid(self) -> int: ...
    def stats(self) -> TracerStats: ...

@final
class BulkUnit:
    def __init__(self, **settings: int | str | bool | tuple[str, ...]) -> None: ...
    def feed(self, records: bytes, /) -> None: ...
    def overflow(self, clock: int, ip: int | None = None) -> None: ...
    def set_ranges(self, ranges: list[tuple[int, int, int]], /) -> None: ...
    def take(self) -> bytes: ...
    def state(self) -> bytes: ...
    def restore(self, state: bytes, /) -> None: ...
    @property
    def stopped(self) -> bool: ...
    @property
    def written(self) -> int: ...

def unzstd(pieces: Iterable[Buffer], write: Callable[[bytes], object], limit: int) -> int: ...
