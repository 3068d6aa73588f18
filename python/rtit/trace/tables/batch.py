"""What the small numbers in columns stand for. A column compares with a member
(`rows.end == End.RETURN`), and a number becomes one (`End(rows.end[0]).label`).

Columns with names, in batches: for NumPy, for Arrow, and one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from enum import IntEnum
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

if TYPE_CHECKING:
    from numpy.typing import NDArray


_WORDS = {
    "MODE_EXEC": "mode.exec",
    "MODE_TSX": "mode.tsx",
    "DISAGREEMENT": "trace and code disagree",
    "HARDWARE_LOSS": "loss reported by hardware",
}


class Category(IntEnum):
    """A number with a name."""

    @property
    def label(self) -> str:
        """The name in words, as it is printed."""
        return _WORDS.get(self.name, self.name.lower().replace("_", " "))

    @classmethod
    def labelled(cls, label: str) -> Self:
        """The one of this label. Raises ValueError."""
        found: Self | None = _by_label(cls).get(label)
        if found is None:
            raise ValueError(f"no {cls.__name__} is called {label!r}")
        return found


_C = TypeVar("_C", bound=Category)


@cache
def _by_label(kind: type[_C]) -> dict[str, _C]:
    return {each.label: each for each in kind}


class End(Category):
    """Why a run of instructions ended: what its last instruction did, or what came between."""

    CUT = 0  # for no reason in the program: the run goes on in the next row
    CONDITIONAL = 1  # taken
    JUMP = 2
    CALL = 3
    INDIRECT_JUMP = 4
    INDIRECT_CALL = 5
    RETURN = 6
    FAR = 7  # far JMP, CALL, RET, IRET and their kin
    SYSCALL = 8
    EVENT = 9  # struck before the next instruction
    OFF = 10  # tracing was turned off after an instruction that is no transfer
    LOST = 11  # what followed is
    END_OF_STREAM = 12
    VM_ENTRY = 13  # VMLAUNCH, VMRESUME


class EventKind(Category):
    """What happened, and what an event's `ip` and `value` are then; 0 where nothing is said."""

    ENABLED = 1
    """TIP.PGE: tracing goes on at `ip`."""
    DISABLED = 2
    """TIP.PGD at a branch: `ip` the last instruction, `value` where it went, 0 if not known."""
    ASYNC = 3
    """FUP and TIP: struck before `ip`, went on at `value`."""
    ASYNC_DISABLED = 4
    """FUP and TIP.PGD: struck before `ip`; `value` where it went, 0 if not known."""
    OVERFLOW = 5
    """OVF: the processor lost packets."""
    STOPPED = 6
    """TraceStop."""
    RESUMED = 7
    """Decoding went on after a loss, at `ip`."""
    ERROR = 8
    """`ip` the bad value, `value` its `ErrorClass`; the ledger has the rest."""
    PSB = 9
    """`ip` that of its FUP, 0 if tracing is off."""
    PAGING = 10
    """PIP: `value` CR3, bit 0 NR."""
    VMCS = 11
    """`value` the pointer."""
    MODE_EXEC = 12
    """`value` bit 0 CS.L, bit 1 CS.D, bit 2 IF."""
    MODE_TSX = 13
    """`value` bit 0 InTX, bit 1 TXAbort."""
    PTWRITE = 14
    """PTW: `value` the operand, `ip` the PTWRITE, 0 if not known."""
    EXSTOP = 15
    MWAIT = 16
    """`value` hints, extensions << 32."""
    PWRE = 17
    """`value` sub C-state, C-state << 4, HW << 8."""
    PWRX = 18
    """`value` deepest, last << 4, wake reason << 8."""
    CBR = 19
    """`value` the ratio."""
    CFE = 20
    """`value` type, vector << 8."""
    EVD = 21
    """`ip` the type (no address), `value` the payload."""
    BLOCK_BEGIN = 22
    """BBP: `value` type, SZ << 8."""
    BLOCK_ITEM = 23
    """BIP: `ip` the ID (no address), `value` the payload."""
    BLOCK_END = 24
    """BEP."""
    MNT = 25
    """`value` the payload."""
    TRIG = 26
    """TRIG, later than the chapter: `value` TRBV, MULT << 8, ICNTV << 9, ICNT << 16; `ip` before
    which instruction, 0 if not known.
    """


class ErrorClass(Category):
    """What kind of error made bytes of a stream lost."""

    BAD_BYTES = 1
    CODE_NOT_FOUND = 2
    DISAGREEMENT = 3
    HARDWARE_LOSS = 4
    UNSUPPORTED = 5
    INCOMPLETE = 6
    REPEATS_UNKNOWN = 7
    """How often a loop without packets went round; once is told. Nothing is lost."""
    TURN_UNKNOWN = 8
    """Whether code ran before or after another thread came to have the CPU; it is told as that of
    the thread before. Nothing is lost.
    """


