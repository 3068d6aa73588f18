"""Image: code that a user adds."""

from __future__ import annotations

from pathlib import Path

import pytest

import rtit
from rtit.errors import ImageError, UsageError
from rtit.image import Image
from rtit.packets import encode
from rtit.trace import Stream
from support.streams import SYNC

CODE = {0x1000: bytes.fromhex("ffd0"), 0x2000: bytes.fromhex("ffe0")}
"""1000 call rax; 2000 jmp rax"""
CALLS = encode("TIP", ip_bytes=6, payload=0x2000) + encode("TIP", ip_bytes=6, payload=0x1000)


def ips(stream: Stream) -> list[int]:
    return [int(ip) for part in stream.instructions() for ip in part.ip]


def test_image_reads_added_bytes_pages_and_files(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    dump.write_bytes(b"..code!")
    image = Image().add(0x1000, bytearray(b"abcd")).add_pages({0x2000: b"ef", 0x2002: b"gh"})
    image.add_file(dump, 0x3000, offset=2, size=4).add_pages([(0x1002, memoryview(b"XY"))])
    assert image.read(0x1000, 100) == b"abXY"
    assert image.read(0x2001, 100) == b"fgh"
    assert image.read(0x3000, 100) == b"code"
    assert image.remove(0x1001, 1).read(0x1000, 100) == b"a"
    assert repr(image) == "<Image: 6 parts>"


def test_image_reads_bytes_as_of_a_time() -> None:
    image = Image().add(0x1000, b"old").add(0x1000, b"new", time=50)
    assert (image.read(0x1000, 3, time=49), image.read(0x1000, 3)) == (b"old", b"new")


@pytest.mark.parametrize("address", [-1, 1 << 64, (1 << 64) - 2])
def test_address_beyond_64_bits_is_a_usage_error(address: int) -> None:
    with pytest.raises(UsageError, match="64 bits"):
        Image().add(address, b"code")


def test_elf_file_is_added_at_its_base_address(tmp_path: Path) -> None:
    from rtit._core import ElfFile

    program = Path("/bin/true")
    (text,) = [each for each in ElfFile(program).segments if each[4] & 1]
    offset, address, size, _, _ = text
    image = Image().add_elf(program, 0x5555_0000_0000)
    expected = program.read_bytes()[offset : offset + size]
    assert image.read(0x5555_0000_0000 + address, size + 1)[:size] == expected
    assert Image().add_elf(program).read(address, size) == expected
    (mapping,) = image.mappings
    assert (mapping.start, mapping.offset) == (0x5555_0000_0000 + address, offset)
    with pytest.raises(ImageError, match="cannot be read") as raised:
        Image().add_elf(tmp_path / "none")
    assert isinstance(raised.value, FileNotFoundError)
    with pytest.raises(UsageError, match="64 bits"):
        Image().add_elf(program, (1 << 64) - 4096)


class Asked:
    """Knows the pages of CODE, and what it was asked."""

    def __init__(self) -> None:
        self.pages: list[int] = []
        self.known = dict(CODE)

    def __call__(self, page: int) -> bytes | None:
        self.pages.append(page)
        return self.known.get(page)


def test_missing_pages_are_requested() -> None:
    asked = Asked()
    image = Image(asked)
    stream = rtit.decode(SYNC + CALLS * 5, image).streams[0]
    for _ in range(2):
        assert ips(stream) == [0x1000, 0x2000] * 5
    assert asked.pages == [0x1000, 0x2000]
    assert image.read(0x2000, 10) == b"\xff\xe0"
    assert asked.pages == [0x1000, 0x2000]


def test_missing_pages_are_not_requested_again_until_forget() -> None:
    asked = Asked()
    del asked.known[0x2000]
    image = Image(asked)
    stream = rtit.decode(SYNC + CALLS, image).streams[0]
    for _ in range(3):
        assert ips(stream) == [0x1000]
    assert asked.pages == [0x1000, 0x2000]
    asked.known[0x2000] = CODE[0x2000]
    assert ips(stream) == [0x1000]
    image.forget(0x2FFF, 1)
    assert ips(stream) == [0x1000, 0x2000]
    assert asked.pages == [0x1000, 0x2000, 0x2000]
    image.forget()
    assert ips(stream) == [0x1000, 0x2000]
    assert asked.pages == [0x1000, 0x2000, 0x2000, 0x1000, 0x2000]


def test_only_needed_pages_are_requested() -> None:
    # A jump ends at the last byte of its page; a call lies in two.
    pages = {0x1000: bytes(0xFFE) + b"\xff\xe0", 0x2000: bytes(0xFFF) + b"\xff", 0x3000: b"\xd0"}
    asked = Asked()
    asked.known = pages
    start = rtit.Start(ip=0x1FFE)
    data = encode("TIP", ip_bytes=6, payload=0x2FFF) + encode("TIP", ip_bytes=6, payload=0x9000)
    stream = rtit.decode(data, Image(asked), start=start).streams[0]
    assert ips(stream) == [0x1FFE, 0x2FFF]
    assert asked.pages[:3] == [0x1000, 0x2000, 0x3000]


def test_added_bytes_precede_callback() -> None:
    asked = Asked()
    asked.known[0x1000] = b"\xff\xd0" + bytes(30)
    image = Image(asked).add(0x1002, b"own")
    assert image.read(0x1000, 8) == b"\xff\xd0own\0\0\0"
    assert image.read(0x1002, 3) == b"own"


@pytest.mark.parametrize(
    ("answer", "error"), [("text", TypeError), (bytes(4097), ValueError), (5, TypeError)]
)
def test_invalid_callback_results_raise(answer: object, error: type[Exception]) -> None:
    image = Image(lambda page: answer)  # type: ignore[arg-type, return-value]
    with pytest.raises(error, match="page"):
        ips(rtit.decode(SYNC + CALLS, image).streams[0])
    with pytest.raises(error, match="page"):
        image.read(0x1000, 1)


def test_callback_exception_is_raised_again() -> None:
    asked = Asked()

    def missing(page: int) -> bytes | None:
        if len(asked.pages) == 0:
            asked.pages.append(page)
            raise LookupError("the machine is away")
        return asked(page)

    stream = rtit.decode(SYNC + CALLS, Image(missing)).streams[0]
    with pytest.raises(LookupError, match="the machine is away"):
        ips(stream)
    assert ips(stream) == [0x1000, 0x2000]


def test_callback_can_use_image() -> None:
    def missing(page: int) -> bytes | None:
        return image.read(0x8000, 16) if page == 0x1000 else None

    image = Image(missing).add(0x8000, CODE[0x1000])
    assert image.read(0x1000, 2) == CODE[0x1000]
