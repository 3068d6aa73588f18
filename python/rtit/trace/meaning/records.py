"""Records of PEBS, from packet blocks (section 33.4.1.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rtit.packets import item_name
from rtit.trace.categories import EventKind
from rtit.trace.meaning.values import PebsRecord
from rtit.trace.rows import Event


class Records:
    """The blocks up to a BEP are one record. `counters`: what each counter counts, by number."""

    def __init__(self, counters: Mapping[int, str]) -> None:
        self._counters = counters
        self._first: Event | None = None
        self._type = 0
        self._registers: dict[str, int] = {}

    def see(self, event: Event) -> Iterator[PebsRecord]:
        """What a BBP, BIP or BEP completes."""
        if event.kind is EventKind.BLOCK_BEGIN:
            self._first = self._first or event
            self._type = event.value & 0xFF
        elif event.kind is EventKind.BLOCK_ITEM:
            name = item_name(self._type, event.ip) or f"{self._type:#x}:{event.ip:#x}"
            self._registers[name] = event.value
        else:
            yield from self._end(event.ip or None, whole=True)

    def cut(self) -> Iterator[PebsRecord]:
        """The record does not go on."""
        yield from self._end(None, whole=False)

    def _end(self, at: int | None, *, whole: bool) -> Iterator[PebsRecord]:
        first, registers = self._first, self._registers
        self._first, self._registers = None, {}
        if first is not None:
            yield PebsRecord(
                time=first.time,
                offset=first.offset,
                row=first.row,
                at=at,
                registers=registers,
                whole=whole,
                events=self._events(registers),
            )

    def _events(self, registers: Mapping[str, int]) -> tuple[str, ...] | None:
        """By the counters that the record names (Table 33-47), or by the only one."""
        which = registers.get("Applicable Counters")
        if which is None:
            return tuple(self._counters.values()) if len(self._counters) == 1 else None
        found = (name for number, name in self._counters.items() if which >> number & 1)
        return tuple(found) or None
