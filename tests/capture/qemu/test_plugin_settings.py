"""Settings that the recorder passes to the QEMU plugin."""

from __future__ import annotations

import pytest

from rtit.capture.options import PtOptions
from rtit.capture.qemu.plugin_protocol import RUN_AHEAD, plugin_settings
from rtit.capture.request import RecordWindow, SizeLimits
from rtit.registers import FULL
from rtit.unit.time_model import TimeModel


@pytest.mark.parametrize(("set_to", "ahead"), [(None, "auto"), ("", "auto"), ("7", "7")])
def test_run_ahead_environment_variable_sets_plugin_option_ahead(
    set_to: str | None, ahead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(RUN_AHEAD, raising=False)
    if set_to is not None:
        monkeypatch.setenv(RUN_AHEAD, set_to)
    options = PtOptions.parse("intel_pt//u", profile=FULL)
    text = plugin_settings(options, "none", 1, (), RecordWindow(), SizeLimits(), TimeModel())
    assert f"ahead={ahead}\n" in text.splitlines(keepends=True)
