"""Every packet of section 33.4.2 byte by byte, typed from the tables of the chapter."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from rtit.packets import decode, describe, encode, encoder, reencode, to_json

IP48 = 0x060504030201
Q = "08 07 06 05 04 03 02 01"
Q_VALUE = 0x0102030405060708


class Vector(NamedTuple):
    """A packet's name, its bytes, its line (None: not compared) and its fields."""

    name: str
    raw: bytes
    line: str | None
    fields: dict[str, Any]


def case(name: str, raw: str, line: str | None, **fields: Any) -> Vector:
    return Vector(name, bytes.fromhex(raw), line, fields)


def vectors(*cases: Vector) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("vector", cases, ids=[case.raw.hex() for case in cases])


def check(vector: Vector) -> None:
    name, raw, line, fields = vector
    packet = decode(b"\xaa" + raw + b"\xaa", 1)
    assert (packet.name, dict(packet.fields)) == (name, fields)
    assert (packet.offset, packet.size, packet.raw) == (1, len(raw), raw)
    assert encode(name, **fields) == raw
    assert encoder(name)(*fields.values()) == raw
    assert reencode(packet) == raw
    if line is not None:
        assert describe(packet) == line
    assert to_json(packet) == {
        "offset": 1,
        "size": len(raw),
        "name": name,
        "fields": fields,
        "raw": raw.hex(),
    }


@pytest.mark.spec("PAD-001")
@vectors(
    case("PAD", "00", "PAD"),
)
def test_pad(vector: Vector) -> None:
    """Table 33-39."""
    check(vector)


@pytest.mark.spec("TNT-001", "TNT-002", "TNT-003", "TNT-004", "TNT-006")
@vectors(
    case("TNT", "06", "TNT bits=T", bits="T"),
    case("TNT", "04", "TNT bits=N", bits="N"),
    case("TNT", "16", "TNT bits=NTT", bits="NTT"),
    case("TNT", "14", "TNT bits=NTN", bits="NTN"),
    case("TNT", "48", "TNT bits=NNTNN", bits="NNTNN"),
    case("TNT", "fe", "TNT bits=TTTTTT", bits="TTTTTT"),
    case("TNT", "80", "TNT bits=NNNNNN", bits="NNNNNN"),
    case("TNT", "82", "TNT bits=NNNNNT", bits="NNNNNT"),
    case("TNT.64", "02a3 ffffffffffff", f"TNT.64 bits={'T' * 47}", bits="T" * 47),
    case("TNT.64", "02a3 000000000080", f"TNT.64 bits={'N' * 47}", bits="N" * 47),
    case("TNT.64", "02a3 0100000000c0", None, bits="T" + "N" * 45 + "T"),
    case("TNT.64", "02a3 030000000000", "TNT.64 bits=T", bits="T"),
    case("TNT.64", "02a3 000000c00000", None, bits="T" + "N" * 30),
    case(
        "TNT.64",
        "02a3 cd24934c32c9",
        None,
        bits=f"{0x49324C9324CD:b}".translate({48: "N", 49: "T"}),
    ),
)
def test_tnt(vector: Vector) -> None:
    """Table 33-16."""
    check(vector)


@pytest.mark.spec("TIP-001")
@vectors(
    case("TIP", "0d", "TIP ip_bytes=0", ip_bytes=0, payload=None),
    case("TIP", "2d 08 13", "TIP ip_bytes=1 payload=0x1308", ip_bytes=1, payload=0x1308),
    case("TIP", "4d 01 02 03 84", None, ip_bytes=2, payload=0x84030201),
    case("TIP", "6d 01 02 03 04 05 06", None, ip_bytes=3, payload=IP48),
    case("TIP", "8d 01 02 03 04 05 06", None, ip_bytes=4, payload=IP48),
    case("TIP", f"cd {Q}", None, ip_bytes=6, payload=Q_VALUE),
)
def test_tip(vector: Vector) -> None:
    """Table 33-17."""
    check(vector)


