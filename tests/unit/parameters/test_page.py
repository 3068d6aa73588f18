"""docs/reference/parameters.md, which is generated."""

from __future__ import annotations

from typing import Any

import pytest

from rtit.unit.parameters import page


def test_page_is_up_to_date() -> None:
    if not page.TARGET.parent.is_dir():
        pytest.skip("not in a source tree")
    assert page.main(["--check"]) == 0


def test_outdated_page_is_reported(tmp_path: Any, monkeypatch: Any, capsys: Any) -> None:
    path = tmp_path / "parameters.md"
    monkeypatch.setattr(page, "TARGET", path)
    assert page.main(["--check"]) == 1
    assert "out of date" in capsys.readouterr().err
    assert page.main([]) == 0
    assert page.main(["--check"]) == 0
    path.write_text(path.read_text() + "\n")
    assert page.main(["--check"]) == 1
    assert page.main(["--chek"]) == 2
