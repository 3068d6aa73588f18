"""The packet declarations, and the Rust table generated from them."""

from __future__ import annotations

from typing import Any

import pytest

from rtit.packets import rust_table
from rtit.packets.table import DECLARATIONS


@pytest.mark.parametrize("row", DECLARATIONS, ids=lambda row: row.name)
def test_fields_do_not_overlap(row: Any) -> None:
    used = int.from_bytes(row.mask, "little")
    for field in row.fields:
        if field.width and not field.context:
            assert field.bit + field.width <= 64
            bits = ((1 << field.width) - 1) << field.byte * 8 + field.bit
            assert bits.bit_length() <= 8 * row.size
            if field.name != "opcode":
                assert not used & bits, field.name
            used |= bits


def test_rust_table_is_up_to_date() -> None:
    if not rust_table.TARGET.parent.is_dir():
        pytest.skip("no source tree")
    assert rust_table.main(["--check"]) == 0


def test_outdated_rust_table_is_reported(tmp_path: Any, monkeypatch: Any, capsys: Any) -> None:
    path = tmp_path / "table.rs"
    monkeypatch.setattr(rust_table, "TARGET", path)
    assert rust_table.main(["--check"]) == 1
    assert rust_table.main([]) == 0
    assert rust_table.main(["--check"]) == 0
    path.write_text(path.read_text().replace("0x0d", "0x0e"))
    assert rust_table.main(["--check"]) == 1
    assert "out of date" in capsys.readouterr().err
    assert rust_table.main(["--chek"]) == 2
