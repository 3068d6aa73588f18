"""The coverage ledger as columns and as spans."""

from __future__ import annotations

import numpy as np
import pytest

import rtit
from rtit.packets import encode
from rtit.trace import ErrorClass, Ledger, Span, Stream, Trust
from support.streams import SYNC

BAD = b"\x05"


def stream() -> Stream:
    jump = encode("TIP", ip_bytes=6, payload=0x1000)
    image = rtit.Image().add(0x1000, bytes.fromhex("ffe0"))
    away = encode("TIP", ip_bytes=6, payload=0x9000) + encode("TNT", bits="T")
    return rtit.decode(SYNC + jump + BAD + SYNC + away + SYNC, image).streams[0]


def test_ledger_columns_equal_spans() -> None:
    ledger = stream().ledger()
    spans = list(ledger)
    assert len(ledger) == len(spans) == 5
    assert [span.kind for span in spans] == ["exact", "lost"] * 2 + ["exact"]
    assert ledger.start.tolist() == [span.start for span in spans]
    assert ledger.end.tolist()[:-1] == ledger.start.tolist()[1:]
    assert [Trust(kind).label for kind in ledger.kind] == [span.kind for span in spans]
    assert [ErrorClass(cause) if cause else None for cause in ledger.cause] == [
        span.cause for span in spans
    ]
    assert [ledger.texts[number] for number in ledger.error] == [span.error for span in spans]
    assert ledger.value.tolist() == [0, 0, 0, 0x9000, 0]
    assert [column.dtype for column in ledger.columns().values()] == [
        np.dtype(code) for code in ("u8", "u8", "u1", "u1", "u8", "u4")
    ]
    assert ledger[1] == spans[1]
    assert ledger[-1].kind == "exact"
    with pytest.raises(IndexError):
        ledger[5]


def test_repeated_error_text_is_stored_once() -> None:
    ledger = stream().ledger()
    assert len(set(ledger.texts)) == len(ledger.texts) == 3
    assert ledger.fields[-1] == ("error", "u4", ledger.texts)


def test_ledger_of_an_empty_stream_has_no_spans() -> None:
    assert list(Ledger.from_rows([])) == []
    assert list(rtit.decode(b"").streams[0].ledger()) == []


def test_ledger_repr_shows_first_spans() -> None:
    one = Ledger.from_rows([(0, 5, "exact", None, None, None, None)])
    assert repr(one) == "<Ledger: bytes 0x0 to 0x5 exact>"
    many = Ledger.from_rows((at, at + 1, "exact", None, None, None, None) for at in range(2012))
    assert repr(many).startswith("<Ledger: bytes 0x0 to 0x1 exact, bytes 0x1 to 0x2 exact, ")
    assert repr(many).endswith(", bytes 0x9 to 0xa exact, and 2,002 more>")
    assert list(one) == [Span(0, 5, "exact", "")]
