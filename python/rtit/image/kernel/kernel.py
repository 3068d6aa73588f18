"""The kernel of a recording: its code over time, and its symbols.

Records say where the kernel and its modules were and what changed; the bytes come from files. A
copy of memory (kcore) is best: it has everything that boot patched. Without one, the code is that
of vmlinux and of the module files, moved to where they ran. Symbols come from kallsyms if there is
one. `Kernel.build` combines all this in an `Image`, and reports what is missing in `problems`.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from rtit.errors import ImageError
from rtit.image.file_symbols import FileSymbols
from rtit.image.image import PAGE, Image
from rtit.image.kernel.code_changes import KernelChanges
from rtit.image.kernel.kallsyms import Kallsym, read_kallsyms, read_modules
from rtit.image.kernel.kcore import Kcore
from rtit.image.kernel.kernel_files import KernelFiles
from rtit.image.kernel.modules import UNKNOWN, ModuleLoader, module_name
from rtit.image.kernel.vmlinux import Vmlinux
from rtit.image.mapped_files import Files, describe_build_id, is_same_build_id
from rtit.image.mappings import FOREVER, KERNEL_START, Mapping
from rtit.image.memory_budget import MemoryBudget
from rtit.image.problems import Problem

CORE = "[kernel.kallsyms]"
_GUEST_CORE = "[guest.kernel.kallsyms]"
_CORES = (CORE, "[guest.kernel.kallsyms")
"""Start of the path of a kernel's own mapping; perf adds the pid of a guest."""
_MAX_CORES = 16
"""Mappings of the kernel itself."""
_MAX_SYMBOLS = 1 << 24
"""Symbols that are listed, of all mappings together."""
_TOO_MUCH = Problem(
    "unreadable", "kernel", "its code is unknown: its changes exceed the memory limit"
)
_TOO_OFTEN = Problem(
    "unreadable",
    "kernel",
    "it or its modules are mapped more often than real ones: some code is unknown",
)


@dataclass(slots=True)
class KernelFilesUsed:
    """The files of which the kernel's code was built."""

    kcore: Kcore | None = None
    files: dict[str, str] = field(default_factory=dict)
    """Kind -> path: kallsyms, vmlinux, listed, modules/NAME."""
    static_keys: int = 0
    """Number of instructions in vmlinux that static keys change."""

    @property
    def as_linked(self) -> bool:
        """Whether the code is that of files, without the patches of boot and loading."""
        return self.kcore is None and any(
            name == "vmlinux" or name.startswith("modules/") for name in self.files
        )


