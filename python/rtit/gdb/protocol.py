"""Packets of gdb's remote protocol ("Overview" of that appendix of gdb's manual): bytes in, packets
out. Nothing in here waits or raises.

One conversation with gdb: what it sends in, what it is to get out.

Nothing that it sends is trusted: what is malformed has an error for an answer (E22), what is not
known to be in memory another (E14), and what nobody has heard of an empty one, as the protocol
wants it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import Enum

from rtit.errors import RtitError
from rtit.gdb import qxfer
from rtit.gdb.target import Target
from rtit.readable import readable

PACKET = 0x4000
"""Bytes that a packet may have between `$` and `#`."""
_ESCAPE = b"}"
_SPECIAL = {octet: _ESCAPE + bytes([octet ^ 0x20]) for octet in b"#$*}"}


class Noise(Enum):
    """What is no packet."""

    BROKEN = 1  # its checksum is another, or there is none
    TOO_LONG = 2


class Reader:
    """Takes what comes over a connection, in pieces of any size."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes | Noise]:
        """The packets that are whole now, without their frames. What is between packets, as
        acknowledgements are, is passed over. Behind one that is too long nothing can be read.
        """
        self._rest += data
        while True:
            start = self._rest.find(b"$")
            if start < 0:
                self._rest.clear()
                return
            del self._rest[:start]
            end = self._rest.find(b"#", 0, PACKET + 2)
            if end < 0 and len(self._rest) > PACKET + 1:
                self._rest.clear()
                yield Noise.TOO_LONG
                return
            if end < 0 or len(self._rest) < end + 3:
                return
            packet, told = bytes(self._rest[1:end]), bytes(self._rest[end + 1 : end + 3])
            del self._rest[: end + 3]
            yield packet if told.lower() == b"%02x" % _sum(packet) else Noise.BROKEN


def framed(payload: bytes) -> bytes:
    """A packet with this payload, in which what the frame is made of is escaped."""
    return b"$%b#%02x" % (payload, _sum(payload))


def escaped(data: bytes) -> bytes:
    """Bytes as a payload can hold them: up to twice as many."""
    if not any(octet in data for octet in _SPECIAL):
        return data
    return b"".join(_SPECIAL.get(octet, bytes([octet])) for octet in data)


def said(text: bytes) -> bytes:
    """A text for people as a payload can hold it: gdb shows it as it is."""
    return bytes(ord("?") if octet in _SPECIAL else octet for octet in text)


def _sum(payload: bytes) -> int:
    return sum(payload) & 0xFF


_MALFORMED, _FAULT = b"E22", b"E14"
_OK, _UNKNOWN = b"OK", b""
_NUMBER = re.compile(rb"[0-9a-fA-F]{1,16}")
_FEATURES = (
    f"PacketSize={PACKET:x}",
    "QStartNoAckMode+",
    *(f"qXfer:{name}:read+" for name in ("features", "auxv", "libraries-svr4", "threads")),
    *(f"qXfer:{name}:read+" for name in ("exec-file", "btrace", "btrace-conf")),
    "Qbtrace:off+",
    "Qbtrace:pt+",
    "Qbtrace:bts+",
    "Qbtrace-conf:pt:size+",
    "Qbtrace-conf:bts:size+",
)
_HELP = "callers [TID]: where the calls that were open in the end return to, as addresses\n"


class Malformed(Exception):  # noqa: N818 - it never leaves this file
    """What gdb sent cannot be understood."""