class Trust(Category):
    """What is known of bytes of a stream."""

    EXACT = 0
    RESUMED = 1
    """Decoded from an IP that a packet gave after a loss; no PSB has confirmed the state since."""
    LOST = 2
    """Not decoded into code that ran."""
    ELSEWHERE = 3
    """What another thread did, of whom nobody has asked."""


Field = tuple[str, str, "type[Category] | tuple[str, ...] | None"]
"""The name of a column, its dtype (u1, u4, u8, i4, f8), and what its numbers stand for, or their
names.
"""

MORE: dict[str, Field] = {
    "time": ("time", "u8", None),
    "earliest": ("earliest", "u8", None),
    "latest": ("latest", "u8", None),
    "cycles": ("cycles", "u8", None),
    "frequency": ("frequency", "f8", None),
    "ipc": ("ipc", "f8", None),
    "tid": ("tid", "i4", None),
    "cpu": ("cpu", "i4", None),
    "pid": ("pid", "i4", None),
    "guest_tid": ("guest_tid", "i4", None),
    "guest_pid": ("guest_pid", "i4", None),
    "space": ("space", "u4", None),
    "target_space": ("target_space", "u4", None),
    "perf_time": ("perf_time", "u8", None),
}
"""Columns that a table has if they are asked for.

With `timing`: `earliest` and `latest`, TSC values between which all of a row ran, as TSCs and MTCs
bound it and CYCs between them (sections 33.3.6.2, 33.8.3), 0 and 2**64-1 where nothing does
(`time` is then kept within them); `cycles`: core cycles that
CYCs had counted when it began; `frequency`: core cycles in a tick of the TSC then, as measured last
or as CBR says, NaN where neither does. Instructions and blocks have `ipc` as well: instructions
a core cycle, of all rows that have the same `cycles`, up to the cycle of the next row that has
more: the stretch between two CYCs; cycles in which nothing was traced, or another thread ran,
count. NaN before the first CYC and behind the last, and where cycles were not all counted (sleep,
loss, another CBR). Packets have `time`, the estimate after each, and the bounds of when it was
made.
Instructions and branches have `perf_time` if it is asked for: the TSC that perf's printed time is
(`perf_times.py`).
Of a trace's tables: `tid` and `cpu` of the stream, -1 where there is none; of a CPU's that threads
share `tid` and `pid` of who ran. Where records of virtual machines say who ran in there, `tid` and
`pid` are those of the host, and `guest_tid` and `guest_pid` the guest's, -1 in the host.
Of a stream of several address spaces `space`: the one in which a row's code is, 0 for what is in
none of `Stream.others`, which are counted from 1 (those of `spaces` come first); of branches and
edges it is that of the source, and `target_space` that of the target.
"""


