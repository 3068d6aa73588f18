"""The bits of packets, compared with `vectors.txt`, which is typed from the chapter."""

from __future__ import annotations

import pytest

from packets.vectors import READ, WRITTEN, Vector, vectors
from rtit.packets import decode
from rtit.packets.bit_layout import BitSpan, bit_spans
from rtit.packets.table import DECLARATION_BY_NAME


@pytest.mark.parametrize(
    "vector", [*vectors(WRITTEN), *vectors(READ)], ids=lambda vector: vector.raw.hex()
)
def test_bits_of_each_field_make_its_value(vector: Vector) -> None:
    spans = bit_spans(vector.decode(vector.raw, 0))
    assert [int("".join(span.value for span in byte), 2) for byte in spans] == [*vector.raw]
    values: dict[str, int] = {}
    for span in (span for byte in spans for span in byte):
        assert span.high - span.low in (0, len(span.value) - 1)
        values[span.name] = values.get(span.name, 0) | int(span.value, 2) << span.low
    for field in DECLARATION_BY_NAME[vector.name].fields:
        expected = vector.fields[field.name]
        if isinstance(expected, str):
            expected = int(expected.replace("T", "1").replace("N", "0"), 2)
        if not field.context:
            assert values.get(field.name) == expected, field.name


def test_bits_that_are_no_field_have_the_names_of_the_chapter() -> None:
    # Table 33-16: 0, then the results, then the stop bit
    assert bit_spans(decode(b"\x16")) == [
        [
            BitSpan("unused", "000"),
            BitSpan("stop bit", "1"),
            BitSpan("bits", "011", 2, 0),
            BitSpan("header", "0"),
        ]
    ]
    # Table 33-29: the last byte of a CBR is reserved
    assert bit_spans(decode(bytes.fromhex("02032000")))[2:] == [
        [BitSpan("ratio", "00100000", 7, 0)],
        [BitSpan("reserved", "00000000")],
    ]


def test_spans_of_a_field_count_up_over_its_bytes() -> None:
    assert bit_spans(decode(bytes.fromhex("2d0813"))) == [
        [BitSpan("ip_bytes", "001", 2, 0), BitSpan("header", "01101")],
        [BitSpan("payload", "00001000", 7, 0)],
        [BitSpan("payload", "00010011", 15, 8)],
    ]
