"""The address filters of a recording, as the ranges that its processor was given."""

from __future__ import annotations

from collections.abc import Iterable

from rtit.errors import PerfDataError
from rtit.image.mappings import Mapping
from rtit.perfdata.filters import FILTER_EN, parse_kernel_form
from rtit.trace.settings import MAX_RANGES


def traced_ranges(text: str | None, mappings: Iterable[Mapping]) -> tuple[tuple[int, int], ...]:
    """First and last address of all that a process with these `mappings` may have had traced
    (section 33.2.5.2): wherever the files of the filters in `text` have ever been mapped.

    Empty if there was no filter, or if it is not known what it let through: the text is none, a
    file was never mapped under its name, or there are more places than a processor has ranges.
    """
    try:
        filters = parse_kernel_form(text) if text else []
    except PerfDataError:
        return ()
    mapped = list(mappings)
    found: set[tuple[int, int]] = set()
    for each in filters:
        if each.addr_cfg != FILTER_EN:
            continue
        places = {
            each.addresses(mapping.start, mapping.offset, mapping.end - mapping.start, mapping.path)
            for mapping in mapped
        }
        if not each.path:
            places = {(each.offset, each.offset + each.size - 1)}
        places.discard(None)
        if not places:
            return ()
        found.update(place for place in places if place is not None)
    ranges = _joined(found)
    return tuple(ranges) if len(ranges) <= MAX_RANGES else ()


def _joined(places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those that meet are one."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(places):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        else:
            joined.append((first, last))
    return joined
