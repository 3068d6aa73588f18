"""The packets of a stream as columns, for whoever looks at millions of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from rtit._core import PACKETS
from rtit.trace.tables.batch import Batch, Field
from rtit.trace.time.samples import COLUMNS, clocked

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from rtit import _core
    from rtit.packets import BadBytes
    from rtit.packets.encode import Value
    from rtit.trace.recording.settings import Settings


KINDS = PACKETS
"""Names of the numbers in the column `kind`."""
_PACKETS = 1 << 14
"""Of a batch: its columns then are small enough for the allocator to use their memory again."""


class PacketRow(NamedTuple):
    """One packet: the offset of its first byte, its name and its fields; see `Packets`."""

    offset: int
    name: str
    fields: dict[str, Value]


class Packets(Batch):
    """Packets of a stream as columns of one length, in order (section 33.4.2).

    `kind`: which packet, a place in `KINDS`. `offset`: of its first byte. `payload`:
    its largest field, 0 if it has none; `detail`: the others (`packet_fields` has all by name).
    TNT: `payload` holds the results below a stop bit, the oldest highest. TIP, TIP.PGE, TIP.PGD,
    FUP: the IP payload, not yet joined with LastIP, and IPBytes. `end`: offset behind the last
    packet. `bad`: bytes from there on that are no packet, before the next batch.
    """

    FIELDS: ClassVar[tuple[Field, ...]] = (
        ("kind", "u1", KINDS),
        ("detail", "u1", None),
        ("offset", "u8", None),
        ("payload", "u8", None),
    )
    kind: NDArray[np.uint8]
    detail: NDArray[np.uint8]
    offset: NDArray[np.uint64]
    payload: NDArray[np.uint64]
    end: int
    bad: BadBytes | None

    def __init__(
        self,
        *columns: Sized,
        end: int,
        bad: BadBytes | None,
        more: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        super().__init__(*columns, more=more)
        self.__dict__.update(end=end, bad=bad)

    def __iter__(self) -> Iterator[PacketRow]:
        for index, offset in enumerate(self.offset.tolist()):
            yield PacketRow(offset, self.name(index), self.packet_fields(index))

    def size(self) -> NDArray[np.uint64]:
        """Bytes of each packet."""
        import numpy as np

        return np.diff(self.offset, append=np.uint64(self.end))

    def name(self, index: int) -> str:
        """The name of packet `index`. Raises IndexError."""
        return KINDS[int(self.kind[index])]

    def packet_fields(self, index: int) -> dict[str, Value]:
        """The fields of packet `index` by name, as `rtit.packets.Packet` has them. Raises
        IndexError.
        """
        take = _FIELDS.get(self.name(index))
        return take(int(self.detail[index]), int(self.payload[index])) if take else {}


Clocks = tuple[int, tuple[int, int], int, int, tuple[int, int]]
"""As `Settings` has them: mtc_freq, tsc_ctc, max_nonturbo_ratio, start_time, guest_tsc."""
TIMES = ("time", "cycles", "frequency")
"""Columns that packets have with clocks; see `batch.MORE`."""
TIMED = ("time", *COLUMNS)
"""Those that they have with bounds."""


def clocks_of(known: Settings) -> Clocks:
    """What the times of a stream's packets take."""
    ratio, start = known.max_nonturbo_ratio, known.start_time
    return known.mtc_freq, known.tsc_ctc, ratio, start, known.guest_tsc


def packets(stream: Buffer | Iterable[Buffer], clocks: Clocks | None = None) -> Iterator[Packets]:
    """The packets of raw PT, bytes or an iterable of parts of a stream, from its first byte on;
    after bytes that are no packet from the next PSB on. With `clocks` they have `TIMES`.
    """
    from rtit._core import PacketScan

    return _batches(PacketScan(stream, clocks))


def timed_packets(stream: Buffer | Iterable[Buffer], clocks: Clocks) -> Iterator[Packets]:
    """As `packets`, with `TIMED`."""
    from rtit._core import PacketScan

    scan = PacketScan(stream, clocks, points=True)
    start_time = clocks[3]
    batches = ((batch, batch.offset) for batch in _batches(scan))
    return (batch for batch, _ in clocked(scan, start_time, batches, own=True))


def _batches(scan: _core.PacketScan) -> Iterator[Packets]:
    import numpy as np

    from rtit.packets import BadBytes

    while (batch := scan.next(_PACKETS)) is not None:
        kind, detail, offset, payload, end, bad, times = batch
        yield Packets(
            kind,
            detail,
            offset,
            payload,
            end=end,
            bad=None if bad is None else BadBytes(*bad),
            more=dict(zip(TIMES, map(np.asarray, times or ()), strict=False)),
        )


def _tnt(_detail: int, payload: int) -> dict[str, Value]:
    return {"bits": bin(payload)[3:].translate(_LETTERS)}


def _ip(detail: int, payload: int) -> dict[str, Value]:
    return {"ip_bytes": detail, "payload": payload if detail else None}


def _flag(detail: int, _payload: int) -> dict[str, Value]:
    return {"ip": detail}


def _only(name: str) -> Callable[[int, int], dict[str, Value]]:
    return lambda _detail, payload: {name: payload}


_LETTERS = {ord("0"): "N", ord("1"): "T"}
_FIELDS: dict[str, Callable[[int, int], dict[str, Value]]] = {
    "TNT": _tnt,
    "TNT.64": _tnt,
    "TIP": _ip,
    "TIP.PGE": _ip,
    "TIP.PGD": _ip,
    "FUP": _ip,
    "PIP": lambda detail, payload: {"nr": detail, "cr3": payload},
    "MODE.Exec": lambda detail, _: {
        "csl": detail & 1,
        "csd": detail >> 1 & 1,
        "iflag": detail >> 2,
    },
    "MODE.TSX": lambda detail, _: {"in_tx": detail & 1, "tx_abort": detail >> 1},
    "CBR": _only("ratio"),
    "TSC": _only("tsc"),
    "MTC": _only("ctc"),
    "TMA": lambda _, payload: {"ctc": payload & 0xFFFF, "fast_counter": payload >> 16},
    "CYC": _only("cycles"),
    "VMCS": _only("pointer"),
    "MNT": _only("payload"),
    "PTW": lambda detail, payload: {
        "ip": detail & 1,
        "payload_bytes": detail >> 1,
        "payload": payload,
    },
    "EXSTOP": _flag,
    "MWAIT": lambda _, payload: {"hints": payload & 0xFF, "ext": payload >> 32},
    "PWRE": lambda detail, payload: {
        "hw": detail,
        "state": payload >> 4,
        "sub_state": payload & 15,
    },
    "PWRX": lambda detail, payload: {
        "last": payload >> 4,
        "deepest": payload & 15,
        "wake": detail,
    },
    "BBP": lambda detail, payload: {"sz": detail, "type": payload},
    "BIP": lambda detail, payload: {"id": detail & 31, "sz": detail >> 5, "payload": payload},
    "BEP": _flag,
    "CFE": lambda detail, payload: {"ip": detail, "type": payload & 0xFF, "vector": payload >> 8},
    "EVD": lambda detail, payload: {"type": detail, "payload": payload},
    "TRIG": lambda detail, payload: {
        "ip": detail >> 2,
        "icntv": detail & 1,
        "mult": detail >> 1 & 1,
        "trbv": payload & 0xFF,
        "icnt": payload >> 8 if detail & 1 else None,
    },
}
