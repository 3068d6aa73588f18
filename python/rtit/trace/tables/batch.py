"""Columns of decoded data: `Batch` holds some rows, `Table` produces the batches of a stream.

Small numbers in columns are members of a `LabelledNumber`. A column compares with a member
(`rows.end == End.RETURN`), and a number converts to one (`End(rows.end[0]).label`).

NumPy is imported inside the functions that need it, so that commands which only print do not load
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from enum import IntEnum
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from rtit.trace.tables.arrow_rows import ArrowRows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    U8 = NDArray[np.uint8]
    U32 = NDArray[np.uint32]
    U64 = NDArray[np.uint64]


_LABELS = {
    "MODE_EXEC": "mode.exec",
    "MODE_TSX": "mode.tsx",
    "DISAGREEMENT": "trace and code disagree",
    "HARDWARE_LOSS": "loss reported by hardware",
}


class LabelledNumber(IntEnum):
    """A number with a name and a printed label."""

    @property
    def label(self) -> str:
        """The printed name."""
        return _LABELS.get(self.name, self.name.lower().replace("_", " "))

    @classmethod
    def from_label(cls, label: str) -> Self:
        """Return the member with this label. Raises ValueError."""
        found: Self | None = _by_label(cls).get(label)
        if found is None:
            raise ValueError(f"no {cls.__name__} has the label {label!r}")
        return found


_C = TypeVar("_C", bound=LabelledNumber)


@cache
def _by_label(kind: type[_C]) -> dict[str, _C]:
    return {each.label: each for each in kind}


class End(LabelledNumber):
    """Why a run of instructions ended: the kind of its last instruction, or an interruption."""

    CUT = 0  # no reason in the program: the run continues in the next row
    CONDITIONAL = 1  # taken
    JUMP = 2
    CALL = 3
    INDIRECT_JUMP = 4
    INDIRECT_CALL = 5
    RETURN = 6
    FAR = 7  # far JMP, CALL, RET, IRET and similar
    SYSCALL = 8  # SYSCALL, SYSENTER
    VM_ENTRY = 9  # VMLAUNCH, VMRESUME
    EVENT = 10  # before the next instruction
    OFF = 11  # tracing was disabled after an instruction that is not a branch
    LOST = 12  # the next instructions are lost
    END_OF_STREAM = 13


class BranchKind(LabelledNumber):
    """Kind of a branch or another transfer."""

    NOT_TAKEN = 0  # a conditional branch
    CONDITIONAL = End.CONDITIONAL  # taken
    JUMP = End.JUMP
    CALL = End.CALL
    INDIRECT_JUMP = End.INDIRECT_JUMP
    INDIRECT_CALL = End.INDIRECT_CALL
    RETURN = End.RETURN
    FAR = End.FAR
    SYSCALL = End.SYSCALL  # and INT 80H
    VM_ENTRY = End.VM_ENTRY


class EventKind(LabelledNumber):
    """Kind of an event, and the meaning of its `ip` and `value`; 0 where nothing is stated."""

    ENABLED = 1
    """TIP.PGE: tracing continues at `ip`."""
    DISABLED = 2
    """TIP.PGD at a branch: `ip` the last instruction, `value` its target, 0 if unknown."""
    ASYNC = 3
    """FUP and TIP: an event before the instruction at `ip`; execution continued at `value`."""
    ASYNC_DISABLED = 4
    """FUP and TIP.PGD: an event before `ip`; `value` is the target, 0 if unknown."""
    OVERFLOW = 5
    """OVF: the processor lost packets."""
    STOPPED = 6
    """TraceStop."""
    RESUMED = 7
    """Decoding continued after a loss, at `ip`."""
    ERROR = 8
    """`ip` the bad value, `value` its `ErrorClass`. The ledger has the details."""
    PSB = 9
    """`ip` of its FUP, 0 if tracing is off."""
    PAGING = 10
    """PIP: `value` CR3, bit 0 NR."""
    VMCS = 11
    """`value` the pointer."""
    MODE_EXEC = 12
    """`value` bit 0 CS.L, bit 1 CS.D, bit 2 IF."""
    MODE_TSX = 13
    """`value` bit 0 InTX, bit 1 TXAbort."""
    PTWRITE = 14
    """PTW: `value` the operand, `ip` of the PTWRITE, 0 if unknown."""
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
    """TRIG (newer than the chapter): `value` TRBV, MULT << 8, ICNTV << 9, ICNT << 16; `ip` of the
    next instruction, 0 if unknown.
    """


class ErrorClass(LabelledNumber):
    """Kind of a decoding error."""

    BAD_BYTES = 1
    CODE_NOT_FOUND = 2
    DISAGREEMENT = 3
    HARDWARE_LOSS = 4
    UNSUPPORTED = 5
    INCOMPLETE = 6
    UNKNOWN_REPETITIONS = 7
    """The number of iterations of a loop without packets; one is reported. Nothing is lost."""
    AMBIGUOUS_THREAD = 8
    """Whether code ran before or after a context switch; it is attributed to the thread before.
    Nothing is lost.
    """


class Trust(LabelledNumber):
    """Status of bytes of a stream in the coverage ledger."""

    EXACT = 0
    RESUMED = 1
    """Decoded from the IP of a packet after a loss; no PSB has confirmed the state since."""
    LOST = 2
    """Not decoded."""
    ELSEWHERE = 3
    """Packets of other threads, which were not requested."""


Field = tuple[str, str, "type[LabelledNumber] | tuple[str, ...] | None"]
"""A column: its name, its dtype (u1, u4, u8, i4, i8 or f8), and the category or labels of its
numbers.
"""

LABELS_BY_BATCH = ("",)
"""In place of the labels of a column: each batch has its own."""

EXTRA_COLUMNS: dict[str, Field] = {
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
    "index": ("index", "u8", None),
    "size": ("size", "u8", None),
    "function": ("function", "u4", LABELS_BY_BATCH),
    "file": ("file", "u4", LABELS_BY_BATCH),
    "line": ("line", "u4", None),
    "cpl": ("cpl", "u1", None),
    "cr3": ("cr3", "u8", None),
}
"""Columns that a table has on request, or only for some recordings.

