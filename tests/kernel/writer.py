"""Writes recordings with kernel code."""

from __future__ import annotations

import struct
from typing import ClassVar

from rtit.perfdata import Writer, records
from rtit.perfdata.features import Feature
from rtit.perfdata.records import Misc


class KernelWriter(Writer):
    """Writes a recording that includes the kernel, with the header features `more`."""

    more: ClassVar[dict[Feature, bytes]] = {}
    machine_id: int | None = None
    """Event id of the virtual machine of the next records."""

    def machine(self, pid: int, tid: int, identifier: int) -> None:
        """Start the records of a virtual machine; a thread of process `pid` is its only CPU."""
        tail = struct.pack("<QQqq", identifier, 0, -1, tid) + struct.pack("<QQ", pid, 0)
        self._append_record(records.IdIndex, 1, tail=tail)

    def _sample_id(
        self, pid: int, tid: int, time: int, identifier: int, cpu: int | None = None
    ) -> bytes:
        return super()._sample_id(pid, tid, time, self.machine_id or identifier, cpu)

    def _file_features(self) -> dict[Feature, bytes]:
        return {**super()._file_features(), **self.more}

    def kernel_map(self, address: int, size: int, pgoff: int, path: str) -> None:
        """Write the mapping of kernel or module code at the start of the recording."""
        values = (-1, 0, address, size, pgoff)
        self._append_record(
            records.Mmap,
            *values,
            tail=path.encode(),
            misc=Misc.KERNEL,
            sample_id=self._sample_id(-1, 0, 0, 2),
        )

    def kernel_poke(self, time: int, address: int, old: bytes, new: bytes) -> None:
        """Write a change of kernel code."""
        values = (address, len(old), len(new))
        self._write_sideband_record(
            records.TextPoke, 0, 0, time, *values, tail=old + new, misc=Misc.KERNEL
        )

    def ksymbol(self, time: int, address: int, size: int, name: str, *, gone: bool = False) -> None:
        """Write the load or unload of a BPF program."""
        values = (address, size, 1, int(gone))
        self._write_sideband_record(
            records.Ksymbol, 0, 0, time, *values, tail=name.encode(), misc=Misc.KERNEL
        )
