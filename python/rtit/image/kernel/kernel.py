"""The kernel of a recording: its code over time, and names for it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from sys import getsizeof

from rtit.errors import ImageError
from rtit.image.file_symbols import FileSymbols
from rtit.image.files import Files, Problem
from rtit.image.image import PAGE, Image
from rtit.image.kernel.changes import Changes
from rtit.image.kernel.kallsyms import Kallsym, read_kallsyms, read_modules
from rtit.image.kernel.kcore import Kcore
from rtit.image.kernel.modules import UNKNOWN, Modules, module_name
from rtit.image.kernel.sources import KernelFiles
from rtit.image.kernel.vmlinux import Vmlinux
from rtit.image.mappings import FOREVER, UPPER, Mapping

CORE = "[kernel.kallsyms]"
_GUEST_CORE = "[guest.kernel.kallsyms]"
_CORES = (CORE, "[guest.kernel.kallsyms")
"""What the record of a kernel's own mapping begins with; perf adds a guest's process."""
_OF_MAPPING = 1024
_COPIES = 3
"""Bytes that one takes, about; so often its path is kept."""
_MOST_CORES = 16
_MOST_NAMES = 1 << 24
"""So often the kernel itself is mapped, and so many names of it and its modules are gone over."""
_TOO_MUCH = Problem(
    "unreadable", "kernel", "its code is not known: more changed than is kept of a recording"
)
_TOO_OFTEN = Problem(
    "unreadable",
    "kernel",
    "it or modules are mapped more often than real ones: not all is known",
)


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
        return self.kcore is None and any(
            name == "vmlinux" or name.startswith("modules/") for name in self.files
        )


class Kernel:
    """Feed it with the records of a recording, in order of time; `build` then gives the code.

    `machine`: it is the kernel of this virtual machine, and its files are not those of the
    recording. `take` says whether so many bytes more may be kept of what records tell: once they
    may not, nothing is known of the kernel's code.
    """

    def __init__(
        self,
        sources: KernelFiles,
        files: Files,
        take: Callable[[int], bool] = lambda _: True,
        *,
        machine: int | None = None,
    ) -> None:
        self._machine = machine
        self._sources = sources
        self._files = files
        self._maps: list[Mapping] = []
        self.changes = Changes(files, take, early=sources.early)
        """Takes what records tell of code that came, changed and went."""
        self.problems: list[Problem] = list(sources.problems)
        self.addresses: dict[str, int] = {}
        """Of the kernel's own functions, by name; after `build`."""
        self._names_left = _MOST_NAMES
        self.used = Used()
        """The files of which something is in it; after `build`."""

    def mmap(
        self, time: int, address: int, size: int, pgoff: int, path: str, build_id: bytes | None
    ) -> None:
        """Kernel or module code is at an address. Of the kernel `path` ends in the name of a symbol
        and `pgoff` is its address.
        """
        end = min(address + size, FOREVER)
        room = _OF_MAPPING + _COPIES * getsizeof(path)
        if UPPER <= address < end and self.changes.has_room(room):
            self._maps.append(Mapping(address, end, pgoff, path, build_id, time))

    def lacks(self, what: str, why: str) -> None:
        """Something of the kernel cannot be read."""
        self.problems.append(Problem("unreadable", what, why))

    def build(self) -> Image:
        """The code; `problems` says what is not known. Names go to `files` of the images."""
        if self.changes.beyond:
            self._maps.clear()
            self.problems.append(_TOO_MUCH)
            return Image()
        symbols = self._kallsyms()
        self.addresses = {row.name: row.address for row in reversed(symbols) if not row.module}
        self._list_modules()
        core = self._core()
        kcore = self._kcore(core)
        apart = self.changes.pages_apart(kcore)
        late = frozenset(apart)

        def page(address: int) -> bytes | None:
            return None if kcore is None or address in late else kcore.page(address)

        image = Image(page if kcore is not None else None)
        for address, content in apart.items():
            image.add(address, content)
        self._files_of(image, core, kcore, symbols)
        self.changes.apply(image)
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
        cores = 0
        for each in self._maps:
            problem = None
            if each.path.startswith(_CORES):
                cores += 1
                if cores > _MOST_CORES:
                    continue
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
        if cores > _MOST_CORES or self._names_left < 0:
            lacking.append(_TOO_OFTEN)
        self.used.files.update(modules.used)
        self._modules_without_maps(image, owned, seen)
        unknown = sum(each.message == UNKNOWN for each in lacking)
        self.problems += [each for each in lacking if each.message != UNKNOWN or unknown == 1]
        if unknown > 1:
            message = f"the code of {unknown} kernel modules is not known"
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
        self._names_left -= len(rows)
        if not rows or self._names_left < 0:
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