class Kernel:
    """Takes records about a kernel in order of time; `build` then returns its code.

    `machine`: the pid of the virtual machine that it is the kernel of; None: the host's kernel. The
    files of a guest are not among `files`. If the memory budget is used up, nothing is known of the
    kernel's code.
    """

    def __init__(
        self,
        sources: KernelFiles,
        files: Files,
        budget: MemoryBudget | None = None,
        *,
        machine: int | None = None,
    ) -> None:
        self._machine = machine
        self._sources = sources
        self._files = files
        self._budget = budget or MemoryBudget()
        self._maps: list[Mapping] = []
        self.changes = KernelChanges(files, self._budget, early=sources.early)
        """Takes records about code that appeared, changed or disappeared."""
        self.problems: list[Problem] = list(sources.problems)
        self.addresses: dict[str, int] = {}
        """Symbol -> address, of the kernel itself; after `build`."""
        self._symbols_left = _MAX_SYMBOLS
        self._listed: dict[str, tuple[int, int, dict[tuple[int, int, str], None]]] = {}
        """Path -> start and end of its mappings, and their functions: address, size, name."""
        self.used = KernelFilesUsed()
        """The files that were used; after `build`."""

    def mmap(
        self, time: int, address: int, size: int, pgoff: int, path: str, build_id: bytes | None
    ) -> None:
        """Kernel or module code is mapped. For the kernel itself, `path` ends in the name of a
        symbol and `pgoff` is the symbol's address.
        """
        end = min(address + size, FOREVER)
        limits = self._budget.limits
        memory = limits.kernel_mapping + limits.size_of_name(path)
        if KERNEL_START <= address < end and self.changes.reserve_memory(memory):
            self._maps.append(Mapping(address, end, pgoff, path, build_id, time))

    def add_problem(self, name: str, message: str) -> None:
        """Add a problem: something of the kernel cannot be read."""
        self.problems.append(Problem("unreadable", name, message))

    def build_image(self) -> Image:
        """Return the code. `problems` says what is unknown. Symbols go to `files`."""
        if self.changes.is_out_of_memory:
            self._maps.clear()
            self.problems.append(_TOO_MUCH)
            return Image()
        symbols = self._read_kallsyms()
        self.addresses = {row.name: row.address for row in reversed(symbols) if not row.module}
        self._list_modules()
        core = self._kernel_mapping()
        kcore = self._open_kcore(core)
        read_pages = self.changes.pages_read_at_once(kcore)
        without_callback = frozenset(read_pages)

        def read_kcore_page(address: int) -> bytes | None:
            return (
                None if kcore is None or address in without_callback else kcore.read_page(address)
            )

        image = Image(read_kcore_page if kcore is not None else None)
        for address, content in read_pages.items():
            image.add(address, content)
        self._add_mappings(image, core, kcore, symbols)
        self.changes.apply_to_image(image)
        return image

    def _kernel_mapping(self) -> Mapping | None:
        """Return the kernel's own mapping; for a guest without a record, that of its symbols."""
        found = next((each for each in self._maps if each.path.startswith(_CORES)), None)
        start = self.addresses.get("_text", 0)
        if found is None and self._machine is not None and KERNEL_START <= start < FOREVER:
            end = max(self.addresses.get("_etext", 0), start + 1)
            found = Mapping(start, end, start, f"{_GUEST_CORE}_text", None, 0)
            self._maps.insert(0, found)
        return found

    def _list_modules(self) -> None:
        """Add mappings of modules that are in a copy of /proc/modules but not in records."""
        path = self._sources.listed
        if path is None:
            return
        try:
            rows = read_modules(path)
        except ImageError as error:
            self.problems.append(Problem("unreadable", "modules", str(error)))
            return
        self.used.files["listed"] = path
        mapped = {module_name(each.path) for each in self._maps}
        for name, address, size in rows:
            if name not in mapped and KERNEL_START <= address < FOREVER - size:
                self._maps.append(Mapping(address, address + size, 0, f"[{name}]", None, 0))

    def _path_distinct_from_host(self, path: str) -> str:
        """Return a path that differs from those of the host and of other guests."""
        if self._machine is None:
            return path
        return f"[guest {self._machine}]{path}" if self._machine else f"[guest]{path}"

    # Files

    def _read_kallsyms(self) -> list[Kallsym]:
        if self._sources.kallsyms is None:
            return []
        try:
            found = read_kallsyms(self._sources.kallsyms)
        except ImageError as error:
            self.problems.append(Problem("unreadable", "kallsyms", str(error)))
            return []
        self.used.files["kallsyms"] = self._sources.kallsyms
        return found

    def _open_kcore(self, core: Mapping | None) -> Kcore | None:
        if self._sources.kcore is None:
            return None
        try:
            found = Kcore(self._sources.kcore)
        except ImageError as error:
            self.problems.append(Problem("unreadable", "kcore", str(error)))
            return None
        if core is not None and not found.has_byte_at(core.start):
            message = (
                f"{self._sources.kcore} has nothing at {core.start:#x}: it is from another boot"
            )
            self.problems.append(Problem("changed", "kcore", message, core.start))
            return None
        self.used.kcore = found
        return found

    def _add_mappings(
        self, image: Image, core: Mapping | None, kcore: Kcore | None, symbols: list[Kallsym]
    ) -> None:
        vmlinux = self._open_vmlinux(core) if kcore is None else None
        files = self._files if self._machine is None else None
        modules = ModuleLoader(self._sources, files, symbols)
        owned: dict[str, list[Kallsym]] = {}
        for row in symbols:
            owned.setdefault(row.module, []).append(row)
        core_rows = owned.pop("", [])
        seen: set[str] = set()
        problems: list[Problem] = []
        cores = 0
        has_first_code = self.changes.has_first_code
        for each in self._maps:
            problem = None
            if each.path.startswith(_CORES):
                cores += 1
                if cores > _MAX_CORES:
                    continue
                if vmlinux is not None:
                    self._add_vmlinux(image, each, vmlinux, has_kallsyms=bool(symbols))
                    self._list_symbols(each, core_rows)
                    continue
                if kcore is None and not has_first_code:
                    problem = self._missing_kernel_code_problem(each)
                self._list_symbols(each, core_rows)
            else:
                name = module_name(each.path)
                seen.add(name)
                module_symbols = owned.get(name, [])
                self._list_symbols(each, module_symbols)
                is_in_kcore = kcore is not None and kcore.has_byte_at(each.start)
                if not (has_first_code or is_in_kcore):
                    problem = modules.load_module(image, each, module_symbols)
            if problem is not None:
                problems.append(problem)
            self._add_mapping(image, each, each.start, problem)
        if cores > _MAX_CORES or self._symbols_left < 0:
            problems.append(_TOO_OFTEN)
        self.used.files.update(modules.used)
        self._modules_without_maps(image, owned, seen)
        for path, (start, end, listed) in self._listed.items():
            self._files.set_symbols(path, FileSymbols.from_rows(start, end, listed))
        unknown = sum(each.message == UNKNOWN for each in problems)
        self.problems += [each for each in problems if each.message != UNKNOWN or unknown == 1]
        if unknown > 1:
            message = f"the code of {unknown} kernel modules is not known"
            self.problems.append(Problem("missing", "/lib/modules", message))

    def _open_vmlinux(self, core: Mapping | None) -> Vmlinux | None:
        path = self._sources.vmlinux
        if path is None:
            return None
        try:
            found = Vmlinux(path, Files())
        except ImageError as error:
            self.problems.append(Problem("unreadable", "vmlinux", str(error)))
            return None
        recorded = self._build_id(core)
        actual = found.elf.build_id
        if recorded is not None and not is_same_build_id(actual, recorded):
            message = f"{path} {describe_build_id(actual)}, recorded was {recorded.hex()}"
            self.problems.append(Problem("changed", "vmlinux", message))
            return None
        self.used.files["vmlinux"], self.used.static_keys = path, found.static_keys
        return found

    def _build_id(self, core: Mapping | None) -> bytes | None:
        found = core.build_id if core is not None else None
        if self._machine is None:
            found = found or self._files.build_id(CORE)
        return found if found and any(found) else None

    def _add_vmlinux(
        self, image: Image, core: Mapping, vmlinux: Vmlinux, *, has_kallsyms: bool
    ) -> None:
        shift = vmlinux.load_offset_of_symbol(core.path.partition("]")[2], core.offset)
        if not has_kallsyms:
            self.addresses = {name: at + shift for name, at in vmlinux.symbols.items()}
        for address, code, offset in vmlinux.segments:
            start = address + shift
            if not KERNEL_START <= start <= FOREVER - len(code):
                continue
            image.native.map(core.since, start, code)
            part = Mapping(start, start + len(code), start, core.path, core.build_id, core.since)
            self._add_mapping(image, part, start if has_kallsyms else offset, None)
        if not has_kallsyms:
            symbols = FileSymbols(vmlinux.elf)
            symbols.keep_alive = self._sources.owner
            self._files.set_symbols(self._path_distinct_from_host(core.path), symbols)

    def _missing_kernel_code_problem(self, core: Mapping) -> Problem:
        build_id = self._build_id(core)
        suffix = f" (build id {build_id.hex()})" if build_id else ""
        message = (
            f"the kernel's code is not known{suffix}: give --kcore FILE, or --vmlinux FILE and "
            "--kallsyms FILE, or record with perf record --kcore"
            if self._machine is None
            else f"the guest's kernel is not known{suffix}: give --guestmount DIR, or "
            "--guest-kcore FILE, or --guestvmlinux FILE and --guestkallsyms FILE"
        )
        return Problem("missing", core.path, message)

    def _add_mapping(
        self, image: Image, each: Mapping, offset: int, problem: Problem | None
    ) -> None:
        image.mappings.add(
            Mapping(
                each.start,
                each.end,
                offset,
                self._path_distinct_from_host(each.path),
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
            if KERNEL_START <= start <= last < FOREVER - 2 * PAGE:
                end = (last & -PAGE) + PAGE
                each = Mapping(start, end, start, f"[{name}]", None, 0)
                self._list_symbols(each, rows)
                self._add_mapping(image, each, start, None)

    def _list_symbols(self, mapping: Mapping, rows: list[Kallsym]) -> None:
        """List the symbols of a mapping by address. A symbol of data ends the function before.

        A module has several mappings: of its code, and of its initialization code.
        """
        self._symbols_left -= len(rows)
        if not rows or self._symbols_left < 0:
            return
        starts = sorted({each.address for each in rows})
        listed = []
        for row in rows:
            if not row.is_code or not mapping.start <= row.address < mapping.end:
                continue
            following = bisect_right(starts, row.address)
            end = starts[following] if following < len(starts) else mapping.end
            listed.append((row.address, min(end, mapping.end) - row.address, row.name))
        if listed:
            path = self._path_distinct_from_host(mapping.path)
            start, end, rows_of_path = self._listed.get(path, (mapping.start, mapping.end, {}))
            rows_of_path.update(dict.fromkeys(listed))
            self._listed[path] = min(start, mapping.start), max(end, mapping.end), rows_of_path
