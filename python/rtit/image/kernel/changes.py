"""Code of the kernel that came, changed and went while it was recorded.

Of what is poked the bytes before the first time are known from the record, whatever the files have,
so that it does not matter when these were copied. Code that KSYMBOL tells of, and no file or record
has as of that time, is not known from then on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import cached_property
from itertools import islice
from sys import getsizeof
from typing import TYPE_CHECKING, NamedTuple

from rtit.image.file_symbols import FileSymbols
from rtit.image.files import Files
from rtit.image.image import PAGE, Image
from rtit.image.kernel.kcore import Kcore
from rtit.image.mappings import FOREVER, UPPER, Mapping, Touched

if TYPE_CHECKING:
    from rtit._core import Code

_GONE = 1
"""Flag of KSYMBOL: the code went away."""
_OF_POKE = 512
_OF_NAMED = 1536
_OF_CODE = 256
_COPIES = 3
"""Bytes that each takes, about; so often a name is kept."""
_MOST_PAGES = 1 << 14
"""So many pages that code comes into or goes from are read at once."""


class _Poke(NamedTuple):
    time: int
    address: int
    old: bytes
    new: bytes


class _Named(NamedTuple):
    time: int
    address: int
    size: int
    name: str
    gone: bool


class Changes:
    """Feed it with records in order of time, then `apply` it; the names go to `files`. `early`: a
    copy of memory was made before the recording began, else when it had ended. `take` says whether
    so many bytes more may be kept: once they may not, `beyond` is true and nothing is.
    """

    def __init__(self, files: Files, take: Callable[[int], bool], *, early: bool) -> None:
        self._files = files
        self._take = take
        self._early = early
        self.beyond = False
        self._pokes: list[_Poke] = []
        self._named: list[_Named] = []
        self._code: dict[int, Code] = {}
        self._pages: list[tuple[int, bytes]] = []

    def text_poke(self, time: int, address: int, old: bytes, new: bytes) -> None:
        """Code changed, began to be (no `old`), or ceased to (no `new`)."""
        if self.has_room(_OF_POKE + 2 * (len(old) + len(new))):
            self._pokes.append(_Poke(time, address, old, new))

    def ksymbol(self, time: int, address: int, size: int, name: str, flags: int) -> None:
        """Code of this name came, or, by `flags`, went."""
        room = _OF_NAMED + _COPIES * getsizeof(name)
        if size > 0 and UPPER <= address <= FOREVER - size and self.has_room(room):
            self._named.append(_Named(time, address, size, name, bool(flags & _GONE)))

    def code(self, address: int, code: bytes) -> None:
        """The code that KSYMBOL has told, or will tell, to be at an address."""
        from rtit._core import Code

        if self.has_room(_OF_CODE + len(code)):
            self._code[address] = Code(code)

    def has_room(self, size: int) -> bool:
        """Whether so many bytes more may be kept of the kernel."""
        if not self.beyond and not self._take(size):
            self.beyond = True
            self._pokes.clear()
            self._named.clear()
            self._code.clear()
        return not self.beyond

    def pages_apart(self, kcore: Kcore | None) -> dict[int, bytes]:
        """Pages of kcore that are not read by need: something of them is not known at a time."""
        pages: dict[int, bytes] = {}
        if kcore is None:
            return pages
        at = 0
        unknown = [each for each in self._named if each.gone or id(each) not in self._held]
        for each in sorted(unknown, key=lambda each: each.address):
            # from where the one before has ended
            at = max(at, each.address & -PAGE)
            while at < each.address + each.size and len(pages) < _MOST_PAGES:
                pages[at] = kcore.page(at) or b""
                at += PAGE
        self._pages = sorted(pages.items())
        return pages

    def apply(self, image: Image) -> None:
        """Bring them into the code of the kernel."""
        # of several pokes of one place the first says what was there before all
        for poke in reversed(self._pokes):
            if poke.old and poke.address <= FOREVER - len(poke.old):
                image.native.map(0, poke.address, poke.old)
        events: list[_Poke | _Named] = [*self._named, *self._pokes]
        events.sort(key=lambda each: each.time)
        self._list_named()
        if not self._early:
            # what was there when the recording began is not in a copy that was made later
            for named in self._named:
                if named.gone:
                    image.native.unmap(0, named.address, named.size)
        for each in events:
            if isinstance(each, _Named):
                self._symbol(image, each)
            elif each.address + max(len(each.old), len(each.new)) > FOREVER:
                continue
            elif each.new:
                image.native.poke(each.time, each.address, each.new)
            else:
                image.native.unmap(each.time, each.address, len(each.old))

    def _list_named(self) -> None:
        """Names by KSYMBOL: several pieces of code may have the same, such as trampolines."""
        places: dict[str, dict[int, int]] = {}
        for each in self._named:
            if not each.gone:
                places.setdefault(each.name, {})[each.address] = each.size
        for name, sizes in places.items():
            rows = [(address, size, name) for address, size in sizes.items()]
            end = max(address + size for address, size, _ in rows)
            self._files.list(_path(name), FileSymbols.listed(min(sizes), end, rows))

    def _symbol(self, image: Image, each: _Named) -> None:
        path, end = _path(each.name), each.address + each.size
        code = self._code.get(each.address)
        if each.gone:
            image.mappings.remove(each.address, end, each.time)
        else:
            image.mappings.add(Mapping(each.address, end, each.address, path, None, each.time))
        if not each.gone and code is not None and self._is_of(each, code):
            image.native.map(each.time, each.address, code)
        elif id(each) not in self._held:
            image.native.unmap(each.time, each.address, each.size)
        else:
            self._restore(image, each)

    def _restore(self, image: Image, each: _Named) -> None:
        """What was not known of the pages of a copy before is, from now on."""
        place = bisect_left(self._pages, (each.address & -PAGE, b""))
        for page, content in islice(self._pages, place, None):
            if page >= each.address + each.size:
                break
            start = max(page, each.address)
            code = content[start - page : each.address + each.size - page]
            image.native.map(each.time, start, code)

    def _is_of(self, each: _Named, code: Code) -> bool:
        return len(code) == each.size and len(self._sizes[each.address]) == 1

    @cached_property
    def _sizes(self) -> dict[int, set[tuple[int, str]]]:
        """Of what came to each address the sizes and names: of two nothing tells whose code it is
        that the recording has.
        """
        found: dict[int, set[tuple[int, str]]] = {}
        for each in self._named:
            if not each.gone:
                found.setdefault(each.address, set()).add((each.size, each.name))
        return found

    @cached_property
    def _held(self) -> set[int]:
        """The ids of those of `_named` whose code a copy of memory has: what was there when the
        recording began, or, in a copy that was made later, when it had ended.
        """
        if self._early:
            return {id(each) for each in self._named if not each.time and not each.gone}
        later = Touched()
        backwards = sorted(self._named, key=lambda each: each.time)[::-1]
        return {
            id(each)
            for each in backwards
            if not later.touch(each.address, each.address + each.size) and not each.gone
        }


def _path(name: str) -> str:
    """What code that KSYMBOL tells of is mapped as."""
    return f"[{name}]"
