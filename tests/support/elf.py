"""Small ELF files from sections: `build_elf`, and common files built with it."""

from __future__ import annotations

import struct

CODE_AT = 0x1000
SYMTAB, STRTAB, NOTE, PROGBITS = 2, 3, 7, 1


def section_header(kind: int, offset: int, size: int, link: int = 0, entry: int = 0) -> bytes:
    flags = 6 if kind == PROGBITS else 0
    address = CODE_AT if kind == PROGBITS else 0
    return struct.pack("<IIQQQQIIQQ", 0, kind, flags, address, offset, size, link, 1, 1, entry)


def build_elf(sections: list[tuple[int, bytes, int, int]]) -> bytes:
    """Return a file of sections (type, bytes, link, entry size); the null section comes first."""
    body, headers, at = b"", [bytes(64)], 64
    for kind, data, link, entry in [*sections, (STRTAB, b"\0", 0, 0)]:
        headers.append(section_header(kind, at + len(body), len(data), link, entry))
        body += data
    identity = b"\x7fELF\x02\x01\x01" + bytes(9)
    table = at + len(body)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", identity, 3, 62, 1, CODE_AT, 0, table, 0, 64, 56, 0, 64,
        len(headers), len(headers) - 1,
    )  # fmt: skip
    return header + body + b"".join(headers)


def function_symbol(name: int, value: int) -> bytes:
    return struct.pack("<IBBHQQ", name, 0x12, 0, 1, value, 1)


def elf_with_symbols(names: bytes, values: list[int]) -> bytes:
    symbols = bytes(24) + b"".join(function_symbol(at, CODE_AT + i) for i, at in enumerate(values))
    code = b"\xc3" * len(values)
    return build_elf([(PROGBITS, code, 0, 0), (SYMTAB, symbols, 3, 24), (STRTAB, names, 0, 0)])


def elf_with_build_id(build_id: bytes) -> bytes:
    """Return a file with a single section: an NT_GNU_BUILD_ID note."""
    note = struct.pack("<III", 4, len(build_id), 3) + b"GNU\0" + build_id
    return build_elf([(NOTE, note, 0, 0)])


def elf_with_segments(count: int) -> bytes:
    """Return a file with more segments than the header can count; section 0 has the number."""
    identity = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", identity, 3, 62, 1, CODE_AT, 128, 64, 0, 64, 56, 0xFFFF, 64, 1, 0
    )
    null = struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, 0, 0, count, 0, 0)
    values = (struct.pack("<IIQQQQQQ", 1, 5, 0, CODE_AT + at, 0, 1, 1, 1) for at in range(count))
    return header + null + b"".join(values)
