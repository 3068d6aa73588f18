"""The kernel of a recording: its code over time, and names for it."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from rtit.errors import ImageError
from rtit.image.file_symbols import FileSymbols
from rtit.image.files import Files
from rtit.image.image import PAGE, Image
from rtit.image.kept import Problem
from rtit.image.kernel.kallsyms import Kallsym, read_kallsyms, read_modules
from rtit.image.kernel.kcore import Kcore
from rtit.image.kernel.modules import UNKNOWN, Modules, module_name
from rtit.image.kernel.sources import KernelFiles
from rtit.image.kernel.vmlinux import Vmlinux
from rtit.image.mappings import FOREVER, UPPER, Mapping, Touched

if TYPE_CHECKING:
    from rtit._core import Code

KERNEL = -1
"""What stands for the kernel where processes are meant, as in the records of perf."""
GUEST = -(1 << 32)
"""The same for that of guests."""
CORE = "[kernel.kallsyms]"
_GUEST_CORE = "[guest.kernel.kallsyms]"
_CORES = (CORE, "[guest.kernel.kallsyms")
"""What the record of a kernel's own mapping begins with; perf adds a guest's process."""
_GONE = 1
"""Flag of KSYMBOL: the code went away."""
_MOST_PAGES = 1 << 14
"""So many pages that code comes into or goes from are read at once."""


def guest_pid(machine: int) -> int:
    """What stands for the kernel of a virtual machine where processes are meant: `machine` is the
    process that it is for its host, 0 for all that are not told apart.
    """
    return GUEST - machine


def machine_of(path: str, pid: int) -> int:
    """Of which virtual machine a mapping of a guest's kernel is, by its name or its process."""
    number = re.match(r"\[guest\.kernel\.kallsyms\.([0-9]{1,10})\]", path)
    return int(number[1]) if number is not None else max(pid, 0)


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


@dataclass(slots=True)
class Used:
    """Files of a kernel by what they are: kallsyms, vmlinux, modules/NAME; `kcore` apart, which may
    stand for all of memory. `keys`: how many places of vmlinux a static key changes.
    """

    kcore: Kcore | None = None
    files: dict[str, str] = field(default_factory=dict)
    keys: int = 0

    @property
    def as_linked(self) -> bool:
        """Whether code is that of files, without what is patched when they are loaded."""
        return self.kcore is None and any(name != "kallsyms" for name in self.files)