@pytest.mark.spec("PGE-001")
@vectors(
    case("TIP.PGE", "11", "TIP.PGE ip_bytes=0", ip_bytes=0, payload=None),
    case("TIP.PGE", "31 02 20", None, ip_bytes=1, payload=0x2002),
    case("TIP.PGE", "51 01 20 00 00", None, ip_bytes=2, payload=0x2001),
    case("TIP.PGE", "71 00 20 ff ff ff ff", None, ip_bytes=3, payload=0xFFFFFFFF2000),
    case("TIP.PGE", "91 01 02 03 04 05 06", None, ip_bytes=4, payload=IP48),
    case("TIP.PGE", f"d1 {Q}", None, ip_bytes=6, payload=Q_VALUE),
)
def test_tip_pge(vector: Vector) -> None:
    """Table 33-20."""
    check(vector)


@pytest.mark.spec("PGD-001")
@vectors(
    case("TIP.PGD", "01", "TIP.PGD ip_bytes=0", ip_bytes=0, payload=None),
    case("TIP.PGD", "21 02 30", None, ip_bytes=1, payload=0x3002),
    case("TIP.PGD", "41 01 30 00 00", None, ip_bytes=2, payload=0x3001),
    case("TIP.PGD", "61 00 30 00 00 00 00", None, ip_bytes=3, payload=0x3000),
    case("TIP.PGD", "81 01 02 03 04 05 06", None, ip_bytes=4, payload=IP48),
    case("TIP.PGD", f"c1 {Q}", None, ip_bytes=6, payload=Q_VALUE),
)
def test_tip_pgd(vector: Vector) -> None:
    """Table 33-21."""
    check(vector)


@pytest.mark.spec("FUP-001")
@vectors(
    case("FUP", "1d", "FUP ip_bytes=0", ip_bytes=0, payload=None),
    case("FUP", "3d 01 40", None, ip_bytes=1, payload=0x4001),
    case("FUP", "5d 01 40 00 00", None, ip_bytes=2, payload=0x4001),
    case("FUP", "7d 00 40 ff ff ff ff", None, ip_bytes=3, payload=0xFFFFFFFF4000),
    case("FUP", "9d 01 02 03 04 05 06", None, ip_bytes=4, payload=IP48),
    case("FUP", "dd 00 00 00 00 00 80 00 00", None, ip_bytes=6, payload=1 << 47),
)
def test_fup(vector: Vector) -> None:
    """Table 33-22."""
    check(vector)


@pytest.mark.spec("PIP-001")
@vectors(
    case("PIP", "0243 01 45 23 01 00 00", "PIP nr=1 cr3=0x12345000", nr=1, cr3=0x12345000),
    case("PIP", "0243 fa fa 0a 00 00 00", None, nr=0, cr3=0xAFAFA0),
    case("PIP", "0243 fe ff ff ff ff ff", None, nr=0, cr3=0xFFFFFFFFFFFE0),
)
def test_pip(vector: Vector) -> None:
    """Table 33-24."""
    check(vector)


@pytest.mark.spec("MODE-001", "MODE-002")
@vectors(
    case("MODE.Exec", "99 00", "MODE.Exec csl=0 csd=0 iflag=0", csl=0, csd=0, iflag=0),
    case("MODE.Exec", "99 01", "MODE.Exec csl=1 csd=0 iflag=0", csl=1, csd=0, iflag=0),
    case("MODE.Exec", "99 02", None, csl=0, csd=1, iflag=0),
    case("MODE.Exec", "99 04", None, csl=0, csd=0, iflag=1),
    case("MODE.Exec", "99 05", None, csl=1, csd=0, iflag=1),
    case("MODE.Exec", "99 06", None, csl=0, csd=1, iflag=1),
)
def test_mode_exec(vector: Vector) -> None:
    """Table 33-26."""
    check(vector)


@pytest.mark.spec("MODE-001", "MTSX-001")
@vectors(
    case("MODE.TSX", "99 20", "MODE.TSX in_tx=0 tx_abort=0", in_tx=0, tx_abort=0),
    case("MODE.TSX", "99 21", None, in_tx=1, tx_abort=0),
    case("MODE.TSX", "99 22", None, in_tx=0, tx_abort=1),
)
def test_mode_tsx(vector: Vector) -> None:
    """Table 33-27."""
    check(vector)


