"""One stream of packets, as the file has it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rtit.errors import RtitError
from rtit.image import GUEST, KERNEL, UPPER, Image, Images, guest_pid
from rtit.perfdata import TimeConversion
from rtit.trace import tables
from rtit.trace.batch import Table
from rtit.trace.filtering import Filter
from rtit.trace.packets import TIMED, TIMES, Packets, clocks_of, packets, timed_packets
from rtit.trace.selection import Selection
from rtit.trace.settings import Settings
from rtit.trace.shares import Shares
from rtit.trace.source import Source
from rtit.trace.spaces import Spaces, pid_of_space
from rtit.trace.sums import places_of

if TYPE_CHECKING:
    from rtit.packets import BadBytes, Packet


@dataclass(slots=True, eq=False, repr=False)
class Undecoded:
    """What is known of a stream before it is decoded, and its packets: see `Stream`."""

    source: Source
    image: Image
    settings: Settings | RtitError
    cpu: int = -1
    tid: int = -1
    pid: int = -1
    name: str | None = None
    part: int = 0
    clock: TimeConversion | None = None
    images: Images | None = None
    spaces: Spaces | None = None
    shares: Shares | None = None
    missing: Sequence[tuple[int, str]] = ()
    kernel: Image | None = None
    guest: Image | None = None
    machine: int = 0
    counters: Mapping[int, str] | None = None
    _others: list[tuple[int, Image]] | None = None

    def __repr__(self) -> str:
        return f"<Stream {self.title}, {self.size:,} bytes of PT>"

    @property
    def title(self) -> str:
        """How to call it."""
        where = f"cpu {self.cpu}, " if self.cpu >= 0 else ""
        if self.tid < 0 and self.cpu < 0:
            return "stream"
        title = f"{where}thread {self.tid}" + (f" ({self.name})" if self.name else "")
        threads = self.shares.threads if self.shares is not None and self.has_several else 1
        if threads > 1:
            title = f"{where}{threads} threads"
        return f"{title}, part {self.part}" if self.part else title

    @property
    def others(self) -> list[tuple[int, Image]]:
        """The address spaces beside that of `image`, in the order in which native code numbers
        them, with their processes: those of `spaces` have numbers of their own.
        """
        if self._others is None:
            self._others = self._all_others()
        return self._others

    def _all_others(self) -> list[tuple[int, Image]]:
        images = (self.spaces or {}).values()
        found = [(pid_of_space(number), image) for number, image in enumerate(images)]
        found += self.shares.others(self.image) if self.shares is not None else []
        found += [(KERNEL, self.kernel)] if self.kernel is not None else []
        pid = guest_pid(self.machine)
        return found + ([(pid, self.guest)] if self.guest is not None else [])

    @property
    def has_spaces(self) -> bool:
        """Whether its rows say in which address space they are."""
        guests = self.shares is not None and self.shares.has_guests
        return bool(self.spaces) or self.guest is not None or guests

    @property
    def in_guest(self) -> list[int]:
        """Its spaces that are of virtual machines: numbers of `pids`."""
        return [number for number, pid in enumerate(self.pids) if pid <= GUEST]

    @property
    def has_several(self) -> bool:
        """Whether its rows are of several threads."""
        return self.shares is not None and (self.shares.who is None or len(self.shares.who) > 1)

    @property
    def whose(self) -> Sequence[tuple[int, int]]:
        """The threads whose rows it has, as (pid, tid); of all that share a CPU the first one."""
        if self.shares is None or self.shares.who is None:
            return [(self.pid, self.tid)]
        return self.shares.who

    @property
    def has_one_process(self) -> bool:
        """Whether all threads whose rows it has are known to be of one process."""
        known = self.shares is None or self.shares.who is not None
        return known and len({pid for pid, _ in self.whose}) == 1

    @property
    def is_taken_out(self) -> bool:
        """Whether it is one thread's, or some, and all others are followed: `native` is of all."""
        return self._taken is not None

    @property
    def _taken(self) -> frozenset[int] | None:
        return self.shares.taken if self.shares is not None else None

    def code_at(self, ip: int, tid: int | None = None) -> Image:
        """Where the code at an address is: the kernel's, or that of a thread's process, of its own
        one without `tid`.
        """
        if self.kernel is not None and ip >= UPPER:
            return self.kernel
        if tid is None or self.images is None:
            return self.image
        return self.images.image(int(tid))

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes whose code is in it, its own first."""
        return self.pid, *(pid for pid, _ in self.others)

    @property
    def size(self) -> int:
        """Bytes of PT."""
        return self.source.size

    def read(self) -> bytes:
        """All its bytes."""
        return b"".join(self.parts())

    def parts(self) -> Iterator[memoryview]:
        """As `read`, in parts, each good until the next is taken."""
        return self.source.parts()

    def scan(self, errata: Collection[str] = ()) -> Iterator[Packet | BadBytes]:
        """Its packets as objects, with their bytes, and what lies between: hundreds of times as
        slow as `packets`. Bytes that one of `errata` spoils (SKD007, SKZ84) are no packet.
        """
        from rtit.packets import scan_parts

        return scan_parts(self.parts(), errata)

    def packets(self, where: Selection | None = None, *, timing: bool = False) -> Table[Packets]:
        """Its packets; times for them are reckoned if they are asked for or chosen by. Raises the
        error of `settings` then, if it is one.
        """
        wanted = self._wanted(where)
        if not timing and (wanted is None or not wanted.is_timed):
            return tables.table(Packets, lambda: packets(self.parts()), wanted)
        clocks = clocks_of(self._known())
        if timing:
            return tables.table(Packets, lambda: timed_packets(self.parts(), clocks), wanted, TIMED)
        return tables.table(Packets, lambda: packets(self.parts(), clocks), wanted, TIMES)

    @property
    def places(self) -> int:
        """How many runs and how many edges have counts of their own where they are added up. Raises
        the error of `settings`, if it is one.
        """
        return self._known().places or places_of(self.size)

    @property
    def last_turn(self) -> int:
        """Since when (TSC) its thread had the CPU for the last time; 0 for a stream of one."""
        return self.shares.last_turn(self.tid) if self.shares is not None else 0

    def _known(self) -> Settings:
        if isinstance(self.settings, RtitError):
            raise self.settings.with_traceback(None)
        return self.settings

    def _wanted(self, where: Selection | None) -> Filter | None:
        if where is None:
            return Filter()
        if not where.takes(self):
            return None
        return Filter.meant(where, self.pids, self.images, self.clock)
