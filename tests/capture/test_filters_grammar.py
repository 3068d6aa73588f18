"""Address filters: grammar, the kernel's form, and the address registers."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit.capture.filters import parse_filters, parse_system_filters
from rtit.errors import UsageError
from rtit.perfdata.filters import AddressFilter


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program"
    path.write_bytes(bytes(0x2345))
    return path


# Filters that perf passes to the kernel for the same text (`perf -v` prints them): action,
# offset/size, real path.
@pytest.mark.parametrize(
    ("text", "kernel"),
    [
        ("filter 0x1000 / 0x200 @ {}", "filter 0x1000/0x200@{}"),
        ("filter 0x1000/0x200@{}", "filter 0x1000/0x200@{}"),
        ("  filter 4096 / 512 @{} ", "filter 0x1000/0x200@{}"),
        ("filter 010000/01000@{}", "filter 0x1000/0x200@{}"),
        ("filter * @ {}", "filter 0x0/0x2345@{}"),
        ("tracestop 0x10/1 @ {}", "stop 0x10/0x1@{}"),
        ("stop 0x10/1 @ {}", "stop 0x10/0x1@{}"),
    ],
)
def test_filter_text_equals_its_kernel_form(program: Path, text: str, kernel: str) -> None:
    (found,) = parse_filters(text.format(program))
    assert found.kernel_form == kernel.format(program)


@pytest.mark.parametrize("separator", [",", " ", " , ", "\n"])
def test_filters_are_separated_by_commas_or_blanks(program: Path, separator: str) -> None:
    text = separator.join([f"filter 0x1000/0x200@{program}", f"tracestop 0x1100/4@{program}"])
    found = parse_filters(text)
    assert [(each.action, each.offset, each.size) for each in found] == [
        ("filter", 0x1000, 0x200),
        ("stop", 0x1100, 4),
    ]
    assert parse_filters([each.kernel_form for each in found]) == found


# As linked, in order of address: a type without code, two names of one function, a function twice.
SYMBOLS = [
    (0x1000, "A", "offset"),
    (0xFFFF_FFFF_8100_0000, "T", "first"),
    (0xFFFF_FFFF_8100_0040, "t", "same"),
    (0xFFFF_FFFF_8100_0040, "T", "alias"),
    (0xFFFF_FFFF_8100_0060, "t", "twice"),
    (0xFFFF_FFFF_8100_0070, "t", "twice"),
    (0xFFFF_FFFF_8100_0080, "D", "data"),
]


# kallsyms has no sizes: perf takes the distance to the next symbol, too.
@pytest.mark.parametrize(
    ("text", "action", "address", "size", "is_linked"),
    [
        ("filter first", "filter", 0xFFFF_FFFF_8100_0000, 0x40, True),
        ("filter same", "filter", 0xFFFF_FFFF_8100_0040, 0x20, True),
        ("tracestop alias", "stop", 0xFFFF_FFFF_8100_0040, 0x20, True),
        ("filter first / alias", "filter", 0xFFFF_FFFF_8100_0000, 0x60, True),
        ("filter first / 8", "filter", 0xFFFF_FFFF_8100_0000, 8, True),
        ("filter twice #2", "filter", 0xFFFF_FFFF_8100_0070, 0x10, True),
        ("filter *", "filter", 0xFFFF_FFFF_8100_0000, 0x80, True),
        ("filter 0x401000/0x10", "filter", 0x40_1000, 0x10, False),
    ],
)
def test_filters_of_systems_select_functions_of_the_kernel_or_addresses(
    text: str, action: str, address: int, size: int, is_linked: bool
) -> None:
    assert parse_system_filters([text], SYMBOLS) == [
        AddressFilter(action, "", address, size, is_linked)
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("filter twice", "the kernel has 2 functions named 'twice'"),
        ("filter data", "the kernel has no function named 'data'"),
        ("filter offset", "the kernel has no function named 'offset'"),
        ("filter 0x10/first", "a range that begins with an address needs a size"),
        ("filter 0x10", "a range that begins with a number needs a size"),
        ("filter first @ /bin/ls", "filters of a whole system have no file"),
        ("filter 1/1 filter 2/1 filter 3/1 filter 4/1 filter 5/1", "supports only 4 ranges"),
    ],
)
def test_impossible_filters_of_systems_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_system_filters([text], SYMBOLS)


def test_links_are_followed_and_the_program_is_the_default(program: Path) -> None:
    link = program.with_name("link")
    link.symlink_to(program)
    assert parse_filters(f"filter 1/2@{link}") == parse_filters("filter 1/2", program=link)
    assert parse_filters("filter 1/2", program=link)[0].path == str(program.resolve())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no filter given"),
        (" , ", "no filter given"),
        ("filter", "incomplete"),
        ("filter 0x10 @ {}", "needs a size"),
        ("filter 0x10 / @ {}", "a number or the name of a function"),
        ("filter 0x10/0 @ {}", "of size 0x0 is not a valid address range"),
        ("filter 0xffffffffffffffff/2@{}", "is not a valid address range"),
        ("filter 0x10000000000000000/2@{}", "does not fit in 64 bits"),
        ("filter 09/2@{}", "octal"),
        ("filter 1/2", "a file name is missing"),
        ("filter 1/2@/no/such/file", "/no/such/file is not a file"),
        ("fliter 1/2@{}", "unknown action 'fliter' .did you mean 'filter'"),
        ("start 1 @ {}", "Intel PT does not support 'start', only address ranges"),
        ("stop 1 @ {}", "Intel PT does not support 'stop' at a single address"),
        (
            ", ".join(["filter 1/2@{}"] * 5),
            "5 address filters, but the processor supports only 4 ranges",
        ),
    ],
)
def test_malformed_filter_text_is_rejected(program: Path, text: str, message: str) -> None:
    with pytest.raises(Exception, match=message) as caught:
        parse_filters(text.replace("{}", str(program)))
    assert type(caught.value).__module__ == "rtit.errors"


def test_file_names_with_blanks_or_commas_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a b"
    path.write_bytes(b"x")
    with pytest.raises(UsageError, match="cannot have blanks"):
        parse_filters("filter 0/1", program=path)


@given(st.text(alphabet="filter stop/@#*0x1 ,main", max_size=40))
def test_any_text_parses_or_raises_usage_error(text: str) -> None:
    with suppress(UsageError):
        parse_filters(text)


@given(
    st.integers(0, 1 << 40),
    st.integers(1, 1 << 40),
    st.integers(0, 1 << 40),
    st.integers(1, 1 << 40),
)
def test_filter_addresses_are_the_bytes_common_to_range_and_mapping(
    offset: int, size: int, pgoff: int, length: int
) -> None:
    base = 1 << 44
    found = AddressFilter("filter", "/x", offset, size).addresses(base, pgoff, length, "/x")
    first, end = max(offset, pgoff), min(offset + size, pgoff + length)
    if found is None:
        assert first >= end
    else:
        assert [at - base + pgoff for at in found] == [first, end - 1]