Times, with `timing=True`:

* `earliest`, `latest`: TSC values between which all of a row ran, from TSC and MTC packets and the
  CYCs between them (sections 33.3.6.2, 33.8.3). Without a bound they are 0 and 2**64-1. `time` is
  then clipped to this range.
* `cycles`: core cycles that CYC packets had counted when the row began.
* `frequency`: core cycles for each TSC tick at that time, as last measured or as CBR says; NaN if
  neither is known.
* `ipc` (instructions and blocks): instructions for each core cycle, over all rows with the same
  `cycles`, up to the cycle of the next row with more. Cycles without tracing, or of another thread,
  count. NaN before the first CYC and after the last, and where not all cycles were counted (sleep,
  loss, a change of CBR).

Packets have `time`, the estimate after each packet, and the bounds of the time at which the packet
was generated.

Packets of `rtit.query` have their `size` in bytes.

Threads: tables of a `Trace` have the `tid` and `cpu` of the stream, -1 if it has none. If threads
share a CPU, `tid` and `pid` are those of the thread that ran, -1 if unknown. If records say which
thread of a virtual machine ran, `guest_tid` and `guest_pid` have it, and -1 in the host.

Address spaces: `space` is the address space of a row's code, 0 for code in no space of
`Stream.other_spaces`, which count from 1. Branches and edges have it for the source, and
`target_space` for the target.

Code, with `extra_columns`; of blocks the first instruction, of branches the source:

* `index`: position of the instruction in the stream, from 0 on; in tables of a `Trace`, in the
  thread. `Calls.first` and `Selection.indexes` are such positions. INT 80H does not count as an
  instruction: its branch has the index of the next one.
