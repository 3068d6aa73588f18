"""Address filters in the kernel's text form, and the address registers."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit.errors import PerfDataError
from rtit.perfdata.filters import AddressFilter, parse_address_filters


def test_range_registers_are_inclusive() -> None:
    """[ADDRn_A, ADDRn_B] with both ends: section 33.2.5.3, and ADDRn_CFG 1 and 2."""
    code = AddressFilter("filter", "/program", 0x1200, 0x100)
    assert code.addr_cfg == 1
    assert AddressFilter("stop", "/program", 0, 1).addr_cfg == 2
    assert code.addresses(0x40_1000, 0x1000, 0x3000, "/program") == (0x40_1200, 0x40_12FF)


def test_range_is_clipped_to_mapping() -> None:
    code = AddressFilter("filter", "/program", 0x1800, 0x1000)
    assert code.addresses(0x7000, 0x1000, 0x1000, "/program") == (0x7800, 0x7FFF)
    assert code.addresses(0x8000, 0x2000, 0x1000, "/program") == (0x8000, 0x87FF)
    assert code.addresses(0x9000, 0x3000, 0x1000, "/program") is None
    assert code.addresses(0x7000, 0x1000, 0x1000, "/other") is None


_filters = st.builds(
    AddressFilter,
    st.sampled_from(["filter", "stop"]),
    st.from_regex(r"(/[A-Za-z0-9_.+@-]+){1,4}", fullmatch=True),
    st.integers(0, (1 << 63) - 1),
    st.integers(1, 1 << 63),
)


@given(st.lists(_filters, min_size=1, max_size=4), st.sampled_from([",", " ", ", "]))
def test_kernel_form_round_trips(filters: list[AddressFilter], separator: str) -> None:
    assert parse_address_filters(separator.join(each.kernel_form for each in filters)) == filters


def test_kernel_code_filter_has_no_path() -> None:
    text = "filter 0xffffffff81000000/0x100,stop 0x1/0x2@/x"
    assert parse_address_filters(text) == [
        AddressFilter("filter", "", 0xFFFFFFFF81000000, 0x100),
        AddressFilter("stop", "/x", 1, 2),
    ]


def test_linked_filter_moves_with_the_kernel() -> None:
    linked = AddressFilter("filter", "", 0xFFFFFFFF81000000, 0x100, is_linked=True)
    assert linked.moved(0x2000000).kernel_form == "filter 0xffffffff83000000/0x100"
    address = AddressFilter("filter", "", 0x401000, 0x10)
    assert address.moved(0x2000000) == address


@pytest.mark.parametrize("text", ["", "filter main@/x", "filter 0x1@/x", "start 0x1@/x", "0x1"])
def test_malformed_filter_text_raises(text: str) -> None:
    with pytest.raises(PerfDataError):
        parse_address_filters(text)


@given(st.text(alphabet="filter stop/@#*0x1 ,main", max_size=40))
def test_any_text_gives_filters_or_error(text: str) -> None:
    with suppress(PerfDataError):
        parse_address_filters(text)
