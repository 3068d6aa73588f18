"""The remote serial protocol of gdb: bytes in, reply bytes out, no I/O.

`PacketReader` finds packets in a byte stream; `GdbSession` answers them for a `GdbTarget`. Packets
are described in the appendix "Remote Protocol" of gdb's manual.

Input is not trusted. A malformed packet gets the error E22, a read of unknown memory E14, and an
unknown packet an empty reply, as the protocol requires.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import Enum

from rtit.errors import RtitError
from rtit.gdb import qxfer_objects
from rtit.gdb.target import GdbTarget
from rtit.text_escaping import escape_control_characters

MAX_PACKET = 0x4000
"""Bytes between `$` and `#` of a packet."""
_ESCAPE = b"}"
_SPECIAL = {octet: _ESCAPE + bytes([octet ^ 0x20]) for octet in b"#$*}"}


class FrameError(Enum):
    """A frame that is not a valid packet."""

    BROKEN = 1  # the checksum is wrong or missing
    TOO_LONG = 2


class PacketReader:
    """Finds packets in the bytes of a connection, which arrive in pieces of any size."""

    def __init__(self) -> None:
        self._unread = bytearray()

    def feed_bytes(self, data: bytes) -> Iterator[bytes | FrameError]:
        """Return the payloads of the packets that are complete.

        Skips bytes between packets, such as acknowledgements. After a packet that is too long,
        nothing more can be read.
        """
        self._unread += data
        while True:
            start = self._unread.find(b"$")
            if start < 0:
                self._unread.clear()
                return
            del self._unread[:start]
            end = self._unread.find(b"#", 0, MAX_PACKET + 2)
            if end < 0 and len(self._unread) > MAX_PACKET + 1:
                self._unread.clear()
                yield FrameError.TOO_LONG
                return
            if end < 0 or len(self._unread) < end + 3:
                return
            packet, checksum = bytes(self._unread[1:end]), bytes(self._unread[end + 1 : end + 3])
            del self._unread[: end + 3]
            yield (
                packet
                if checksum.lower() == b"%02x" % _packet_checksum(packet)
                else FrameError.BROKEN
            )


def frame_packet(payload: bytes) -> bytes:
    """Return a packet with this payload, which is already escaped."""
    return b"$%b#%02x" % (payload, _packet_checksum(payload))


def escape_payload(data: bytes) -> bytes:
    """Return bytes as a payload can hold them, at most twice as long."""
    if not any(octet in data for octet in _SPECIAL):
        return data
    return b"".join(_SPECIAL.get(octet, bytes([octet])) for octet in data)


def sanitize_text(text: bytes) -> bytes:
    """Return a text as a payload can hold it, with `?` for special characters: gdb shows it as it
    is.
    """
    return bytes(ord("?") if octet in _SPECIAL else octet for octet in text)


def _packet_checksum(payload: bytes) -> int:
    return sum(payload) & 0xFF


_ERROR_MALFORMED, _ERROR_MEMORY = b"E22", b"E14"
_OK, _UNSUPPORTED = b"OK", b""
_NUMBER = re.compile(rb"[0-9a-fA-F]{1,16}")
_FEATURES = (
    f"PacketSize={MAX_PACKET:x}",
    "QStartNoAckMode+",
    *(f"qXfer:{name}:read+" for name in ("features", "auxv", "libraries-svr4", "threads")),
    *(f"qXfer:{name}:read+" for name in ("exec-file", "btrace", "btrace-conf")),
    "Qbtrace:off+",
    "Qbtrace:pt+",
    "Qbtrace:bts+",
    "Qbtrace-conf:pt:size+",
    "Qbtrace-conf:bts:size+",
)
_HELP = "callers [TID]: return addresses of the calls that had not returned at the end\n"


class MalformedPacketError(Exception):
    """The syntax or a value of a packet is invalid."""


class GdbSession:
    """One connection of gdb. `closed` is set when gdb detaches or kills."""

    def __init__(self, target: GdbTarget) -> None:
        self._target = target
        self._reader = PacketReader()
        self._sends_acks = True
        self._thread = target.tid
        self._cached_object: tuple[bytes, int, bytes] | None = None
        self.closed = False

    def feed_bytes(self, data: bytes) -> bytes:
        """Return the replies to the packets that `data` completes."""
        replies = []
        for packet in self._reader.feed_bytes(data):
            if packet is FrameError.TOO_LONG:
                self.closed = True
            elif isinstance(packet, FrameError):
                replies.append(b"-" if self._sends_acks else frame_packet(_ERROR_MALFORMED))
            else:
                replies.append(b"+" if self._sends_acks else b"")
                reply = self._reply_to_packet(packet)
                if reply is not None:
                    replies.append(frame_packet(reply))
            if self.closed:
                break
        return b"".join(replies)

    def _reply_to_packet(self, packet: bytes) -> bytes | None:
        try:
            for name, handler in _HANDLERS:
                if packet.startswith(name):
                    return handler(self, packet[len(name) :])
        except MalformedPacketError:
            return _ERROR_MALFORMED
        except RtitError as error:
            return b"E." + sanitize_text(escape_control_characters(str(error), "ascii").encode())
        return _UNSUPPORTED

    # Handlers: each gets the packet after its name, and returns the payload of the reply.

    def _reply_supported(self, _: bytes) -> bytes:
        return ";".join(_FEATURES).encode()

    def _disable_acknowledgements(self, _: bytes) -> bytes:
        self._sends_acks = False
        return _OK

    def _reply_stop_reason(self, _: bytes) -> bytes:
        tid = self._target.tid
        self._thread = tid
        return b"T%02xthread:%x;" % (self._target.stop_signal(tid), tid)

    def _reply_end_of_replay(self, _: bytes) -> bytes:
        """Reply that execution is at the end of the recording."""
        return b"T05thread:%x;replaylog:end;" % self._thread

    def _select_thread(self, arguments: bytes) -> bytes:
        if arguments[:1] not in (b"g", b"c"):
            raise MalformedPacketError
        if arguments[1:] not in (b"0", b"-1"):
            tid = self._parse_thread(arguments[1:])
            if arguments[:1] == b"g":
                self._thread = tid
        return _OK

    def _check_thread(self, arguments: bytes) -> bytes:
        self._parse_thread(arguments)
        return _OK

    def _reply_current_thread(self, arguments: bytes) -> bytes:
        return b"QC%x" % self._thread if not arguments else _UNSUPPORTED  # qCRC is another packet

    def _list_threads(self, _: bytes) -> bytes:
        """Reply with all thread ids, for a gdb that does not read the XML object."""
        tids, text = list(self._target.threads), b""
        while tids and len(text) < MAX_PACKET - 20:
            text += b",%x" % tids.pop(0)
        return b"m" + text[1:]

    def _end_thread_list(self, _: bytes) -> bytes:
        return b"l"

    def _read_registers(self, _: bytes) -> bytes:
        return "".join(self._target.register_values(self._thread)).encode()

    def _read_register(self, arguments: bytes) -> bytes:
        values, number = self._target.register_values(self._thread), _parse_number(arguments)
        if number >= len(values):
            raise MalformedPacketError
        return values[number].encode()

    def _read_memory(self, arguments: bytes) -> bytes:
        address, size = _parse_pair(arguments)
        found = self._target.program.read_memory(address, min(size, MAX_PACKET // 2))
        return found.hex().encode() if found or not size else _ERROR_MEMORY

    def _refuse_write(self, _: bytes) -> bytes:
        """Refuse to change registers or memory of a recording."""
        return b"E01"

    def _accept_breakpoint(self, _: bytes) -> bytes:
        """Accept a breakpoint, which gdb itself applies when it replays, or a trace request."""
        return _OK

    def _reply_attached(self, _: bytes) -> bytes:
        return b"1"

    def _handle_detach(self, _: bytes) -> bytes:
        self.closed = True
        return _OK

    def _handle_kill(self, _: bytes) -> None:
        self.closed = True

    def _read_object(self, arguments: bytes) -> bytes:
        match arguments.split(b":"):
            case [name, b"read", annex, range_]:
                offset, size = _parse_pair(range_)
                content = self._object_content(name, annex)
            case _:
                return _UNSUPPORTED
        part = content[offset : offset + min(size, MAX_PACKET // 2)]
        more = offset + len(part) < len(content)
        return (b"m" if more else b"l") + escape_payload(part)

    def _object_content(self, name: bytes, annex: bytes) -> bytes:
        """Return a qXfer object. The branch trace is cached, because gdb reads it in parts."""
        if name == b"btrace":
            if annex != b"all":  # only what is new
                return qxfer_objects.empty_branch_trace().encode()
            if self._cached_object is None or self._cached_object[:2] != (name, self._thread):
                text = self._target.branch_trace(self._thread).encode()
                self._cached_object = name, self._thread, text
            return self._cached_object[2]
        if name == b"btrace-conf":
            return self._target.btrace_configuration(self._thread).encode()
        found = self._target.qxfer_object(name.decode("ascii", "replace"))
        if found is None:
            raise MalformedPacketError
        return found

    def _run_monitor_command(self, arguments: bytes) -> bytes:
        """Run a command of gdb's `monitor`."""
        try:
            words = bytes.fromhex(arguments.decode("ascii")).decode("ascii").split()
        except ValueError:
            raise MalformedPacketError from None
        text = _HELP
        if words[:1] == ["callers"] and len(words) <= 2:
            tid = self._thread
            if len(words) == 2:
                tids = {str(each): each for each in self._target.threads}
                if words[1] not in tids:
                    raise MalformedPacketError
                tid = tids[words[1]]
            text = "".join(f"{each:#x}\n" for each in self._target.return_addresses(tid))
        return text.encode().hex().encode() or _OK

    def _parse_thread(self, text: bytes) -> int:
        tid = _parse_number(text)
        if tid not in self._target.threads:
            raise MalformedPacketError
        return tid