class Kernel:
    """Feed it with the records of a recording, in order of time; `build` then gives the code.

    Of what is poked the bytes before the first time are known from the record, whatever the files
    have, so that it does not matter when these were copied. Code that KSYMBOL tells of, and no
    file or record has as of that time, is not known from then on. `machine`: it is the kernel of
    this virtual machine, and its files are not those of the recording.
    """

    def __init__(self, sources: KernelFiles, files: Files, *, machine: int | None = None) -> None:
        self._machine = machine
        self._sources = sources
        self._files = files
        self._maps: list[Mapping] = []
        self._pokes: list[_Poke] = []
        self._named: list[_Named] = []
        self._code: dict[int, Code] = {}
        self.problems: list[Problem] = list(sources.problems)
        self.addresses: dict[str, int] = {}
        """Of the kernel's own functions, by name; after `build`."""
        self._apart_pages: list[tuple[int, bytes]] = []
        self.used = Used()
        """The files of which something is in it; after `build`."""

    def mmap(
        self, time: int, address: int, size: int, pgoff: int, path: str, build_id: bytes | None
    ) -> None:
        """Kernel or module code is at an address. Of the kernel `path` ends in the name of a symbol
        and `pgoff` is its address.
        """
        end = min(address + size, FOREVER)
        if UPPER <= address < end:
            self._maps.append(Mapping(address, end, pgoff, path, build_id, time))

    def text_poke(self, time: int, address: int, old: bytes, new: bytes) -> None:
        """Code changed, began to be (no `old`), or ceased to (no `new`)."""
        self._pokes.append(_Poke(time, address, old, new))

    def ksymbol(self, time: int, address: int, size: int, name: str, flags: int) -> None:
        """Code of this name came, or, by `flags`, went."""
        if size > 0 and UPPER <= address <= FOREVER - size:
            self._named.append(_Named(time, address, size, name, bool(flags & _GONE)))

    def code(self, address: int, code: bytes) -> None:
        """The code that KSYMBOL has told, or will tell, to be at an address."""
        from rtit._core import Code

        self._code[address] = Code(code)

    def lacks(self, what: str, why: str) -> None:
        """Something of the kernel cannot be read."""
        self.problems.append(Problem("unreadable", what, why))

    def build(self) -> Image:
        """The code; `problems` says what is not known. Names go to `files` of the images."""
        symbols = self._kallsyms()
        self.addresses = {row.name: row.address for row in reversed(symbols) if not row.module}
        self._list_modules()
        core = self._core()
        kcore = self._kcore(core)
        apart = self._apart(kcore)
        self._apart_pages = sorted(apart.items())
        late = frozenset(apart)

        def page(address: int) -> bytes | None:
            return None if kcore is None or address in late else kcore.page(address)

        image = Image(page if kcore is not None else None)
        for address, content in apart.items():
            image.add(address, content)
        self._files_of(image, core, kcore, symbols)
        self._over_time(image)
        return image

    def _core(self) -> Mapping | None:
        """The record of the kernel's own mapping; of a guest without one what its names say."""
        found = next((each for each in self._maps if each.path.startswith(_CORES)), None)
        start = self.addresses.get("_text", 0)
        if found is None and self._machine is not None and UPPER <= start < FOREVER:
            end = max(self.addresses.get("_etext", 0), start + 1)
            found = Mapping(start, end, start, f"{_GUEST_CORE}_text", None, 0)
            self._maps.insert(0, found)
        return found

    def _list_modules(self) -> None:
        """Modules that a copy of /proc/modules names, and no record."""
        path = self._sources.listed
        if path is None:
            return
        try:
            rows = read_modules(path)
        except ImageError as error:
            self.problems.append(Problem("unreadable", "modules", str(error)))
            return
        self.used.files["listed"] = path
        known = {module_name(each.path) for each in self._maps}
        for name, address, size in rows:
            if name not in known and UPPER <= address < FOREVER - size:
                self._maps.append(Mapping(address, address + size, 0, f"[{name}]", None, 0))

    def _shown(self, path: str) -> str:
        """A path of a guest is not one of the host, nor of another."""
        if self._machine is None:
            return path
        return f"[guest {self._machine}]{path}" if self._machine else f"[guest]{path}"

    # What files say

    def _kallsyms(self) -> list[Kallsym]:
        if self._sources.kallsyms is None:
            return []
        try:
            found = read_kallsyms(self._sources.kallsyms)
        except ImageError as error:
            self.problems.append(Problem("unreadable", "kallsyms", str(error)))
            return []
        self.used.files["kallsyms"] = self._sources.kallsyms
        return found

    def _kcore(self, core: Mapping | None) -> Kcore | None:
        if self._sources.kcore is None:
            return None
        try:
            found = Kcore(self._sources.kcore)
        except ImageError as error:
            self.problems.append(Problem("unreadable", "kcore", str(error)))
            return None
        if core is not None and not found.has(core.start):
            message = f"{self._sources.kcore} has nothing at {core.start:#x}: it is of another boot"
            self.problems.append(Problem("changed", "kcore", message, core.start))
            return None
        self.used.kcore = found
        return found

    def _apart(self, kcore: Kcore | None) -> dict[int, bytes]:
        """Pages of kcore that are not read by need, for something of them may be unknown later."""
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
        return pages

    def _files_of(
        self, image: Image, core: Mapping | None, kcore: Kcore | None, symbols: list[Kallsym]
    ) -> None:
        vmlinux = self._vmlinux(core) if kcore is None else None
        files = self._files if self._machine is None else None
        modules = Modules(self._sources, files, symbols)
        owned: dict[str, list[Kallsym]] = {}
        for row in symbols:
            owned.setdefault(row.module, []).append(row)
        core_rows = owned.pop("", [])
        seen: set[str] = set()
        lacking: list[Problem] = []
        for each in self._maps:
            problem = None
            if each.path.startswith(_CORES):
                if vmlinux is not None:
                    self._linked(image, each, vmlinux, named=bool(symbols))
                    self._list(each, core_rows)
                    continue
                problem = self._without_code(each) if kcore is None else None
                self._list(each, core_rows)
            else:
                name = module_name(each.path)
                seen.add(name)
                own = owned.get(name, [])
                self._list(each, own)
                if kcore is None or not kcore.has(each.start):
                    problem = modules.load(image, each, own)
            if problem is not None:
                lacking.append(problem)
            self._add(image, each, each.start, problem)
        self.used.files.update(modules.used)
        self._modules_without_maps(image, owned, seen)
        unknown = [each for each in lacking if each.message == UNKNOWN]
        self.problems += [each for each in lacking if each not in unknown or len(unknown) == 1]
        if len(unknown) > 1:
            message = f"the code of {len(unknown)} kernel modules is not known"
            self.problems.append(Problem("missing", "/lib/modules", message))

    def _vmlinux(self, core: Mapping | None) -> Vmlinux | None:
        path = self._sources.vmlinux
        if path is None:
            return None
        try:
            found = Vmlinux(path, Files())
        except ImageError as error:
            self.problems.append(Problem("unreadable", "vmlinux", str(error)))
            return None
        wanted = self._build_id(core)
        has = found.elf.build_id
        if wanted is not None and (has is None or has.ljust(20, b"\0") != wanted.ljust(20, b"\0")):
            text = f"has build id {has.hex()}" if has else "has no build id"
            message = f"{path} {text}, recorded was {wanted.hex()}"
            self.problems.append(Problem("changed", "vmlinux", message))
            return None
        self.used.files["vmlinux"], self.used.keys = path, found.keys
        return found

    def _build_id(self, core: Mapping | None) -> bytes | None:
        found = core.build_id if core is not None else None
        if self._machine is None:
            found = found or self._files.build_id(CORE)
        return found if found and any(found) else None

    def _linked(self, image: Image, core: Mapping, vmlinux: Vmlinux, *, named: bool) -> None:
        move = vmlinux.move(core.path.partition("]")[2], core.offset)
        if not named:
            self.addresses = {name: at + move for name, at in vmlinux.symbols.items()}
        for address, code, offset in vmlinux.pieces:
            start = address + move
            if not UPPER <= start <= FOREVER - len(code):
                continue
            image.native.map(core.since, start, code)
            part = Mapping(start, start + len(code), start, core.path, core.build_id, core.since)
            self._add(image, part, start if named else offset, None)
        if not named:
            symbols = FileSymbols(vmlinux.elf)
            symbols.needs = self._sources.owner
            self._files.list(self._shown(core.path), symbols)

    def _without_code(self, core: Mapping) -> Problem:
        build_id = self._build_id(core)
        known = f" (build id {build_id.hex()})" if build_id else ""
        message = (
            f"the kernel's code is not known{known}: --kcore FILE, or --vmlinux FILE and "
            "--kallsyms FILE, have it; perf record --kcore keeps it"
            if self._machine is None
            else f"the guest's kernel is not known{known}: --guestmount DIR, --guest-kcore FILE, "
            "or --guestvmlinux FILE and --guestkallsyms FILE have it"
        )
        return Problem("missing", core.path, message)

    def _add(self, image: Image, each: Mapping, offset: int, problem: Problem | None) -> None:
        image.mappings.add(
            Mapping(
                each.start,
                each.end,
                offset,
                self._shown(each.path),
                each.build_id,
                each.since,
                problem=problem,
            )
        )

    def _modules_without_maps(
        self, image: Image, owned: dict[str, list[Kallsym]], seen: set[str]
    ) -> None:
        for name, all_rows in owned.items():
            rows = [row for row in all_rows if row.is_code]
            if not rows or name in seen or name == "bpf":
                continue
            start, last = rows[0].address & -PAGE, rows[-1].address
            if UPPER <= start <= last < FOREVER - 2 * PAGE:
                end = (last & -PAGE) + PAGE
                each = Mapping(start, end, start, f"[{name}]", None, 0)
                self._list(each, rows)
                self._add(image, each, start, None)

    def _list(self, mapping: Mapping, rows: list[Kallsym]) -> None:
        """Names of a mapping whose offsets are addresses; what is no code ends the one before."""
        if not rows:
            return
        starts = sorted({each.address for each in rows})
        listed = []
        for row in rows:
            if not row.is_code or not mapping.start <= row.address < mapping.end:
                continue
            place = bisect_right(starts, row.address)
            end = starts[place] if place < len(starts) else mapping.end
            listed.append((row.address, min(end, mapping.end) - row.address, row.name))
        if listed:
            symbols = FileSymbols.listed(mapping.start, mapping.end, listed)
            self._files.list(self._shown(mapping.path), symbols)

    # What records say

    def _over_time(self, image: Image) -> None:
        # of several pokes of one place the first says what was there before all
        for poke in reversed(self._pokes):
            if poke.old and poke.address <= FOREVER - len(poke.old):
                image.native.map(0, poke.address, poke.old)
        events: list[_Poke | _Named] = [*self._named, *self._pokes]
        events.sort(key=lambda each: each.time)
        self._list_named()
        if not self._sources.early:
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
        if not each.gone and code is not None and len(code) == each.size:
            image.native.map(each.time, each.address, code)
        elif id(each) not in self._held:
            image.native.unmap(each.time, each.address, each.size)
        else:
            self._restore(image, each)

    def _restore(self, image: Image, each: _Named) -> None:
        """What was not known of the pages of a copy before is, from now on."""
        place = bisect_left(self._apart_pages, (each.address & -PAGE, b""))
        for page, content in islice(self._apart_pages, place, None):
            if page >= each.address + each.size:
                break
            start = max(page, each.address)
            code = content[start - page : each.address + each.size - page]
            image.native.map(each.time, start, code)

    @cached_property
    def _held(self) -> set[int]:
        """The ids of those of `_named` whose code a copy of memory has: what was there when the
        recording began, or, in a copy that was made later, when it had ended.
        """
        if self._sources.early:
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
