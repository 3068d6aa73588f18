"""What the plugin is told: lines `name=value` in a file of the recording's folder."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rtit.capture.extent import Extent
from rtit.capture.filters import Filter
from rtit.capture.options import PtOptions
from rtit.unit import TimeModel


def plugin_settings(
    options: PtOptions,
    truth: str,
    joined: int,
    filters: Sequence[Filter],
    extent: Extent,
    time: TimeModel,
) -> str:
    """The file's text. `truth` is none, blocks or instructions; `joined` the least instructions of
    one of its runs.
    """
    lines = [
        f"ctl={options.rtit_ctl}",
        f"truth={truth}",
        f"joined={joined}",
        f"snapshot={int(extent.snapshot is not None)}",
        f"cpi={time.cpi}",
        f"core_ratio={time.core_ratio}",
    ]
    lines += [f"filter={each.action} {_part(each)}" for each in filters]
    return "".join(f"{line}\n" for line in lines)


def _part(part: Filter) -> str:
    """Offset and size in decimal; the path's bytes in hexadecimal, as they need not be text."""
    return f"{part.offset} {part.size} {os.fsencode(part.path).hex()}"