@pytest.mark.spec("TSP-001")
@vectors(
    case("TraceStop", "02 83", "TraceStop"),
)
def test_tracestop(vector: Vector) -> None:
    """Table 33-28."""
    check(vector)


@pytest.mark.spec("CBR-001")
@vectors(
    case("CBR", "02 03 27 00", "CBR ratio=39", ratio=0x27),
)
def test_cbr(vector: Vector) -> None:
    """Table 33-29."""
    check(vector)


@pytest.mark.spec("TSC-001")
@vectors(
    case("TSC", "19 01 02 03 04 05 06 07", "TSC tsc=0x7060504030201", tsc=0x07060504030201),
    case("TSC", "19 ff ff ff ff ff ff ff", None, tsc=(1 << 56) - 1),
)
def test_tsc(vector: Vector) -> None:
    """Table 33-30."""
    check(vector)


@pytest.mark.spec("MTC-001")
@vectors(
    case("MTC", "59 8b", "MTC ctc=0x8b", ctc=0x8B),
)
def test_mtc(vector: Vector) -> None:
    """Table 33-31."""
    check(vector)


@pytest.mark.spec("TMA-001")
@vectors(
    case(
        "TMA",
        "02 73 57 64 00 1c 00",
        "TMA ctc=0x6457 fast_counter=0x1c",
        ctc=0x6457,
        fast_counter=0x1C,
    ),
    case("TMA", "02 73 00 00 00 00 01", None, ctc=0, fast_counter=0x100),
    case("TMA", "02 73 ff ff 00 ff 01", None, ctc=0xFFFF, fast_counter=0x1FF),
)
def test_tma(vector: Vector) -> None:
    """Table 33-32."""
    check(vector)


@pytest.mark.spec("CYCF-001", "CYCF-002")
@vectors(
    case("CYC", "03", "CYC cycles=0", cycles=0),
    case("CYC", "13", "CYC cycles=2", cycles=2),
    case("CYC", "1b", None, cycles=3),
    case("CYC", "33", None, cycles=6),
    case("CYC", "43", None, cycles=8),
    case("CYC", "4b", None, cycles=9),
    case("CYC", "53", None, cycles=10),
    case("CYC", "a3", None, cycles=20),
    case("CYC", "fb", None, cycles=31),
    case("CYC", "07 02", None, cycles=32),
    case("CYC", "df fa", None, cycles=4027),
    case("CYC", "ff fe", "CYC cycles=4095", cycles=4095),
    case("CYC", "07 01 02", None, cycles=4096),
    case("CYC", "17 01 04", None, cycles=8194),
    case("CYC", "ff ff fe", None, cycles=524287),
    case("CYC", "07 01 01 02", None, cycles=524288),
)
def test_cyc(vector: Vector) -> None:
    """Table 33-33."""
    check(vector)


@pytest.mark.spec("VMCS-001")
@vectors(
    case("VMCS", "02 c8 56 34 12 00 00", "VMCS pointer=0x123456000", pointer=0x123456000),
    case("VMCS", "02 c8 ff ff ff ff ff", None, pointer=0xFFFFFFFFFF000),
)
def test_vmcs(vector: Vector) -> None:
    """Table 33-34."""
    check(vector)


@pytest.mark.spec("OVFP-001")
@vectors(
    case("OVF", "02 f3", "OVF"),
)
def test_ovf(vector: Vector) -> None:
    """Table 33-35."""
    check(vector)


@pytest.mark.spec("PSBP-001")
@vectors(
    case("PSB", "02 82 " * 8, "PSB"),
)
def test_psb(vector: Vector) -> None:
    """Table 33-36."""
    check(vector)


@pytest.mark.spec("PSBP-002")
@vectors(
    case("PSBEND", "02 23", "PSBEND"),
)
def test_psbend(vector: Vector) -> None:
    """Table 33-37."""
    check(vector)


@pytest.mark.spec("MNT-001")
@vectors(
    case("MNT", f"02 c3 88 {Q}", "MNT payload=0x102030405060708", payload=Q_VALUE),
)
def test_mnt(vector: Vector) -> None:
    """Table 33-38."""
    check(vector)


