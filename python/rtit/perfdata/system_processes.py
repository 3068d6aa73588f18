"""The pseudo processes of a recording of a whole system, one for each page table.

Their TEXT_POKE records have the code that programs executed with this page table, and their MMAP2
records the files that this code is from.
"""

from __future__ import annotations

_FIRST = 1 << 30
"""Linux has no process ids from 2**22 on."""
_PAGE_BITS = 12


def process_of_page_table(page: int) -> int:
    """Return the pseudo process of the page table in physical page number `page`.

    Raises ValueError for a page at 4 TiB or above.
    """
    if not 0 <= page < _FIRST:
        raise ValueError(f"a page table in page {page:#x}")
    return _FIRST + page


def page_of_process(pid: int) -> int | None:
    """Return the page of the page table of a pseudo process; None for other pids."""
    return pid - _FIRST if _FIRST <= pid < 2 * _FIRST else None


def cr3_of_process(pid: int) -> int | None:
    """Return the CR3 value of a pseudo process, without its low 12 bits; None for other pids."""
    page = page_of_process(pid)
    return page << _PAGE_BITS if page is not None else None