_HANDLERS: tuple[tuple[bytes, Callable[[GdbSession, bytes], bytes | None]], ...] = (
    (b"qSupported", GdbSession._reply_supported),
    (b"QStartNoAckMode", GdbSession._disable_acknowledgements),
    (b"qXfer:", GdbSession._read_object),
    (b"qRcmd,", GdbSession._run_monitor_command),
    (b"qAttached", GdbSession._reply_attached),
    (b"qC", GdbSession._reply_current_thread),
    (b"qfThreadInfo", GdbSession._list_threads),
    (b"qsThreadInfo", GdbSession._end_thread_list),
    (b"Qbtrace", GdbSession._accept_breakpoint),
    (b"?", GdbSession._reply_stop_reason),
    (b"H", GdbSession._select_thread),
    (b"T", GdbSession._check_thread),
    (b"g", GdbSession._read_registers),
    (b"p", GdbSession._read_register),
    (b"m", GdbSession._read_memory),
    *((letter, GdbSession._refuse_write) for letter in (b"G", b"P", b"M", b"X")),
    *((letter, GdbSession._accept_breakpoint) for letter in (b"Z", b"z")),
    (b"vKill", GdbSession._handle_detach),
    (b"D", GdbSession._handle_detach),
    (b"k", GdbSession._handle_kill),
    *((letter, GdbSession._reply_end_of_replay) for letter in (b"c", b"C", b"s", b"S")),
)
"""Handlers by prefix of the packet; the first match applies."""


def _parse_number(text: bytes) -> int:
    if _NUMBER.fullmatch(text) is None:
        raise MalformedPacketError
    return int(text, 16)


def _parse_pair(text: bytes) -> tuple[int, int]:
    first, comma, second = text.partition(b",")
    if not comma:
        raise MalformedPacketError
    return _parse_number(first), _parse_number(second)