@pytest.mark.spec("PTW-001")
@vectors(
    case(
        "PTW",
        "02 12 04 03 02 01",
        "PTW ip=0 payload_bytes=0 payload=0x1020304",
        ip=0,
        payload_bytes=0,
        payload=0x01020304,
    ),
    case("PTW", f"02 32 {Q}", None, ip=0, payload_bytes=1, payload=Q_VALUE),
    case("PTW", "02 92 ef cd ab 90", None, ip=1, payload_bytes=0, payload=0x90ABCDEF),
    case("PTW", f"02 b2 {Q}", None, ip=1, payload_bytes=1, payload=Q_VALUE),
)
def test_ptw(vector: Vector) -> None:
    """Table 33-40."""
    check(vector)


@pytest.mark.spec("EXS-001")
@vectors(
    case("EXSTOP", "02 62", "EXSTOP ip=0", ip=0),
    case("EXSTOP", "02 e2", "EXSTOP ip=1", ip=1),
)
def test_exstop(vector: Vector) -> None:
    """Table 33-41."""
    check(vector)


@pytest.mark.spec("MWT-001")
@vectors(
    case("MWAIT", "02 c2 20 00 00 00 01 00 00 00", "MWAIT hints=0x20 ext=0x1", hints=0x20, ext=1),
    case("MWAIT", "02 c2 ff 00 00 00 03 00 00 00", None, hints=0xFF, ext=3),
)
def test_mwait(vector: Vector) -> None:
    """Table 33-42."""
    check(vector)


@pytest.mark.spec("PWRE-001")
@vectors(
    case("PWRE", "02 22 80 20", "PWRE hw=1 state=2 sub_state=0", hw=1, state=2, sub_state=0),
    case("PWRE", "02 22 00 5a", None, hw=0, state=5, sub_state=10),
)
def test_pwre(vector: Vector) -> None:
    """Table 33-43."""
    check(vector)


@pytest.mark.spec("PWRX-001", "PWRX-002")
@vectors(
    case(
        "PWRX",
        "02 a2 22 01 00 00 00",
        "PWRX last=2 deepest=2 wake=0x1(interrupt)",
        last=2,
        deepest=2,
        wake=1,
    ),
    case(
        "PWRX",
        "02 a2 13 02 00 00 00",
        "PWRX last=1 deepest=3 wake=0x2(timer_deadline)",
        last=1,
        deepest=3,
        wake=2,
    ),
    case(
        "PWRX",
        "02 a2 05 04 00 00 00",
        "PWRX last=0 deepest=5 wake=0x4(store)",
        last=0,
        deepest=5,
        wake=4,
    ),
    case(
        "PWRX",
        "02 a2 05 08 00 00 00",
        "PWRX last=0 deepest=5 wake=0x8(hardware)",
        last=0,
        deepest=5,
        wake=8,
    ),
)
def test_pwrx(vector: Vector) -> None:
    """Table 33-44."""
    check(vector)


@pytest.mark.spec("BBP-001", "BBP-002")
@vectors(
    case("BBP", "02 63 04", "BBP sz=0 type=0x4(PEBS_BASIC)", sz=0, type=4),
    case("BBP", "02 63 84", "BBP sz=1 type=0x4(PEBS_BASIC)", sz=1, type=4),
    case("BBP", "02 63 01", "BBP sz=0 type=0x1(GPR)", sz=0, type=1),
    case("BBP", "02 63 05", "BBP sz=0 type=0x5(PEBS_MEMORY)", sz=0, type=5),
    case("BBP", "02 63 08", "BBP sz=0 type=0x8(LBR_0)", sz=0, type=8),
    case("BBP", "02 63 09", "BBP sz=0 type=0x9(LBR_1)", sz=0, type=9),
    case("BBP", "02 63 0a", "BBP sz=0 type=0xa(LBR_2)", sz=0, type=10),
    case("BBP", "02 63 10", "BBP sz=0 type=0x10(XMM)", sz=0, type=16),
    case("BBP", "02 63 1f", "BBP sz=0 type=0x1f(reserved)", sz=0, type=31),
)
def test_bbp(vector: Vector) -> None:
    """Table 33-45."""
    check(vector)