class Session:
    """`feed` it what comes; `closed` is set once gdb has gone."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._reader = Reader()
        self._acks = True
        self._thread = target.tid
        self._document: tuple[bytes, int, bytes] | None = None
        self.closed = False

    def feed(self, data: bytes) -> bytes:
        """What to answer."""
        answers = []
        for packet in self._reader.feed(data):
            if packet is Noise.TOO_LONG:
                self.closed = True
            elif isinstance(packet, Noise):
                answers.append(b"-" if self._acks else framed(_MALFORMED))
            else:
                answers.append(b"+" if self._acks else b"")
                answer = self._answer(packet)
                if answer is not None:
                    answers.append(framed(answer))
            if self.closed:
                break
        return b"".join(answers)

    def _answer(self, packet: bytes) -> bytes | None:
        try:
            for name, answer in _ANSWERS:
                if packet.startswith(name):
                    return answer(self, packet[len(name) :])
        except Malformed:
            return _MALFORMED
        except RtitError as error:
            return b"E." + said(readable(str(error), "ascii").encode())
        return _UNKNOWN

    # What each packet asks for: the rest of it in, the answer out.

    def _supported(self, _: bytes) -> bytes:
        return ";".join(_FEATURES).encode()

    def _no_acks(self, _: bytes) -> bytes:
        self._acks = False
        return _OK

    def _stopped(self, _: bytes) -> bytes:
        tid = self._target.tid
        self._thread = tid
        return b"T%02xthread:%x;" % (self._target.signal(tid), tid)

    def _resume(self, _: bytes) -> bytes:
        """There is nothing behind the end."""
        return b"T05thread:%x;replaylog:end;" % self._thread

    def _choose(self, rest: bytes) -> bytes:
        if rest[:1] not in (b"g", b"c"):
            raise Malformed
        if rest[1:] not in (b"0", b"-1"):
            tid = self._tid(rest[1:])
            if rest[:1] == b"g":
                self._thread = tid
        return _OK

    def _alive(self, rest: bytes) -> bytes:
        self._tid(rest)
        return _OK

    def _current(self, rest: bytes) -> bytes:
        return b"QC%x" % self._thread if not rest else _UNKNOWN  # qCRC: asks for something else

    def _threads(self, _: bytes) -> bytes:
        """In full, for a gdb that does not read the document."""
        tids, text = list(self._target.threads), b""
        while tids and len(text) < PACKET - 20:
            text += b",%x" % tids.pop(0)
        return b"m" + text[1:]

    def _no_more_threads(self, _: bytes) -> bytes:
        return b"l"

    def _registers(self, _: bytes) -> bytes:
        return "".join(self._target.registers(self._thread)).encode()

    def _register(self, rest: bytes) -> bytes:
        values, number = self._target.registers(self._thread), _number(rest)
        if number >= len(values):
            raise Malformed
        return values[number].encode()

    def _memory(self, rest: bytes) -> bytes:
        address, size = _two(rest)
        found = self._target.program.read(address, min(size, PACKET // 2))
        return found.hex().encode() if found or not size else _FAULT

    def _refuse(self, _: bytes) -> bytes:
        """Nothing can be changed."""
        return b"E01"

    def _agree(self, _: bytes) -> bytes:
        """A breakpoint counts in gdb's own walk along the trace, and nothing else runs."""
        return _OK

    def _attached(self, _: bytes) -> bytes:
        return b"1"

    def _detach(self, _: bytes) -> bytes:
        self.closed = True
        return _OK

    def _kill(self, _: bytes) -> None:
        self.closed = True

    def _transfer(self, rest: bytes) -> bytes:
        match rest.split(b":"):
            case [name, b"read", annex, place]:
                offset, size = _two(place)
                document = self._whole(name, annex)
            case _:
                return _UNKNOWN
        part = document[offset : offset + min(size, PACKET // 2)]
        more = offset + len(part) < len(document)
        return (b"m" if more else b"l") + escaped(part)

    def _whole(self, name: bytes, annex: bytes) -> bytes:
        """A document; the last one is kept, for it is read in parts."""
        if name == b"btrace":
            if annex != b"all":  # what is new
                return qxfer.no_trace().encode()
            if self._document is None or self._document[:2] != (name, self._thread):
                text = self._target.branches(self._thread).encode()
                self._document = name, self._thread, text
            return self._document[2]
        if name == b"btrace-conf":
            return self._target.configuration(self._thread).encode()
        found = self._target.document(name.decode("ascii", "replace"))
        if found is None:
            raise Malformed
        return found

    def _monitor(self, rest: bytes) -> bytes:
        """A command that gdb passes on."""
        try:
            words = bytes.fromhex(rest.decode("ascii")).decode("ascii").split()
        except ValueError:
            raise Malformed from None
        text = _HELP
        if words[:1] == ["callers"] and len(words) <= 2:
            tid = self._thread
            if len(words) == 2:
                named = {str(each): each for each in self._target.threads}
                if words[1] not in named:
                    raise Malformed
                tid = named[words[1]]
            text = "".join(f"{each:#x}\n" for each in self._target.callers(tid))
        return text.encode().hex().encode() or _OK

    def _tid(self, text: bytes) -> int:
        tid = _number(text)
        if tid not in self._target.threads:
            raise Malformed
        return tid


_ANSWERS: tuple[tuple[bytes, Callable[[Session, bytes], bytes | None]], ...] = (
    (b"qSupported", Session._supported),
    (b"QStartNoAckMode", Session._no_acks),
    (b"qXfer:", Session._transfer),
    (b"qRcmd,", Session._monitor),
    (b"qAttached", Session._attached),
    (b"qC", Session._current),
    (b"qfThreadInfo", Session._threads),
    (b"qsThreadInfo", Session._no_more_threads),
    (b"Qbtrace", Session._agree),
    (b"?", Session._stopped),
    (b"H", Session._choose),
    (b"T", Session._alive),
    (b"g", Session._registers),
    (b"p", Session._register),
    (b"m", Session._memory),
    (b"G", Session._refuse),
    (b"P", Session._refuse),
    (b"M", Session._refuse),
    (b"X", Session._refuse),
    (b"Z", Session._agree),
    (b"z", Session._agree),
    (b"vKill", Session._detach),
    (b"D", Session._detach),
    (b"k", Session._kill),
    (b"c", Session._resume),
    (b"C", Session._resume),
    (b"s", Session._resume),
    (b"S", Session._resume),
)
"""The first that a packet begins with says what it is."""


def _number(text: bytes) -> int:
    if _NUMBER.fullmatch(text) is None:
        raise Malformed
    return int(text, 16)


def _two(text: bytes) -> tuple[int, int]:
    first, comma, second = text.partition(b",")
    if not comma:
        raise Malformed
    return _number(first), _number(second)