* `function`: index in `FunctionBatch.functions`: the function, the name of the file where no
  function is known, or "" for code in no file.
* `file`, `line`: source line from DWARF. `file` is an index in `FunctionBatch.files`; an unknown
  one is "", with line 0.
* `cpl` (instructions and blocks): privilege level, 3 for programs and 0 for the kernel, from the
  address and the thread.
* `cr3` (instructions and blocks): bits 51 to 5 of CR3, as the last PIP has them; 0 before the
  first, and in recordings without the kernel.
"""


class _BatchColumn:
    """A column of a `Batch`: an attribute that becomes an array on first use."""

    def __init__(self, dtype: str, labels: type[LabelledNumber] | tuple[str, ...] | None) -> None:
        self.dtype = dtype
        self.labels = labels

    def __set_name__(self, owner: type[Batch], name: str) -> None:
        self._name = name

    def __get__(self, batch: Batch | None, owner: type[Batch]) -> Any:
        if batch is None:
            return self
        import numpy as np

        # Found in the instance from now on.
        return batch.__dict__.setdefault(self._name, np.asarray(batch.buffers[self._name]))


def declare_column(dtype: str, labels: type[LabelledNumber] | tuple[str, ...] | None = None) -> Any:
    """Declare a column of a `Batch`: its dtype, and the category or labels of its numbers."""
    return _BatchColumn(dtype, labels)


class Batch(ArrowRows):
    """Columns of equal length, declared with `column`, and after them `extra_columns`.

    A column is an attribute, a NumPy array. Consumers of Arrow's C data interface (pyarrow, polars,
    DuckDB, pandas) accept a batch without copying; categories become dictionaries of their labels.
    A batch is immutable.
    """

    FIELDS: ClassVar[tuple[Field, ...]]
    """The declared columns, in order."""
    TIME_COLUMN: ClassVar[str | None]
    """The column by which rows are selected by time; None: rows have no time."""
    ADDRESS_COLUMNS: ClassVar[tuple[str, str] | None] = None
    """The columns with a row's lowest and highest address; None: rows have no address."""
    IS_INSTRUCTION: ClassVar[bool] = False
    """Whether each row is an instruction."""
    extra_columns: Mapping[str, NDArray[Any]]
    buffers: dict[str, Any]
    """The columns as they were passed: arrays, or buffers of numbers."""

    def __init_subclass__(cls) -> None:
        declared = (
            (name, each) for name, each in vars(cls).items() if isinstance(each, _BatchColumn)
        )
        cls.FIELDS = tuple((name, each.dtype, each.labels) for name, each in declared)
        if "TIME_COLUMN" not in vars(cls):
            cls.TIME_COLUMN = "time" if "time" in vars(cls) else None

    def __init__(
        self,
        *columns: Sized,
        extra_columns: Mapping[str, NDArray[Any]] | None = None,
        **named: Sized,
    ) -> None:
        """`columns` in the order of `FIELDS`, or by name: arrays, or buffers of numbers that become
        arrays on first use.
        """
        names = (name for name, _, _ in self.FIELDS)
        buffers = {**dict(zip(names, columns, strict=False)), **named}
        if len(columns) + len(named) != len(self.FIELDS) or len(buffers) != len(self.FIELDS):
            raise TypeError(f"{type(self).__name__} has {len(self.FIELDS)} columns")
        self.__dict__.update(
            buffers=buffers, extra_columns={} if extra_columns is None else extra_columns
        )

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: cannot set {name}")

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: arrays in place of native buffers."""
        return {**self.__dict__, "buffers": {name: getattr(self, name) for name in self.buffers}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __len__(self) -> int:
        return len(self.buffers[self.FIELDS[0][0]])

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self):,}>"

    def __getattr__(self, name: str) -> NDArray[Any]:
        if name in EXTRA_COLUMNS and name in self.__dict__.get("extra_columns", ()):
            return self.extra_columns[name]
        raise AttributeError(f"{type(self).__name__} has no column {name!r}")

    def buffer(self, name: str) -> memoryview:
        """Return a column of `FIELDS` as a buffer, without loading NumPy."""
        return memoryview(self.buffers[name])

    def column_lists(self) -> Iterator[list[Any]]:
        """Return the columns of `FIELDS` as lists of numbers, without loading NumPy."""
        return (self.buffer(name).tolist() for name, _, _ in self.FIELDS)

    @property
    def fields(self) -> tuple[Field, ...]:
        """All columns of the batch, extra columns included."""
        return *self.FIELDS, *(EXTRA_COLUMNS[name] for name in self.extra_columns)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return all columns by name."""
        return {name: getattr(self, name) for name, _, _ in self.FIELDS} | dict(self.extra_columns)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with these columns or other attributes changed."""
        copy = object.__new__(type(self))
        columns = {name: changes[name] for name in changes.keys() & self.buffers.keys()}
        kept = {name: value for name, value in self.__dict__.items() if name not in columns}
        copy.__dict__.update(kept, buffers={**self.buffers, **columns})
        copy.__dict__.update(
            (name, value) for name, value in changes.items() if name not in columns
        )
        return copy

    def select_rows(self, selector: NDArray[Any] | slice) -> Self:
        """Return the rows of a mask or slice."""
        columns = {name: getattr(self, name)[selector] for name, _, _ in self.FIELDS}
        extra = {name: column[selector] for name, column in self.extra_columns.items()}
        return self.replace(**columns, extra_columns=extra)

    def with_columns(self, **columns: NDArray[Any]) -> Self:
        """Return a copy with more extra columns, which are named in `EXTRA_COLUMNS`."""
        return self.replace(extra_columns={**self.extra_columns, **columns})

    def without_columns(self, names: Iterable[str]) -> Self:
        """Return a copy without these extra columns."""
        extra = {name: each for name, each in self.extra_columns.items() if name not in names}
        return self.replace(extra_columns=extra)

    @classmethod
    def concatenate(
        cls, batches: Iterator[Self], extra_columns: tuple[str, ...] = ()
    ) -> dict[str, NDArray[Any]]:
        """Return the columns of all batches, concatenated, with the named extra columns."""
        import numpy as np

        fields = (*cls.FIELDS, *(EXTRA_COLUMNS[name] for name in extra_columns))
        parts: dict[str, list[NDArray[Any]]] = {name: [] for name, _, _ in fields}
        for batch in batches:
            columns = batch.columns()
            for name, part in parts.items():
                part.append(columns[name])
        return {
            name: np.concatenate([np.zeros(0, dtype), *parts[name]]) for name, dtype, _ in fields
        }

    def __arrow_c_schema__(self) -> object:
        """The schema: a struct of the columns (Arrow PyCapsule interface)."""
        from rtit import _core

        return _core.arrow_schema(arrow_fields(self.fields))

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """The schema and the columns (Arrow PyCapsule interface). `requested_schema` is ignored."""
        from rtit import _core

        fields = arrow_fields(self.fields)
        return _core.arrow_schema(fields), _core.arrow_array(fields, list(self.columns().values()))


class FunctionBatch(Batch):
    """Rows that can have columns of texts: `function` is an index in `functions`, the names,
    `module` in `modules`, the paths of the files of the functions as they were recorded, and `file`
    in `files`, the source files. `Table.columns` and consumers of Arrow get the texts.
    """

    functions: Sequence[str] = ()
    modules: Sequence[str] = ()
    files: Sequence[str] = ("",)

    @property
    def fields(self) -> tuple[Field, ...]:
        """All columns of the batch, extra columns included."""
        texts = self._texts
        return tuple(
            (name, dtype, tuple(texts[name]) or LABELS_BY_BATCH if name in texts else labels)
            for name, dtype, labels in super().fields
        )

    @property
    def _texts(self) -> dict[str, Sequence[str]]:
        return {"function": self.functions, "module": self.modules, "file": self.files}

    @property
    def function_names(self) -> list[str]:
        """The name of the function of each row."""
        return [*self._texts_of_column("function")]

    @property
    def file_names(self) -> list[str]:
        """The source file of each row."""
        return [*self._texts_of_column("file")]

    def _texts_of_column(self, name: str) -> NDArray[Any]:
        import numpy as np

        found: NDArray[Any] = np.asarray(self._texts[name], object)[getattr(self, name)]
        return found

    @classmethod
    def concatenate(
        cls, batches: Iterator[Self], extra_columns: tuple[str, ...] = ()
    ) -> dict[str, NDArray[Any]]:
        """Return the columns of all batches, concatenated, with texts in place of indexes."""

        def with_texts(batch: Self) -> Self:
            texts = {name: batch._texts_of_column(name) for name in batch._texts.keys() & columns}
            extra = {name: texts.get(name, each) for name, each in batch.extra_columns.items()}
            declared = {name: each for name, each in texts.items() if name in batch.buffers}
            return batch.replace(**declared, extra_columns=extra)

        columns = {name for name, _, _ in cls.FIELDS}.union(extra_columns)
        return super().concatenate(map(with_texts, batches), extra_columns)


B = TypeVar("B", bound=Batch)


class Table(ArrowRows, Generic[B]):
    """Batches of one type, decoded while they are iterated, from the start each time.

    `rows` yields single rows, `columns` loads all into memory. Consumers of Arrow streams accept
    the table itself, one batch at a time. `extra_columns` names the extra columns of the batches.
    """

    def __init__(
        self,
        batch_type: type[B],
        batches: Callable[[], Iterator[B]],
        extra_columns: tuple[str, ...] = (),
    ) -> None:
        self.batch_type = batch_type
        self.extra_columns = extra_columns
        self._batches = batches

    def __iter__(self) -> Iterator[B]:
        return self._batches()

    def __repr__(self) -> str:
        names = ", ".join(name for name, _, _ in self.fields)
        return f"<Table of {self.batch_type.__name__}: {names}>"

    @property
    def fields(self) -> tuple[Field, ...]:
        """All columns of the batches, extra columns included."""
        return *self.batch_type.FIELDS, *(EXTRA_COLUMNS[name] for name in self.extra_columns)

    def rows(self) -> Iterator[Any]:
        """The rows one by one as named tuples (`Block`, `Instruction`, ...), without extra columns.

        Columns are some hundred times faster.
        """
        return chain.from_iterable(iter(batch) for batch in self)  # type: ignore[call-overload]

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return all rows: each column as one array."""
        return self.batch_type.concatenate(iter(self), self.extra_columns)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """All batches (Arrow PyCapsule interface). `requested_schema` is ignored."""
        from rtit import _core

        parts = ((arrow_fields(batch.fields), list(batch.columns().values())) for batch in self)
        return _core.arrow_stream(arrow_fields(self.fields), parts)


def arrow_fields(fields: tuple[Field, ...]) -> list[tuple[str, str, list[str]]]:
    """Return the columns as the native Arrow functions take them: labels in place of a category."""
    return [
        (name, dtype, [*map(_utf8_text, category_labels(category))])
        for name, dtype, category in fields
    ]


def _utf8_text(name: str) -> str:
    r"""Return a name as text for Arrow, which has only UTF-8: other bytes become `\xff`."""
    if name.isascii():
        return name
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def category_labels(category: type[LabelledNumber] | tuple[str, ...] | None) -> list[str]:
    """Return the label of each number from 0 on; empty for numbers without a meaning."""
    if category is None or isinstance(category, tuple):
        return list(category or ())
    known = {each.value: each.label for each in category}
    return [known.get(number, "") for number in range(max(known) + 1)]
