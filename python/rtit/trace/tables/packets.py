"""The packets of a stream as columns: hundreds of times faster than single packet objects.

Each packet is four numbers. `packet_fields` turns them into the named fields of
`rtit.packets.Packet`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from rtit._core import PACKETS
from rtit.trace.tables.batch import Batch, declare_column
from rtit.trace.time.timing_samples import BOUND_COLUMNS, add_time_bounds

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from rtit import _core
    from rtit.packets import BadBytes
    from rtit.packets.encode import Value
    from rtit.trace.tables.batch import U8, U64


PACKET_KINDS = PACKETS
"""Packet names, by the numbers in the column `kind`."""
_BATCH_PACKETS = 1 << 14
"""Columns of this size are small enough for the allocator to reuse their memory."""


class PacketRow(NamedTuple):
    """One row of `Packets`: the stream offset, the packet's name and its fields."""

    offset: int
    name: str
    fields: dict[str, Value]


class Packets(Batch):
    """Packets of a stream in order (section 33.4.2).

    * `kind`: the packet, an index into `PACKET_KINDS`
    * `offset`: stream offset of its first byte
    * `payload`: its largest field, 0 if it has none. TNT: the results below a stop bit, the oldest
      highest. TIP, TIP.PGE, TIP.PGD and FUP: the IP payload, without LastIP.
    * `detail`: the other fields; IPBytes for packets with an IP

    `end` is the stream offset after the last packet. `bad`: the bytes from there on that are no
    packet, up to the next batch. `raw`: the bytes of all packets, if they were requested.
    """

    TIME_COLUMN: ClassVar[str | None] = "time"
    kind: U8 = declare_column("u1", PACKET_KINDS)
    detail: U8 = declare_column("u1")
    offset: U64 = declare_column("u8")
    payload: U64 = declare_column("u8")
    end: int
    bad: BadBytes | None
    raw: bytes | None

    def __init__(
        self,
        *columns: Sized,
        end: int,
        bad: BadBytes | None,
        raw: bytes | None = None,
        extra_columns: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        super().__init__(*columns, extra_columns=extra_columns)
        self.__dict__.update(end=end, bad=bad, raw=raw)

    def __iter__(self) -> Iterator[PacketRow]:
        for index, offset in enumerate(self.offset.tolist()):
            yield PacketRow(offset, self.name(index), self.packet_fields(index))

    def size(self) -> NDArray[np.uint64]:
        """Return the size of each packet in bytes."""
        import numpy as np

        return np.diff(self.offset, append=np.uint64(self.end))

    def name(self, index: int) -> str:
        """Return the name of packet `index`. Raises IndexError."""
        return PACKET_KINDS[int(self.kind[index])]

    def packet_fields(self, index: int) -> dict[str, Value]:
        """Return the fields of packet `index` by name, as `rtit.packets.Packet` has them. Raises
        IndexError.
        """
        decode = _FIELD_DECODERS.get(self.name(index))
        return decode(int(self.detail[index]), int(self.payload[index])) if decode else {}


PACKET_TIME_COLUMNS = ("time", "cycles", "frequency")
"""Extra columns of packets that are scanned with clock settings (see `EXTRA_COLUMNS`)."""
PACKET_BOUND_COLUMNS = ("time", *BOUND_COLUMNS)
"""Extra columns of `timed_packet_batches`."""


def packet_batches(
    stream: Buffer | Iterable[Buffer],
    clocks: dict[str, Any] | None = None,
    *,
    errata: Collection[str] = (),
    with_bytes: bool = False,
) -> Iterator[Packets]:
    """Scan raw PT, bytes or an iterable of chunks, from its first byte on.

    After bytes that are no packet, scanning continues at the next PSB. With `clocks`, which are
    `Settings.native`, the batches have `PACKET_TIME_COLUMNS`. `errata`: names of errata (SKD007,
    SKZ84) that corrupt packets. `with_bytes`: the batches have `raw`.
    """
    from rtit._core import PacketScan

    return _iterate_packet_batches(PacketScan(stream, clocks, errata=errata, with_bytes=with_bytes))


def timed_packet_batches(
    stream: Buffer | Iterable[Buffer],
    clocks: dict[str, Any],
    *,
    errata: Collection[str] = (),
    with_bytes: bool = False,
) -> Iterator[Packets]:
    """As `packet_batches`, with `PACKET_BOUND_COLUMNS`."""
    from rtit._core import PacketScan

    scan = PacketScan(stream, clocks, timing_samples=True, errata=errata, with_bytes=with_bytes)
    start_time = clocks["start_time"]
    batches = ((batch, batch.offset) for batch in _iterate_packet_batches(scan))
    timed = add_time_bounds(scan, start_time, batches, rows_are_packets=True)
    return (each.batch for each in timed)


def _iterate_packet_batches(scan: _core.PacketScan) -> Iterator[Packets]:
    from rtit.packets import BadBytes

    while (batch := scan.next(_BATCH_PACKETS)) is not None:
        yield Packets(
            batch["kind"],
            batch["detail"],
            batch["offset"],
            batch["payload"],
            end=batch["end"],
            bad=None if batch["bad"] is None else BadBytes(*batch["bad"]),
            raw=batch["raw"],
            extra_columns=_time_columns(batch["times"]) if batch["times"] else None,
        )


def _time_columns(times: list[_core.Column]) -> dict[str, NDArray[Any]]:
    import numpy as np

    return dict(zip(PACKET_TIME_COLUMNS, map(np.asarray, times), strict=True))


def _tnt_fields(_detail: int, payload: int) -> dict[str, Value]:
    return {"bits": bin(payload)[3:].translate(_LETTERS)}


def _ip_packet_fields(detail: int, payload: int) -> dict[str, Value]:
    return {"ip_bytes": detail, "payload": payload if detail else None}


def _ip_bit_fields(detail: int, _payload: int) -> dict[str, Value]:
    return {"ip": detail}


def _single_field(name: str) -> Callable[[int, int], dict[str, Value]]:
    return lambda _detail, payload: {name: payload}


_LETTERS = {ord("0"): "N", ord("1"): "T"}
_FIELD_DECODERS: dict[str, Callable[[int, int], dict[str, Value]]] = {
    "TNT": _tnt_fields,
    "TNT.64": _tnt_fields,
    "TIP": _ip_packet_fields,
    "TIP.PGE": _ip_packet_fields,
    "TIP.PGD": _ip_packet_fields,
    "FUP": _ip_packet_fields,
    "PIP": lambda detail, payload: {"nr": detail, "cr3": payload},
    "MODE.Exec": lambda detail, _: {
        "csl": detail & 1,
        "csd": detail >> 1 & 1,
        "iflag": detail >> 2,
    },
    "MODE.TSX": lambda detail, _: {"in_tx": detail & 1, "tx_abort": detail >> 1},
    "CBR": _single_field("ratio"),
    "TSC": _single_field("tsc"),
    "MTC": _single_field("ctc"),
    "TMA": lambda _, payload: {"ctc": payload & 0xFFFF, "fast_counter": payload >> 16},
    "CYC": _single_field("cycles"),
    "VMCS": _single_field("pointer"),
    "MNT": _single_field("payload"),
    "PTW": lambda detail, payload: {
        "ip": detail & 1,
        "payload_bytes": detail >> 1,
        "payload": payload,
    },
    "EXSTOP": _ip_bit_fields,
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
    "BEP": _ip_bit_fields,
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
