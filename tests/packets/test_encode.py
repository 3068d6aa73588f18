"""Values that fit no packet are rejected with field and value."""

from __future__ import annotations

from typing import Any

import pytest

from rtit.packets import NAMES, encode, encode_cyc, encode_tnt, encoder

REFUSED = [
    ("TIP", {"ip_bytes": 5, "payload": 0}, "ip_bytes = 0x5"),
    ("TIP", {"ip_bytes": 7, "payload": 0}, "ip_bytes = 0x7"),
    ("TIP", {"ip_bytes": 8, "payload": 0}, "ip_bytes = 0x8"),
    ("TIP", {"ip_bytes": -1, "payload": 0}, "ip_bytes = -0x1"),
    ("TIP", {"ip_bytes": 0, "payload": 0}, "payload = 0x0"),
    ("FUP", {"ip_bytes": 1}, "payload = None"),
    ("TIP.PGE", {"ip_bytes": 1, "payload": 0x10000}, "payload = 0x10000"),
    ("TIP.PGE", {"ip_bytes": 2, "payload": 1 << 32}, "payload = 0x100000000"),
    ("TIP.PGD", {"ip_bytes": 3, "payload": 1 << 48}, "payload = 0x1000000000000"),
    ("TIP.PGD", {"ip_bytes": 3, "payload": -1}, "payload = -0x1"),
    ("FUP", {"ip_bytes": 6, "payload": 1 << 64}, "payload = 0x10000000000000000"),
    ("TNT", {"bits": ""}, "0 results"),
    ("TNT", {"bits": "TTTTTTT"}, "7 results"),
    ("TNT", {"bits": "TX"}, "'TX'"),
    ("TNT", {"bits": 3}, "bits = 3"),
    ("TNT.64", {"bits": "T" * 48}, "48 results"),
    ("PIP", {"nr": 2, "cr3": 0}, "nr = 0x2"),
    ("PIP", {"nr": 0, "cr3": 0x1010}, "cr3 = 0x1010"),
    ("PIP", {"nr": 0, "cr3": 1 << 52}, "cr3 = 0x10000000000000"),
    ("MODE.Exec", {"csl": 1, "csd": 1, "iflag": 0}, "csl = 1, csd = 1 is reserved"),
    ("MODE.TSX", {"in_tx": 1, "tx_abort": 1}, "in_tx = 1, tx_abort = 1 is reserved"),
    ("CBR", {"ratio": 256}, "ratio = 0x100"),
    ("TSC", {"tsc": 1 << 56}, "tsc = 0x100000000000000"),
    ("MTC", {"ctc": -1}, "ctc = -0x1"),
    ("TMA", {"ctc": 0, "fast_counter": 512}, "fast_counter = 0x200"),
    ("CYC", {"cycles": -1}, "cycles = -0x1"),
    ("CYC", {"cycles": 1 << 61}, "cycles = 0x2000000000000000"),
    ("VMCS", {"pointer": 0x123456800}, "pointer = 0x123456800"),
    ("PTW", {"ip": 0, "payload_bytes": 2, "payload": 0}, "payload_bytes = 0x2"),
    ("PTW", {"ip": 0, "payload_bytes": 0, "payload": 1 << 32}, "payload = 0x100000000"),
    ("MWAIT", {"hints": 0, "ext": 4}, "ext = 0x4"),
    ("PWRX", {"last": 16, "deepest": 0, "wake": 0}, "last = 0x10"),
    ("BBP", {"sz": 0, "type": 32}, "type = 0x20"),
    ("BIP", {"id": 32, "sz": 0, "payload": 0}, "id = 0x20"),
    ("BIP", {"id": 0, "sz": 2, "payload": 0}, "sz = 0x2"),
    ("BIP", {"id": 0, "sz": 1, "payload": 1 << 32}, "payload = 0x100000000"),
    ("EVD", {"type": 64, "payload": 0}, "type = 0x40"),
    ("CBR", {}, "field ratio is missing"),
    ("CBR", {"ratio": 1, "speed": 2}, "no field speed"),
    ("PAD", {"bits": "T"}, "no field bits"),
    ("TNT", {"bits": "T", "count": 1}, "no field count"),
]


@pytest.mark.parametrize(("name", "fields", "words"), REFUSED)
def test_encode_rejects_bad_fields(name: Any, fields: Any, words: Any) -> None:
    with pytest.raises(ValueError, match="^" + name) as caught:
        encode(name, **fields)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["tip", "TRIG", ""])
def test_unknown_packet_name_is_rejected(name: Any) -> None:
    for function in (encode, encoder):
        with pytest.raises(ValueError, match=r"valid are PAD, TNT, TNT\.64"):
            function(name)


def test_all_packets_of_the_chapter_have_names() -> None:
    expected = (
        "PAD TNT TNT.64 TIP TIP.PGE TIP.PGD FUP PIP MODE.Exec MODE.TSX TraceStop CBR TSC MTC TMA "
        "CYC VMCS OVF PSB PSBEND MNT PTW EXSTOP MWAIT PWRE PWRX BBP BIP BEP CFE EVD"
    )
    assert sorted(NAMES) == sorted(expected.split())


@pytest.mark.spec("TNT-001", "TNT-003")
def test_tnt_is_encoded_from_count_and_bits() -> None:
    assert encode_tnt(5, 0b00100) == b"\x48"
    assert encode_tnt(6, 0b000001) == b"\x82"
    assert encode_tnt(47, (1 << 47) - 1, long=True) == bytes.fromhex("02a3ffffffffffff")
    assert encode("TNT", bits=(False, True, True)) == encode_tnt(3, 0b011) == b"\x16"


@pytest.mark.parametrize(
    ("count", "bits", "long"),
    [(0, 0, False), (7, 0, False), (2, 4, False), (2, -1, False), (48, 0, True), (0, 0, True)],
)
def test_tnt_count_or_bits_out_of_range_are_rejected(count: Any, bits: Any, long: Any) -> None:
    with pytest.raises(ValueError, match="results"):
        encode_tnt(count, bits, long)


@pytest.mark.spec("CYCF-002")
@pytest.mark.parametrize("size", range(1, 10))
def test_cyc_is_encoded_in_the_fewest_bytes(size: Any) -> None:
    below = 1 << (5 + 7 * (size - 1))
    assert len(encode_cyc(below - 1)) == size
    if size < 9:
        assert len(encode_cyc(below)) == size + 1


@pytest.mark.parametrize(("name", "values"), [("PIP", (0, 0)), ("BIP", (0, 0, 0)), ("TMA", (0, 0))])
def test_value_outside_the_field_is_rejected(name: Any, values: Any) -> None:
    assert encoder(name)(*values)
    with pytest.raises(ValueError, match="longer"):
        encoder(name)(0, *values)
