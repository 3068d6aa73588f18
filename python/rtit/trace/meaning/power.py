"""C-states, from the packets of power event trace (sections 33.4.2.22 to 33.4.2.25)."""

from __future__ import annotations

from collections.abc import Iterator

from rtit.trace.categories import EventKind
from rtit.trace.meaning.values import Happening, Paused, Sleep, Wake
from rtit.trace.rows import Event


class Power:
    """MWAIT, PWRE and EXSTOP are one entry to a C-state; a PWRE after that is another state, at the
    same place; an EXSTOP alone is a pause.
    """

    def __init__(self) -> None:
        self._mwait: Event | None = None
        self._entry: Event | None = None
        self._since: tuple[int, int | None] | None = None  # asleep: when, and where

    def see(self, event: Event) -> Iterator[Happening]:
        """What an event completes."""
        if event.kind is EventKind.MWAIT:
            yield from self.flush()
            self._mwait = event
        elif event.kind is EventKind.PWRE:
            if self._since is not None:
                yield self._sleep(event, self._since[1])
            else:
                self._entry = event
        elif event.kind is EventKind.EXSTOP:
            at = event.ip or None
            if self._entry is None:
                yield Paused(time=event.time, offset=event.offset, row=event.row, at=at)
            else:
                yield from self._enter(self._entry, at)
        else:
            yield from self.flush()
            yield self._wake(event)

    def flush(self) -> Iterator[Happening]:
        """An entry whose EXSTOP has not come."""
        if self._entry is not None:
            yield from self._enter(self._entry, None)
        self._mwait = None

    def _enter(self, entry: Event, at: int | None) -> Iterator[Happening]:
        yield self._sleep(entry, at)
        self._since = entry.time, at
        self._mwait = self._entry = None

    def _sleep(self, entry: Event, at: int | None) -> Sleep:
        first = self._mwait or entry
        return Sleep(
            time=first.time,
            offset=first.offset,
            row=first.row,
            at=at,
            state=entry.value >> 4 & 0xF,
            sub_state=entry.value & 0xF,
            hardware=bool(entry.value >> 8),
            hints=None if self._mwait is None else self._mwait.value & 0xFFFF_FFFF,
            extensions=None if self._mwait is None else self._mwait.value >> 32,
        )

    def _wake(self, event: Event) -> Wake:
        since, self._since = self._since, None
        return Wake(
            time=event.time,
            offset=event.offset,
            row=event.row,
            last=event.value >> 4 & 0xF,
            deepest=event.value & 0xF,
            reasons=Wake.reasons_of(event.value >> 8),
            since=None if since is None else since[0],
        )
