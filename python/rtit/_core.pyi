"""The native module: decoders, images, packets, the tracer, and conversions of their columns.

A `Column` has no copy of its numbers: `numpy.asarray(column)` is a read-only view. Times are TSC
ticks, sizes and offsets bytes; "u64" names a column's type. Nothing here waits with the GIL held.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Final, TypedDict, final

from typing_extensions import Buffer, Unpack

__version__: Final[str]
DEFAULT_MAX_COUNTERS: Final[int]
"""The default of `DecoderSettings.max_counters`."""
PACKETS: Final[tuple[str, ...]]
"""The names of packets, by the number in `PacketColumns.kind`."""

def return_freed_memory() -> None:
    """Make malloc return large blocks to the system when they are freed, in the whole process."""

def read_truncated_maps_as_zeros() -> None:
    """Make pages of a mapped file read as zeros after the file was truncated, in the whole process.

    By default SIGBUS ends the process. The reader must check the size of the file afterwards.
    """

def unlz4(data: bytes, limit: int) -> bytes:
    """Return the contents of a legacy LZ4 frame, in which Linux kernels are compressed.

    Raises ValueError for other data and for more than `limit` bytes.
    """

def unzstd(chunks: Iterable[Buffer], write: Callable[[bytes], object], limit: int) -> int:
    """Decompress the Zstandard frames in `chunks`, call `write` with each part of about 1 MB, and
    return the number of bytes.

    A frame that breaks off yields its whole blocks; zeros between frames are skipped. Raises
    ValueError for other data and for more than `limit` bytes.
    """

@final
class Column:
    """Numbers of one type (u8, u32, u64, f64) with the read-only buffer protocol."""
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

Columns = dict[str, Column]
"""Columns by name. The functions that return them list the names in order."""

# Arrow

_ArrowField = tuple[str, str, Sequence[str]]
"""Name, dtype (u1, u4, u8, i4, f8), and the labels of a categorical column by number."""

def encode_perfetto_events(tracks: object, times: object, names: object) -> bytes:
    """Return TracePacket messages of Perfetto, which begin and end slices.

    Columns (u64): UUIDs of tracks, times in nanoseconds, and interned names; 0 ends a slice.
    """

def encode_chrome_events(
    pid: int, tracks: object, times: object, names: object, labels: Sequence[str]
) -> bytes:
    """Return events of the Trace Event Format, each with a comma and a newline after it.

    Columns (u64) as for `encode_perfetto_events`; `tracks` are thread numbers. `labels` are the
    names from 1 on, as JSON.
    """

def arrow_schema(fields: Sequence[_ArrowField]) -> object:
    """Return the `arrow_schema` capsule of a struct. Raises ValueError for an unknown dtype."""

def arrow_array(fields: Sequence[_ArrowField], columns: Sequence[object]) -> object:
    """Return the `arrow_array` capsule of a struct of buffers, which are not copied.

    Raises ValueError for columns of different lengths, BufferError or TypeError for other objects.
    """

def arrow_stream(
    fields: Sequence[_ArrowField],
    batches: Iterator[tuple[Sequence[_ArrowField], Sequence[object]]],
) -> object:
    """Return an `arrow_array_stream` capsule. Each batch has its fields, which may have other
    labels, and its columns. An error of the iterator is one of the stream.
    """

# Instructions

def disassemble(data: bytes, ip: int, bits: int = 64) -> str:
    """Return the instruction at `ip` in Intel syntax; `(bad)` if the bytes are none. `bits`: 16, 32
    or 64, else ValueError.
    """

def decode_instruction(data: bytes, ip: int, bits: int = 64) -> tuple[int, int, int, bool]:
    """Return length, class (`rtit.x86.Class`), target of a direct branch (else 0), and whether the
    instruction repeats (REP). Raises ValueError for invalid or incomplete bytes.
    """

def conditional_branches(
    space: Space, starts: Buffer, sizes: Buffer, bits: int = 64
) -> tuple[Column, Column, Column, Column, tuple[int, int] | None]:
    """Return the conditional branches of code ranges (u64), whether they ran or not.

    Columns: index of the range (u32); addresses of the branch, of the next instruction and of the
    target (u64). A range ends at its first invalid instruction; the code is that at the beginning.
    After 2**20 instructions the last item is the range in which to continue, and how many of its
    bytes are done; else None. Raises ValueError for columns of different lengths.
    """

def count_instructions(
    space: Space, starts: Buffer, instructions: Buffer, counts: Buffer, bits: int = 64
) -> tuple[Columns, int]:
    """Return how often each instruction ran, from runs: start (u64), number of instructions (u32),
    count (u64). The code is that at the beginning. Raises ValueError for different lengths.

    Columns by address: `ip` (u64), `size`, `kind` (u8, `rtit.x86.Class`), `count` (u64). The number
    is that of instructions that ran where no code is known.
    """

# Images

@final
class Code:
    """Bytes of code that many spaces share without copies."""
    def __init__(self, data: bytes) -> None: ...
    def slice(self, offset: int, size: int) -> Code:
        """Return a part, which shares the bytes. Raises ValueError if it is not inside."""
    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...

@final
class Space:
    """The code of one address space over time."""
    def __init__(self) -> None: ...
    def map(self, time: int, address: int, code: Code | bytes) -> None:
        """Map code at `address` from `time` on. It replaces what it overlaps."""
    def poke(self, time: int, address: int, data: bytes) -> None:
        """Replace bytes of mapped code from `time` on."""
    def unmap(self, time: int, address: int, size: int) -> None:
        """Make `size` bytes unknown from `time` on."""
    def clear(self, time: int) -> None:
        """Remove all mappings at `time`, as an exec does."""
    def fork(self, time: int) -> Space:
        """Return the space of a process that was forked from this one at `time`."""
    def adopt(self, time: int, parent: Space) -> None:
        """Make this a copy of `parent` from `time` on: a process id was used again."""
    def read(self, time: int, address: int, size: int) -> bytes:
        """Return at most `size` bytes of code, fewer up to the first unknown one. Raises an error
        of the page callback.
        """
    def has_equal_code(self, other: Space) -> bool:
        """Return whether both have the same code at all times, and no page callback."""
    def set_page_callback(self, callable: Callable[[int], Buffer | None] | None) -> None:  # noqa: A002
        """Set the source of unmapped code: it takes the address of a page of 4096 bytes and returns
        at most as many bytes, or None. Answers are kept, also None.
        """
    def forget(self, address: int, size: int) -> None:
        """Drop the answers of the page callback for these bytes."""
    @property
    def changes(self) -> int:
        """The number of changes recorded."""

@final
class ElfFile:
    """An ELF file. The constructor and the methods raise ImageError for a file that is missing,
    malformed, or changed since it was opened.
    """
    def __init__(self, path: str | PathLike[str]) -> None: ...
    @property
    def path(self) -> Path: ...
    @property
    def bits(self) -> int:
        """32 or 64."""
    @property
    def kind(self) -> int:
        """e_type: 2 executable, 3 shared object or position-independent executable."""
    @property
    def machine(self) -> int:
        """e_machine: 3 i386, 62 x86-64."""
    @property
    def entry(self) -> int: ...
    @property
    def build_id(self) -> bytes | None: ...
    @property
    def debug_link(self) -> tuple[bytes, int] | None:
        """Name and CRC-32 of the debug file that .gnu_debuglink names."""
    @property
    def segments(self) -> list[tuple[int, int, int, int, int]]:
        """PT_LOAD segments: offset, address, size in the file, size in memory, flags."""
    @property
    def program_headers(self) -> tuple[int, int]:
        """Address of the program headers, 0 if they are not loaded, and their number."""
    @property
    def dynamic(self) -> int:
        """Address of the dynamic section, 0 without one."""
    @property
    def is_program(self) -> bool:
        """Whether the file is a program, also a position-independent one, and no library."""
    @property
    def has_loader(self) -> bool:
        """Whether the file names a loader."""
    def symbols(self) -> tuple[Column, Column, list[str], Column]:
        """Return code symbols, sorted by value: values, sizes (u64), names, bindings (u8: the
        character g global, w weak, l local, p a PLT stub). Of several at one value the best is
        first. Reads the file again at each call.
        """
    def symbol_values(self, names: Sequence[str]) -> dict[str, int]:
        """Return the values of the symbols with these names, of any type, in `.symtab`."""

@final
class Functions:
    """The functions of a file by file offset, read when they are first needed.

    `debug` has more symbols of the same program. With `path`, that of the recorded file, a
    function that has only a frame description (.eh_frame) has a name such as python3.11+0x1a2b40.
    Methods raise ImageError if `elf` is malformed or changed since it was opened.
    """
    def __init__(
        self, elf: ElfFile, debug: ElfFile | None = None, path: str | None = None
    ) -> None: ...
    @staticmethod
    def from_rows(start: int, end: int, rows: Sequence[tuple[int, int, str]]) -> Functions:
        """Return functions (address, size, name) in memory from `start` up to `end`; offsets are
        addresses. A size of 0 reaches to the next function. Raises ValueError if `end` is below
        `start`.
        """
    def columns(self) -> tuple[Column, Column, Column, Column]:
        """Return offsets, sizes, addresses (u64) and bindings (u8, as in `ElfFile.symbols`), in
        order of offset; of several at one offset the best is first.
        """
    def name(self, index: int) -> str:
        """Return the name of a row of `columns`. Raises IndexError."""
    def owned_ranges(self) -> tuple[Column, Column, Column]:
        """Return disjoint ranges of file offsets, sorted: start, end, function index (u64)."""
    def index_at(self, offset: int) -> int | None:
        """Return the index of the function that owns a file offset."""
    def source_line(self, offset: int) -> tuple[str, int] | None:
        """Return source file and line of the instruction at a file offset, from the DWARF of the
        debug file or the file; None if unknown or if the file exceeds 256 MB.
        """
    def source_lines(
        self, windows: Sequence[tuple[int, int]] | None = None, start: int = 0, max_rows: int = ...
    ) -> tuple[Column, Column, Column, Column, list[str], int | None, bool]:
        """Return all source lines, or those of `windows` of addresses, in order of address.

        Start, end (u64), file index and line (u32) of each range; file names; the start of the
        first range that `max_rows` excludes, or None; whether lines are missing because a limit
        was reached. Ranges that begin before `start` are left out.
        """
    def inlined_calls(self, windows: Sequence[tuple[int, int]]) -> InlinedCallColumns:
        """Return the inlined calls with code in `windows` of addresses, from DWARF.

        Ranges: `start`, `end` (u64), `call`. Calls, of which an inner one is after an outer one:
        `parent` (2**32-1 for none), `function`, `call_file` (2**32-1 if unknown), `call_line`.
        Functions: `names`, and where they are declared, `first_file`, `first_line`.
        """
    def address(self, offset: int) -> int:
        """Return the address of a file offset; the offset itself if the file has none."""

class InlinedCallColumns(TypedDict):
    start: Column
    end: Column
    call: Column
    parent: Column
    function: Column
    call_file: Column
    call_line: Column
    names: list[str]
    first_file: Column
    first_line: Column
    files: list[str]
    is_incomplete: bool

@final
class Names:
    """The memory regions of a process over its life: start, end (addresses), since, until (times),
    file offset of `start`, file or other name, functions.
    """
    def __init__(
        self, regions: Sequence[tuple[int, int, int, int, int, str, Functions | None]]
    ) -> None: ...

def recursive_calls(parents: object, functions: object, kinds: object) -> Column:
    """Return 1 for each row of a call tree with a caller that has the same function on the same
    stack, else 0. The columns are u32, u32 and u8.
    """

def demangle(name: str) -> str:
    """Return the readable form of a Rust or C++ symbol name; other names unchanged."""

# Packets

class PacketColumns(TypedDict):
    """A batch of packets. `rtit.trace.tables.packets` explains `detail` and `payload`."""

    kind: Column  # u8, index into `PACKETS`
    detail: Column  # u8
    offset: Column  # u64
    payload: Column  # u64
    end: int
    """Offset after the last packet."""
    bad: tuple[int, int, str, bool] | None
    """Bytes there that are no packet: offset, length, reason, whether the data ends inside one."""
    times: list[Column] | None
    """With clocks, after each packet: time, core cycles (u64), core cycles in a TSC tick (f64)."""
    raw: bytes | None
    """With `with_bytes`, the bytes of all packets."""

@final
class PacketScan:
    """Reads a stream packet by packet from its first byte, and after bad bytes from the next PSB.

    `clocks` has the settings of the clocks: mtc_freq, tsc_ctc, max_nonturbo_ratio, start_time,
    guest_tsc. With `timing_samples` the times of packets are numbers of samples. Packets that an
    erratum of `errata` (SKD007, SKZ84) has corrupted are bad bytes.
    """
    def __init__(
        self,
        stream: Buffer | Iterable[Buffer],
        clocks: Mapping[str, Any] | None = None,
        *,
        timing_samples: bool = False,
        errata: Collection[str] = (),
        with_bytes: bool = False,
    ) -> None: ...
    def next(self, limit: int) -> PacketColumns | None:
        """Return up to `limit` more packets; None at the end."""
    def timing_samples(self) -> Columns:
        """As `StreamDecoder.timing_samples`."""

# Decoders

_Start = tuple[int | None, int, int]
"""State at the first byte: next IP (None: tracing is off), bits of the code, LastIP."""

class DecoderSettings(TypedDict, total=False):
    """How a stream was recorded, and how to decode it, as `rtit.trace.Settings` explains. The
    constructor of a decoder raises ValueError for a number out of range, TypeError for an unknown
    name. Defaults are 0, None or False.
    """

    mtc_freq: int  # IA32_RTIT_CTL.MTCFreq, 0 to 15
    tsc_ctc: tuple[int, int]  # CPUID.15H (EBX, EAX); without it MTCs give no time
    max_nonturbo_ratio: int  # MSR_PLATFORM_INFO[15:8]; without it CYCs give no time
    start_time: int  # completes the 56 bits of TSC packets
    guest_tsc: tuple[int, int]  # offset and multiplier (units of 2**-48) of the TSC of guests
    no_tnt: bool  # recorded with DisTNT
    no_retcomp: bool  # recorded with DisRETC
    cpu: tuple[int, int, int] | None  # DisplayFamily, DisplayModel, stepping: selects errata
    ranges: Sequence[tuple[int, int]]  # IP filters, first and last address, at most 4
    start: _Start | None  # None: decoding starts at the first PSB
    walk: bool  # decode with the interpreter, the reference for the transition tables
    timing_samples: bool  # times of rows are numbers of timing samples
    max_counters: int  # distinct runs, and distinct edges, that `totals` counts

class DecoderCounts(TypedDict):
    """Totals of a stream, as `rtit.trace.Counts` explains. The dicts are by name, without zeros."""

    packets: dict[str, int]
    errors: dict[str, int]
    errata: dict[str, int]
    exact_bytes: int
    resumed_bytes: int
    lost_bytes: int
    elsewhere_bytes: int
    instructions: int
    conditional: int
    indirect: int
    returns: int
    compressed_returns: int
    asynchronous: int
    cycles: int
    measured_cycles: int
    measured_ticks: int
    inactive_ticks: int

_LedgerRow = tuple[int, int, str, str | None, str | None, int | None, int | None]
"""Start, end, status; class, text, offset and bad value of the error, or None."""

_SpaceKey = tuple[int, int] | tuple[int, int, int]
"""CR3, NR, and optionally the VMCS pointer."""

_ThreadCode = tuple[Space | None, bool, Space | None, Space | None]
"""Code of a thread (None: skipped), whether the start of its intervals is certain, and code of the
process and the kernel of a guest that it runs (None: unknown).
"""

class CallTreeColumns(TypedDict):
    parent: Column
    function: Column
    module: Column
    kind: Column
    root: Column
    call_site: Column
    entry: Column
    calls: Column
    own: Column
    total: Column
    recursive: Column
    thread: Column
    functions: list[str]
    modules: list[str]
    site_region: Column
    site_offset: Column
    entry_region: Column
    entry_offset: Column
    run_node: Column
    run_region: Column
    run_offset: Column
    run_instructions: Column
    run_count: Column
    returned: int
    unwound: int
    switched: int
    unknown: int
    choices: int
    corrected: int
    calls_without_node: int

class CallColumns(TypedDict):
    call: Column
    parent: Column
    stack: Column
    depth: Column
    function: Column
    kind: Column
    root: Column
    end: Column
    ambiguous: Column
    call_site: Column
    entry: Column
    first: Column
    stop: Column
    begin_thread: Column
    end_thread: Column
    self_instructions: Column
    total_instructions: Column
    begin_time: Column
    end_time: Column
    module: Column
    functions: list[str]
    modules: list[str]

@final
class StreamDecoder:
    """Decodes the PT of one logical processor.

    The stream is bytes-like, or an iterable of chunks, which are read as decoding proceeds. `space`
    is the code that no other argument determines. `spaces`: code by CR3, NR and VMCS pointer; a key
    with a VMCS pointer takes precedence, and the kernel over keys with NR 0. `schedule`: starts
    (u64) of the scheduling intervals in order, thread index (u32) of each, and the threads; they
    replace `space`. `kernel`: the upper half of all address spaces; `guest`: all code while NR is
    1.

    `jobs` threads decode segments between PSBs, 0: one for each CPU, at most 8. One thread is used
    with a schedule, timing samples or a page callback, and for `lines`, `functions` and `calls`.

    The first request determines the results: `rows`, `runs`, `instructions`, `branches`,
    `block_ids`, `lines`, `functions`, `count`, `totals`, or those of `ProcessCalls`. Other
    requests raise ValueError. Rows come in batches of about the number requested, of one scheduling
    interval, None at the end. Errors in the stream are in `ledger`. Errors of the iterable and of
    page callbacks are raised; ConcurrentUseError if another thread uses the object.
    """

    ENDS: ClassVar[dict[int, str]]
    EVENTS: ClassVar[dict[int, str]]
    ERRORS: ClassVar[dict[int, str]]
    """Names by number: why a run ended, kinds of events, values of an event of kind error."""
    def __init__(
        self,
        stream: Buffer | Iterable[Buffer],
        space: Space,
        *,
        spaces: dict[_SpaceKey, Space] | None = None,
        schedule: tuple[Buffer, Buffer, Sequence[_ThreadCode]] | None = None,
        kernel: Space | None = None,
        guest: Space | None = None,
        jobs: int = 1,
        **settings: Unpack[DecoderSettings],
    ) -> None: ...
    def rows(self, max_rows: int) -> Columns | None:
        """Return more runs of instructions, and the events between them.

        `start` (u64), `instructions` (u32), `last` (u64, IP of the last instruction), `end` (u8,
        `ENDS`), `bits` (u8: 16, 32, 64), `in_tx` (u8), `space` (u32, number of the address space;
        empty if it is 0 for all), `time` (u64, lower bound), `offset` (u64, packet that ended the
        run). Events: `event_row` (u64, runs of the stream that began before), `event_kind` (u8,
        `EVENTS`), `event_ip`, `event_value`, `event_time`, `event_offset` (u64).
        """
    def runs(self, max_rows: int) -> tuple[Column, Column, Column] | None:
        """Return more runs: start (u64), instructions (u32), hash (u64), as in a truth file."""
    def instructions(self, max_rows: int) -> Columns | None:
        """Return more instructions: `ip` (u64), `size` (u8), `time` of the run (u64), `bits`,
        `in_tx` (u8), `offset` (u64, empty without timing samples), `space` (u32), as `rows`.
        """
    def branches(self, max_rows: int) -> Columns | None:
        """Return more branches and other transfers: `source`, `target` (u64), `kind` (u8, `ENDS`;
        Cut for a branch that was not taken), `time`, `offset` (u64), `space`, `target_space` (u32;
        empty if it is `space` for all), as `instructions`. The target of a system call is 0 if it
        is not known.
        """
    def indexed_branches(self, max_rows: int) -> Columns | None:
        """As `branches`, decoded in one thread, with `index` (u64): the number of instructions
        before the branch.
        """
    def block_ids(self, max_rows: int) -> Column | None:
        """Return more block ids (u32), in whole runs."""
    def blocks(self, first: int = 0) -> Columns:
        """Return the blocks that `block_ids` has reached so far, from id `first` on: `start`,
        `last` (u64), `instructions` (u32), `end`, `continues` (u8: 1 if the next block continues
        the run in memory), `bits` (u8).
        """
    def timing_samples(self) -> Columns:
        """Return the timing packets since the last call, which are numbered from 1: `offset`,
        `time` (estimate), `cycles` (core cycles so far; u64), `frequency` (f64, core cycles in a
        TSC tick; NaN if unknown), `known` (u8, 1 if the packet contains the time), `span` (u64,
        number of the span, in which every cycle was counted at one frequency).
        """
    def start_listing(self, listing: Listing) -> None:
        """Request lines of this format."""
    def lines(
        self, max_bytes: int, max_lines: int = ..., until: int = ...
    ) -> tuple[bytes, int] | None:
        """Return more lines up to the time `until`: the text, and how many; None at the end."""
    def next_time(self) -> int | None:
        """Return the time of the next line; None at the end."""
    def functions(self, names: Names, others: Sequence[Names] = ()) -> list[tuple[str, str, int]]:
        """Decode to the end and return instructions by function: name, file ("" if unknown),
        instructions. `others`: names of the other address spaces in their order.
        """
    def count(self) -> DecoderCounts:
        """Decode to the end and return `counts`. Keeps only counts and the ledger."""
    def next_period_totals(self, starts: Sequence[int]) -> tuple[int, dict[str, Any]] | None:
        """Decode to the end of a period and return its number and totals, as `totals`; None after
        the last one. `starts`: the times (TSC) of the code at which periods begin, the same in each
        call. Period 0 is before all of them. Periods in which nothing was decoded may be left out.
        """
    def totals(self) -> dict[str, Any]:
        """Decode to the end and return how often each run and each edge was executed.

        Distinct runs, sorted: `run_start`, `run_count` (u64), `run_instructions` (u32). An
        instruction ran as often as all runs that contain it. Distinct edges, sorted: `edge_source`,
        `edge_target`, `edge_count` (u64), `edge_kind` (u8, `ENDS`; Cut for a branch that was not
        taken). Executions beyond `max_counters`: `uncounted_runs`, and `uncounted_edges`, a list by
        kind.
        """
    def counts(self) -> DecoderCounts:
        """Return the totals so far; an empty dict before the first request."""
    def ledger(self, first: int = 0, max_rows: int = ...) -> list[_LedgerRow]:
        """Return the status of all bytes so far, without gaps, from row `first` on."""
    @property
    def intervals_begun(self) -> int:
        """How many scheduling intervals have begun: the interval of the last batch."""
    @property
    def visited_intervals(self) -> list[int]:
        """After `count`: the intervals in which anything ran."""

ProcessorTasks = tuple[int, Sequence[tuple[Buffer, Buffer]], Buffer, Sequence[Names]]
"""The address of `__switch_to`; of each decoder the start (TSC, u64) and the task (u32) of each
scheduling interval; the process of each task (u32), as an index in the names.
"""

@final
class ProcessCalls:
    """The calls of a process, from one new decoder for each of its threads.

    `is_whole`: the streams begin with the threads. One request for results decodes all streams;
    for other results there must be new decoders. In the results a thread is an index in `decoders`.

    With `tasks`, the decoders are those of processors with the kernel's code, and a thread is a
    task: an index in the third element of `tasks`; its length is the number of an unknown task.
    """
    def __init__(
        self,
        decoders: Sequence[StreamDecoder],
        names: Names,
        is_whole: bool,
        max_pairs: int,
        tasks: ProcessorTasks | None = None,
    ) -> None: ...
    def totals(self, max_runs: int) -> Columns:
        """Return who called whom, as u64 columns.

        A row for each of at most `max_pairs` pairs of locations: `from_region`, `from_offset`,
        `to_region`, `to_offset`, `calls`, `inclusive` (instructions until the calls returned; none
        for calls of a function that is running). A location is a row of `names`, sorted by start,
        and an offset in its file; without a region 2**64-1 and an address; 2**64-1 and 0 called
        what ran first.

        A row for each context, a call within others: `parent` (its row, or 2**64-1), `call` (row of
        the pair), `own` (instructions of the called function itself). One row: `deep_calls`, too
        deep or in too many contexts, and `calls_beyond_pairs`, between other locations.

        A row for each of at most `max_runs` runs of instructions in a context, sorted: the row of
        the context `run_context`, region `run_region` (2**32-1 for none) and offset `run_offset` of
        the first instruction, `run_instructions`, and how often, `run_count`. Only the offset and
        the count are u64, the others u32. Code that counts for
        another function in `own`, such as a PLT stub, is left out.
        """
    def tree(self, max_runs: int) -> CallTreeColumns:
        """Return the call tree, for `rtit.trace.tables.call_tree`.

        A row for each node, parents first; `parent` is 2**32-1 for roots. `thread`: in which the
        stack began. If `max_runs` is not 0, each node has region and offset of its call and entry,
        and there are rows for at most `max_runs` runs of instructions, as in `totals`, but by node.
        """
    def rows(self, max_rows: int) -> CallColumns | None:
        """Return more calls, in the order of their ends, for `rtit.trace.tables.calls`.

        `parent` is 2**64-1 for roots. `begin_thread` and `end_thread` ran the beginning and the
        end. `functions` and `modules`: names and paths by number, for all calls so far.
        """

@final
class ReusableDecoder:
    """Decodes many short streams over the same code, one after the other, to edges.

    What it learned of the code is kept, at most 32 bytes for each of `max_instructions`. Arguments
    are as for `StreamDecoder`.
    """

    INDEXES: ClassVar[list[str]]
    BRANCHES: ClassVar[list[str]]
    """Names of hashes and of edge filters, by the numbers that `run` takes."""
    def __init__(
        self,
        space: Space,
        *,
        spaces: dict[_SpaceKey, Space] | None = None,
        max_instructions: int = ...,
        **settings: Unpack[DecoderSettings],
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
        start: _Start | None = None,
    ) -> dict[str, Any]:
        """Decode a stream and return the fields of `rtit.trace.DecodeResult`.

        `bitmap` is writable, of a power of two of bytes; edges are counted there. `add` keeps its
        contents, `classes` writes AFL's classes. It is unchanged if an error is raised.
        """
    def edges(self) -> Columns:
        """Return the edges of the last stream, as in `StreamDecoder.totals`."""
    def invalidate(
        self,
        space: Space,
        spaces: dict[_SpaceKey, Space] | None = None,
        start: int = 0,
        end: int = ...,
    ) -> None:
        """Drop code from address `start` up to `end`; the spaces have the new code. Raises
        ValueError if the keys are others.
        """
    def ledger(self, first: int = 0, max_rows: int = ...) -> list[_LedgerRow]: ...
    def counts(self) -> DecoderCounts: ...

# Text

_Bounds = tuple[int, int, int, int]

@final
class Listing:
    """The format and the selection of the lines of a stream. `fields` are from `FIELDS`.

    `clock`: shift, mult, zero of the conversion to nanoseconds; None prints TSC ticks. `ranges`:
    for each address space the selected start, end (addresses), since, until (times); None: all.
    `times`: first and last. `indexes`: only the instructions from one number, by the order of
    execution, up to another. `tail`: only so many last lines. `others`: the other address spaces in
    their order, with names. Raises ValueError for an unknown field, or none.
    """

    FIELDS: ClassVar[list[str]]
    def __init__(
        self,
        fields: Sequence[str],
        space: Space,
        names: Names,
        *,
        tid: int,
        clock: tuple[int, int, int] | None = None,
        ranges: Sequence[Sequence[_Bounds]] | None = None,
        times: tuple[int, int] = ...,
        indexes: tuple[int, int] = ...,
        tail: int | None = None,
        others: Sequence[tuple[Space, Names]] = (),
    ) -> None: ...

_TableColumn = (
    tuple[str, object, int]
    | tuple[str, object, Sequence[str]]
    | tuple[str, object, object, Sequence[tuple[str, bool]]]
)
"""A form, numbers (u64), and: the width for hexadecimal, decimal (2**64-1 is `-`), signed and
commas; words by number for "words"; offsets (u64) and names, each with whether it is a file, for
"locations", which prints `rtit.image.Location`.
"""

def table_lines(columns: Sequence[_TableColumn]) -> bytes:
    """Return columns as lines of UTF-8, as many as the shortest column has rows. Raises ValueError
    for an unknown form and a width over 1024.
    """

# Truth

RunColumns = tuple[Buffer, Buffer, Buffer]
"""Start (u64), number of instructions (u32), and hash (u64) of runs."""

class Comparison(TypedDict, total=False):
    """If identical: instructions to excess. Otherwise instructions up to the first difference, and
    the rest except runs to unchecked; `TruthFile.find` then has `identical` only.
    """

    identical: bool
    instructions: int
    runs: int
    shortfall: int
    excess: int
    repeated: int
    """Instructions of loop iterations that the decoded path leaves open."""
    unchecked: int
    truth_index: int
    decoded_index: int
    truth: tuple[int, int] | None
    decoded: tuple[int, int] | None
    """The next run of each: start and instructions."""
    until: int | None
    """The number of instructions by which the paths have parted, if only hashes differ."""
    reason: str

@final
class TruthFile:
    """What a program executed. Raises OSError, and TruthError for a malformed file.

    `filters` and `stops` are FilterEn and TraceStop ranges, inclusive at both ends: the truth is
    cut down to what they show. `decoded` are columns, or an iterable of them.
    """
    def __init__(self, path: str) -> None: ...
    @property
    def complete(self) -> bool:
        """Whether the recorder was not interrupted."""
    def threads(self) -> list[tuple[int, int, int, int | None, bool]]:
        """Check the whole file, and return tid, pid, instructions, wait status, and whether the
        file has the end, of each thread.
        """
    def compare(
        self,
        tid: int,
        decoded: RunColumns | Iterable[RunColumns],
        *,
        filters: Sequence[tuple[int, int]] = (),
        stops: Sequence[tuple[int, int]] = (),
        prefix: bool = False,
        skip: int = 0,
    ) -> Comparison:
        """Compare a thread with a decoded path. `prefix`: either may end first. `skip`: ignore so
        many instructions of the truth, up to the start of a run.
        """
    def find(
        self,
        tid: int,
        decoded: RunColumns | Iterable[RunColumns],
        *,
        filters: Sequence[tuple[int, int]] = (),
        stops: Sequence[tuple[int, int]] = (),
    ) -> Comparison:
        """Search for a decoded path anywhere in a thread."""
    def instructions(
        self,
        tid: int,
        *,
        filters: Sequence[tuple[int, int]] = (),
        stops: Sequence[tuple[int, int]] = (),
    ) -> int:
        """Return how many instructions of a thread the ranges show."""

# Recording

class TracerStats(TypedDict):
    """Totals so far; empty in a process that was forked since."""

    retired: int
    stops: int
    seconds: float
    processes: int

_WindowEdge = tuple[str | None, int, int, bool]
"""Path or None, offset in the file; number of instructions, whether after the start edge."""

def check_program(
    argv: Sequence[bytes],
    *,
    env: dict[bytes, bytes] | None = None,
    cwd: str | PathLike[str] | None = None,
) -> None:
    """Raise the errors of `Tracer` that need no start of the program."""

def check_processes(pids: Sequence[int]) -> None:
    """Raise the errors of `Tracer.attach` that need no stop of the processes."""

@final
class Tracer:
    """Starts a program under the ptrace tracer. Linux on x86-64 only.

    `argv[0]` is searched in the PATH of `env`. `start` and `stop` say where tracing is switched on
    and off. `blocked`: signals that are blocked at the start; None: those of the calling thread.
    Raises RecordError with the exit code 127 (not found), 126 (not executable) or 125.

    Dropping the object kills the program, or detaches from attached processes. After a fork the
    child has no program: `next_batch` returns None, other methods do nothing.
    """
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
        blocked: Sequence[int] | None = (),
        start: _WindowEdge | None = None,
        stop: _WindowEdge | None = None,
    ) -> None: ...
    @staticmethod
    def attach(
        pids: Sequence[int],
        *,
        truth: str | PathLike[str] | None = None,
        cut_at_branches: bool = False,
    ) -> Tracer:
        """Trace running processes with all their threads and children. Raises RecordError."""
    def next_batch(self, timeout: float) -> tuple[bytes, list[bytes]] | None:
        """Return the events since the last call: records of 40 bytes and blobs
        (`rtit.capture.events`); empty after `timeout` seconds, None after the last event.
        """
    def signal(self, number: int) -> None:
        """Send a signal to the first process. Raises ProcessLookupError if it has ended."""
    def release(self) -> None:
        """Let each thread run without steps from its next stop on."""
    def kill(self) -> None:
        """Kill the program and its children, or detach. The events still have to be read."""
    @property
    def pid(self) -> int:
        """The first process."""
    def stats(self) -> TracerStats: ...

@final
class BulkUnit:
    """A trace unit for one thread in user mode, from capture events to PT, or for a processor.

    Settings are `ctl` (IA32_RTIT_CTL without TraceEn, ADDRn_CFG and the output scheme), `psb_cyc`,
    fields of `rtit.unit.TimeModel` and `rtit.unit.Parameters`, and `circular` or `stop`, the size
    of an output region. Errors are ValueError.
    """
    def __init__(self, **settings: int | str | bool | tuple[str, ...]) -> None: ...
    def feed(self, records: bytes, /) -> None:
        """Process capture events, 40 bytes each (`rtit.capture.events`), in order of time. The
        records before a bad one are processed.
        """
    def overflow(self, clock: int, ip: int | None = None) -> None:
        """Lose packets up to `clock`. The thread is then in user mode before `ip`, or in the
        kernel.
        """
    def start(self, ip: int, state: tuple[bool, int, bool], cr3: int) -> None:
        """Set TraceEn before the instruction at `ip`. `state`: whether CPL is 3, the width of the
        code in bits, RFLAGS.IF.
        """
    def stop(self, clock: int) -> None:
        """Clear TraceEn."""
    def transfer(
        self,
        clock: int,
        target: int,
        state: tuple[bool, int, bool],
        event_ip: int | None = None,
        vector: int | None = None,
        page_fault: int | None = None,
        iret: int | None = None,
    ) -> None:
        """Transfer control: a far branch (`iret`: the address of an IRET), or an interrupt or
        exception before `event_ip`.
        """
    def mov_cr3(self, clock: int, next_ip: int, cr3: int) -> None:
        """Execute MOV to CR3."""
    def set_interrupt_flag(self, clock: int, ip: int, next_ip: int, flag: bool) -> None:
        """Execute an instruction that sets RFLAGS.IF and is no branch."""
    def sleep(
        self, clock: int, ip: int, state: int, sub_state: int, mwait: tuple[int, int] | None = None
    ) -> None:
        """Enter a C-state by the instruction at `ip`; `mwait`: its hints and extensions."""
    def enter_smm(self, clock: int, ip: int) -> None:
        """Enter system management mode before the instruction at `ip`."""
    def leave_smm(self, clock: int, ip: int, state: tuple[bool, int, bool], cr3: int) -> None:
        """Return from system management mode to `ip`."""
    def wake(self, clock: int, last: int, deepest: int, reason: int) -> None:
        """Return to C0. `last` and `deepest` are C-states of the core."""
    def set_ranges(self, ranges: list[tuple[int, int, int]], /) -> None:
        """Set at most 4 ranges (1 FilterEn or 2 TraceStop, first, last) for the next enable."""
    def take_output(self) -> bytes:
        """Return the bytes since the last call; of a circular region at most its size."""
    def save_state(self) -> bytes:
        """Return all state except the output."""
    def restore_state(self, state: bytes, /) -> None:
        """Continue from the state of a unit with equal settings."""
    @property
    def stopped(self) -> bool:
        """IA32_RTIT_STATUS.Stopped."""
    @property
    def written(self) -> int:
        """The number of bytes written so far."""