class Batch:
    """Columns of one length, NumPy arrays with the names in `FIELDS`, and behind them those of
    `more`, which are attributes as well. Whatever takes Arrow's C data interface (pyarrow, polars,
    DuckDB, pandas) takes it as it is, without a copy; categories are dictionaries of their labels
    there.
    """

    FIELDS: ClassVar[tuple[Field, ...]]
    WHEN: ClassVar[str | None] = "time"
    """The column of times, by which rows are chosen."""
    WHERE: ClassVar[tuple[str, str] | None] = None
    """The columns of a row's lowest and highest address; None: rows have no address."""
    more: Mapping[str, NDArray[Any]]
    _buffers: dict[str, Any]

    def __init__(
        self, *columns: Sized, more: Mapping[str, NDArray[Any]] | None = None, **named: Sized
    ) -> None:
        """`columns` in the order of `FIELDS`, or by their names: arrays, or buffers of numbers,
        which become arrays when they are asked for.
        """
        names = (name for name, _, _ in self.FIELDS)
        buffers = {**dict(zip(names, columns, strict=False)), **named}
        if len(columns) + len(named) != len(self.FIELDS) or len(buffers) != len(self.FIELDS):
            raise TypeError(f"{type(self).__name__} has {len(self.FIELDS)} columns")
        self.__dict__.update(_buffers=buffers, more={} if more is None else more)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} stays as it is: {name} is not set")

    def __getstate__(self) -> dict[str, Any]:
        """Arrays travel, and buffers of native code do not."""
        return {**self.__dict__, "_buffers": {name: getattr(self, name) for name in self._buffers}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __len__(self) -> int:
        return len(self._buffers[self.FIELDS[0][0]])

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self):,}>"

    def __getattr__(self, name: str) -> NDArray[Any]:
        found = self.__dict__
        if name in found.get("_buffers", ()):
            import numpy as np

            column: NDArray[Any] = np.asarray(found["_buffers"][name])
            found[name] = column
            return column
        if name in MORE and name in found.get("more", ()):
            more: NDArray[Any] = found["more"][name]
            return more
        raise AttributeError(f"{type(self).__name__} has no column {name!r}")

    def buffer(self, name: str) -> memoryview:
        """A column of `FIELDS` as a buffer, for a look at some numbers: it loads no NumPy."""
        return memoryview(self._buffers[name])

    def lists(self) -> Iterator[list[Any]]:
        """The columns of `FIELDS` as lists of numbers; this loads no NumPy either."""
        return (self.buffer(name).tolist() for name, _, _ in self.FIELDS)

    def replaced(self, **changes: Any) -> Self:
        """The same, but for these columns or other attributes."""
        found = object.__new__(type(self))
        own = {name: changes[name] for name in changes.keys() & self._buffers.keys()}
        kept = {name: value for name, value in self.__dict__.items() if name not in own}
        found.__dict__.update(kept, _buffers={**self._buffers, **own})
        found.__dict__.update((name, value) for name, value in changes.items() if name not in own)
        return found

    @property
    def fields(self) -> tuple[Field, ...]:
        """What columns it has."""
        return *self.FIELDS, *(MORE[name] for name in self.more)

    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns by name."""
        return {name: getattr(self, name) for name, _, _ in self.FIELDS} | dict(self.more)

    def take(self, which: NDArray[Any] | slice) -> Self:
        """Some of the rows: a mask, or a slice."""
        own = {name: getattr(self, name)[which] for name, _, _ in self.FIELDS}
        more = {name: column[which] for name, column in self.more.items()}
        return self.replaced(**own, more=more)

    def with_columns(self, **columns: NDArray[Any]) -> Self:
        """The same with more columns, named in `MORE`."""
        return self.replaced(more={**self.more, **columns})

    def without(self, names: Iterable[str]) -> Self:
        """The same without these columns of `more`."""
        more = {name: column for name, column in self.more.items() if name not in names}
        return self.replaced(more=more)

    @classmethod
    def joined(cls, batches: Iterator[Self], more: tuple[str, ...] = ()) -> dict[str, NDArray[Any]]:
        """The columns of all batches, each in one piece; of `more` those that are named."""
        import numpy as np

        fields = (*cls.FIELDS, *(MORE[name] for name in more))
        parts: dict[str, list[NDArray[Any]]] = {name: [] for name, _, _ in fields}
        for batch in batches:
            columns = batch.columns()
            for name, part in parts.items():
                part.append(columns[name])
        return {
            name: np.concatenate([np.zeros(0, dtype), *parts[name]]) for name, dtype, _ in fields
        }

    def __arrow_c_schema__(self) -> object:
        """A struct of the columns (Arrow PyCapsule interface)."""
        from rtit import _core

        return _core.arrow_schema(native_fields(self.fields))

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """The schema and the columns; another schema is not heeded (Arrow PyCapsule interface)."""
        from rtit import _core

        fields = native_fields(self.fields)
        return _core.arrow_schema(fields), _core.arrow_array(fields, list(self.columns().values()))


B = TypeVar("B", bound=Batch)


class Table(Generic[B]):
    """Batches of a stream, made as they are taken: iterated it decodes from the start each time.

    `rows` gives what is in the batches one by one, `columns` has all in memory. Whatever takes an
    Arrow stream takes the table as it is, a batch at a time. `more` are the columns of `MORE` that
    it has.
    """

    def __init__(
        self, kind: type[B], batches: Callable[[], Iterator[B]], more: tuple[str, ...] = ()
    ) -> None:
        self.kind = kind
        self.more = more
        self._batches = batches

    def __iter__(self) -> Iterator[B]:
        return self._batches()

    def __repr__(self) -> str:
        return f"<Table of {self.kind.__name__}: {', '.join(name for name, _, _ in self.fields)}>"

    @property
    def fields(self) -> tuple[Field, ...]:
        """What columns its batches have."""
        return *self.kind.FIELDS, *(MORE[name] for name in self.more)

    def rows(self) -> Iterator[Any]:
        """One by one, as named values (`Block`, `Instruction`, ...), without the columns of `more`:
        for a look at some; columns are hundreds of times as fast.
        """
        return chain.from_iterable(iter(batch) for batch in self)  # type: ignore[call-overload]

    def columns(self) -> dict[str, NDArray[Any]]:
        """Each column in one piece."""
        return self.kind.joined(iter(self), self.more)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """All batches; another schema is not heeded (Arrow PyCapsule interface)."""
        from rtit import _core

        parts = (list(batch.columns().values()) for batch in self)
        return _core.arrow_stream(native_fields(self.fields), parts)


def native_fields(fields: tuple[Field, ...]) -> list[tuple[str, str, list[str]]]:
    """As native code has them: labels instead of a category."""
    return [(name, dtype, labels(words)) for name, dtype, words in fields]


def labels(category: type[Category] | tuple[str, ...] | None) -> list[str]:
    """The label of each number from 0 on; of a number that stands for nothing it is empty."""
    if category is None or isinstance(category, tuple):
        return list(category or ())
    known = {each.value: each.label for each in category}
    return [known.get(number, "") for number in range(max(known) + 1)]