@pytest.mark.spec("BEP-001")
@vectors(
    case("BEP", "02 33", "BEP ip=0", ip=0),
    case("BEP", "02 b3", "BEP ip=1", ip=1),
)
def test_bep(vector: Vector) -> None:
    """Table 33-48."""
    check(vector)


@pytest.mark.spec("CFE-001")
@vectors(
    case("CFE", "02 13 81 20", "CFE ip=1 type=0x1(INTR) vector=0x20", ip=1, type=1, vector=0x20),
    case("CFE", "02 13 02 00", "CFE ip=0 type=0x2(IRET) vector=0x0", ip=0, type=2, vector=0),
    case("CFE", "02 13 0c ff", "CFE ip=0 type=0xc(UINTR) vector=0xff", ip=0, type=12, vector=255),
    case(
        "CFE", "02 13 0e 80", "CFE ip=0 type=0xe(reserved) vector=0x80", ip=0, type=14, vector=128
    ),
)
def test_cfe(vector: Vector) -> None:
    """Tables 33-49 and 33-50."""
    check(vector)


@pytest.mark.spec("EVD-001", "EVD-002")
@vectors(
    case(
        "EVD",
        f"02 53 00 {Q}",
        "EVD type=0x0(PFA) payload=0x102030405060708",
        type=0,
        payload=Q_VALUE,
    ),
    case(
        "EVD",
        "02 53 01 00 00 00 00 00 00 00 80",
        "EVD type=0x1(VMXQ) payload=0x8000000000000000",
        type=1,
        payload=1 << 63,
    ),
    case(
        "EVD",
        "02 53 02 aa 0b f0 00 00 00 00 00",
        "EVD type=0x2(VMXR) payload=0xf00baa",
        type=2,
        payload=0xF00BAA,
    ),
    case(
        "EVD",
        f"02 53 3f {Q}",
        "EVD type=0x3f(reserved) payload=0x102030405060708",
        type=63,
        payload=Q_VALUE,
    ),
)
def test_evd(vector: Vector) -> None:
    """Table 33-51."""
    check(vector)


@pytest.mark.spec("BIP-001", "BIP-002")
@pytest.mark.parametrize("item_id", range(32))
def test_block_item(item_id: Any) -> None:
    header = bytes((item_id << 3 | 4,))
    eight, four = header + bytes(range(1, 9)), header + bytes(range(1, 5))
    long, short = decode(eight, in_block=8), decode(eight, in_block=4)
    assert (long.name, long.raw) == ("BIP", eight)
    assert dict(long.fields) == {"id": item_id, "sz": 0, "payload": 0x0807060504030201}
    assert (short.name, short.raw) == ("BIP", four)
    assert dict(short.fields) == {"id": item_id, "sz": 1, "payload": 0x04030201}
    assert encode("BIP", **long.fields) == reencode(long) == eight
    assert encode("BIP", **short.fields) == reencode(short) == four
    assert decode(eight).name == "TNT"


@pytest.mark.spec("CYCF-003")
def test_cyc_longer_than_needed() -> None:
    packet = decode(bytes.fromhex("17 01 01 00"))
    assert (packet.fields["cycles"], packet.size) == (2, 4)
    assert reencode(packet) == packet.raw


def test_longest_cyc() -> None:
    raw = b"\xff" * 8 + b"\xfe"
    assert decode(raw).fields["cycles"] == (1 << 61) - 1
    assert encode("CYC", cycles=(1 << 61) - 1) == raw


def test_enable_sequence_of_a_real_processor() -> None:
    """PSB TSC TMA CBR PSBEND MODE.Exec TIP.PGE, as hardware begins a trace."""
    data = bytes.fromhex(
        "0282" * 8 + "19 01020304050607 0273 5764001c00 0203 2700 0223 9901 71 001040000000"
    )
    offset, names = 0, []
    while offset < len(data):
        packet = decode(data, offset)
        names.append(packet.name)
        offset += packet.size
    assert names == ["PSB", "TSC", "TMA", "CBR", "PSBEND", "MODE.Exec", "TIP.PGE"]
