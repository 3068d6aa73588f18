"""The remote protocol, with valid and with arbitrary input."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rtit
from rtit.capture.backends import start_recording
from rtit.capture.request import RecordRequest
from rtit.errors import RtitError
from rtit.gdb.protocol import (
    MAX_PACKET,
    FrameError,
    GdbSession,
    PacketReader,
    escape_payload,
    frame_packet,
)
from rtit.gdb.target import GdbTarget
from support.recordings import record_to_end

ANSWER = re.compile(rb"(?:[+-]|\$((?:[^#$]|\}.)*)#([0-9a-f]{2}))*", re.DOTALL)
NAMES = [
    *(b"qSupported QStartNoAckMode qXfer: qRcmd, qC qfThreadInfo qsThreadInfo Qbtrace: ?".split()),
    *(b"Hg Hc T g p m G P M X Z0, z1, vCont;c vMustReplyEmpty c C s S".split()),
    *(b"qXfer:btrace:read: qXfer:features:read:target.xml: qXfer:auxv:read:: x !".split()),
]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GdbTarget]:
    data = tmp_path_factory.mktemp("session") / "data"
    record_to_end(start_recording(RecordRequest(["/bin/true"], output=data)))
    with rtit.Trace(data) as trace:  # so many that gdb gets packets wherever a PSB lies
        yield GdbTarget(trace, max_instructions=1 << 20, report=lambda _: None)


Ask = Callable[[bytes], bytes]


@pytest.fixture
def send_packet(target: GdbTarget) -> Ask:
    """Send one packet to a session and return the payload of its reply."""
    session = GdbSession(target)

    def reply_of(packet: bytes) -> bytes:
        [answer] = PacketReader().feed_bytes(session.feed_bytes(frame_packet(packet)))
        assert isinstance(answer, bytes)
        return re.sub(rb"\}(.)", lambda found: bytes([found[1][0] ^ 0x20]), answer, flags=re.DOTALL)

    return reply_of


def read_qxfer_object(send_packet: Ask, name: bytes, annex: bytes = b"", size: int = 100) -> bytes:
    """Return a qXfer object, read in parts."""
    text = b""
    while True:
        part = send_packet(b"qXfer:%b:read:%b:%x,%x" % (name, annex, len(text), size))
        assert part[:1] in (b"m", b"l")
        text += part[1:]
        if part[:1] == b"l":
            return text


@given(st.lists(st.binary(max_size=40)), st.data())
def test_packets_are_found_in_any_pieces(packets: list[bytes], data: st.DataObject) -> None:
    stream = b"+".join(frame_packet(escape_payload(each)) for each in packets)
    reader, found, at = PacketReader(), list[bytes | FrameError](), 0
    while at < len(stream):
        size = data.draw(st.integers(1, len(stream)))
        found += reader.feed_bytes(stream[at : at + size])
        at += size
    assert found == [escape_payload(each) for each in packets]


@given(st.binary(max_size=20))
def test_wrong_checksum_is_rejected(payload: bytes) -> None:
    frame = frame_packet(escape_payload(payload))
    wrong = frame[:-2] + b"%02x" % (int(frame[-2:], 16) ^ 1)
    assert [*PacketReader().feed_bytes(wrong + frame_packet(b"g"))] == [FrameError.BROKEN, b"g"]


def test_packet_without_end_is_dropped() -> None:
    reader, found = PacketReader(), list[bytes | FrameError]()
    for _ in range(100):
        found += reader.feed_bytes(b"$" + b"m" * 1000)
    assert FrameError.TOO_LONG in found
    assert [*PacketReader().feed_bytes(frame_packet(b"m" * MAX_PACKET))] == [b"m" * MAX_PACKET]
    assert [*PacketReader().feed_bytes(frame_packet(b"m" * (MAX_PACKET + 1)))] == [
        FrameError.TOO_LONG
    ]


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=30),
            st.builds(
                lambda name, rest: frame_packet(name + rest),
                st.sampled_from(NAMES),
                st.one_of(st.binary(max_size=12), st.from_regex(rb"[0-9a-f]{1,17},[0-9a-f]{1,5}")),
            ),
        ),
        max_size=8,
    )
)
def test_any_bytes_get_valid_replies(target: GdbTarget, sent: list[bytes]) -> None:
    session = GdbSession(target)
    for each in sent:
        answer = session.feed_bytes(each)
        assert ANSWER.fullmatch(answer), answer
        assert len(answer) <= (MAX_PACKET + 8) * (each.count(b"#") + 1)
    # a new session still answers
    if not session.closed:
        session = GdbSession(target)
        assert b"PacketSize" in session.feed_bytes(frame_packet(b"qSupported"))


@pytest.mark.parametrize(
    "packet",
    [
        *(
            b"Hg",
            b"Hgx",
            b"Hx1",
            b"T",
            b"T1",
            b"Hg-2",
            b"Hg1_0",
            b"p",
            b"pffff",
            b"m",
            b"m1",
            b"m,1",
        ),
        *(
            b"m1,",
            b"m-1,1",
            b"m11111111111111111,1",
            b"qXfer:auxv:read::0",
            b"qXfer:auxv:read::x,1",
        ),
        *(b"qXfer:nothing:read::0,1", b"qRcmd,6", b"qRcmd,ff", b"qRcmd,63616c6c6572732031"),
        b"qRcmd," + (b"callers " + b"1" * 5000).hex().encode(),
    ],
)
def test_malformed_packet_gets_e22(send_packet: Ask, packet: bytes) -> None:
    assert send_packet(packet) == b"E22"


@pytest.mark.parametrize(
    "packet", [b"", b"vMustReplyEmpty", b"qXfer:auxv:write::0:0", b"vCont?", b"qCRC:1000,10"]
)
def test_unknown_packet_gets_empty_reply(send_packet: Ask, packet: bytes) -> None:
    assert send_packet(packet) == b""


def test_writes_are_refused(send_packet: Ask) -> None:
    for packet in (b"G00", b"P0=0000000000000000", b"M0,1:00", b"X0,0:"):
        assert send_packet(packet) == b"E01"


def test_memory_of_read_only_segments_is_known(send_packet: Ask, target: GdbTarget) -> None:
    main = target.program.main
    assert main is not None
    assert main.path.endswith("/true")
    contents = Path(main.path).read_bytes()
    # the ELF header is mapped read-only at the load bias
    assert bytes.fromhex(send_packet(b"m%x,40" % main.bias).decode()) == contents[:64]
    for offset, address, _, _, flags in main.headers.segments:
        answer = send_packet(b"m%x,20" % main.address_of(address))
        if flags & 2:  # writable: its content at the end is unknown
            assert answer == b"E14"
        else:
            assert bytes.fromhex(answer.decode()) == contents[offset:][:32]
    assert send_packet(b"m0,8") == b"E14"
    assert send_packet(b"mffffffffffffffff,8") == b"E14"


@given(st.integers(0, (1 << 64) - 1), st.integers(0, 1 << 20))
def test_memory_read_never_exceeds_size(target: GdbTarget, address: int, size: int) -> None:
    assert len(target.program.read_memory(address, size)) <= size


def test_only_the_pc_is_known(send_packet: Ask, target: GdbTarget) -> None:
    """Registers have the sizes of the target description; all but the PC are unknown."""
    tree = ET.fromstring(read_qxfer_object(send_packet, b"features", b"target.xml"))
    sizes = [(each.get("name"), int(each.get("bitsize", 0))) for each in tree.iter("reg")]
    text = send_packet(b"g").decode()
    assert len(text) * 4 == sum(size for _, size in sizes)
    at = 0
    for number, (name, size) in enumerate(sizes):
        value = text[at : at + size // 4]
        assert send_packet(b"p%x" % number) == value.encode()
        if name == "rip":
            assert int.from_bytes(bytes.fromhex(value), "little") == target.last_ip(target.tid)
        else:
            assert set(value) == {"x"}, name
        at += size // 4


def test_qxfer_objects_are_equal_in_any_part_size(send_packet: Ask, target: GdbTarget) -> None:
    for name, annex in ((b"threads", b""), (b"libraries-svr4", b""), (b"btrace-conf", b"")):
        assert read_qxfer_object(send_packet, name, annex) == read_qxfer_object(
            send_packet, name, annex, 1 << 16
        )
    threads = ET.fromstring(read_qxfer_object(send_packet, b"threads"))
    assert [(int(each.get("id", ""), 16), each.get("name")) for each in threads] == [
        (target.tid, "true")
    ]
    libraries = ET.fromstring(read_qxfer_object(send_packet, b"libraries-svr4"))
    names = [Path(each.get("name", "")).name for each in libraries]
    assert "libc.so.6" in names
    assert "true" not in names
    for each in libraries:  # the first address of a file is that of its ELF header
        head = send_packet(b"m%x,4" % int(each.get("l_addr", ""), 16))
        assert bytes.fromhex(head.decode()) == b"\x7fELF"
    pt = ET.fromstring(read_qxfer_object(send_packet, b"btrace", b"all", 1 << 12)).findtext(
        "pt/raw"
    )
    with rtit.Trace(target.trace.path) as trace:
        [stream] = trace.streams
        assert stream.read().endswith(bytes.fromhex(pt or "00"))
    assert len(ET.fromstring(read_qxfer_object(send_packet, b"btrace", b"delta"))) == 0


def test_error_text_with_frame_characters_is_sanitized(
    target: GdbTarget, send_packet: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path in an error may have `#`, `$`, `}` or `*`."""

    def fail(_: int) -> str:
        raise RtitError("/tmp/a#1$}*2: no such thing")

    monkeypatch.setattr(target, "branch_trace", fail)
    assert send_packet(b"qXfer:btrace:read:all:0,100") == b"E./tmp/a?1???2: no such thing"


def test_detach_and_kill_close_the_session(target: GdbTarget) -> None:
    for packet, sanitize_text in ((b"D", b"+$OK#9a"), (b"k", b"+"), (b"vKill;1", b"+$OK#9a")):
        session = GdbSession(target)
        assert session.feed_bytes(frame_packet(packet)) == sanitize_text
        assert session.closed


def test_no_ack_mode_stops_acknowledgements(target: GdbTarget) -> None:
    session = GdbSession(target)
    assert session.feed_bytes(frame_packet(b"QStartNoAckMode")) == b"+$OK#9a"
    assert session.feed_bytes(frame_packet(b"qC")).startswith(b"$QC")
    assert session.feed_bytes(b"$qC#00") == frame_packet(b"E22")


def test_resume_replies_end_of_replay_log(send_packet: Ask) -> None:
    for packet in (b"c", b"s", b"C05", b"S05"):
        assert b"replaylog:end;" in send_packet(packet)
