"""The programs of a recorded system: their records, and the files that their names come from.

The records are those of perf, MMAP2, COMM and FORK, for the processes of the system. The pseudo
process of each page table (`rtit.perfdata.system_processes`) has the same mappings. The files come
from the initial file system. They are written beside the recording.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rtit.capture.store.deleted_files import build_id_in
from rtit.errors import ImageError, RecordError
from rtit.image.kernel.initial_files import read_initial_files
from rtit.image.mapped_files import Key, file_key
from rtit.image.program_files import program_files_path, write_program_files
from rtit.perfdata import Writer
from rtit.perfdata.system_processes import cr3_of_process, page_of_process, process_of_page_table

_PROTECTION, _PRIVATE = 5, 2
"""PROT_READ and PROT_EXEC, MAP_PRIVATE."""
_ANONYMOUS = "//anon"
_HEAD = 1 << 12
"""Bytes of a file that have its build id."""
_MAX_MAPPINGS = 1 << 12
"""Mappings of a page table that a new process inherits."""


class _Mapping(NamedTuple):
    start: int
    end: int
    offset: int
    path: str
    build_id: bytes | None


class GuestPrograms:
    """Writes the records of programs to perf.data, and their files beside it.

    `initrd` is the initial file system; None: there is none. A thread is (pid, tid).
    """

    def __init__(self, writer: Writer, initrd: Path | None) -> None:
        self._writer = writer
        self._initrd = initrd
        self._initial_files: dict[str, memoryview] | None = None
        self._files: dict[Key, memoryview] = {}
        self._changed_files: set[Key] = set()
        """Files that differ from the code that ran."""
        self._mappings: dict[int, list[_Mapping]] = {}
        """By page of the page table."""
        self._pages: dict[int, int] = {}
        """The page of the page table of each process."""
        self.problem: str | None = None
        """Why the initial file system cannot be used."""
        Path(program_files_path(writer.path)).unlink(missing_ok=True)

    def begin_program(self, time: int, pid: int, page: int) -> None:
        """Process `pid` begins another program (exec), with this page table."""
        self._pages[pid] = page
        self._end_mappings(time, page)

    def start_process(self, time: int, pid: int, page: int, parent: tuple[int, int]) -> None:
        """Thread `parent` has created process `pid`, with a copy of its memory or with the same."""
        ppid, ptid = parent
        parent_page = page_of_process(ppid)
        if parent_page is None:
            parent_page = self._pages.get(ppid, page)
            self._writer.fork(pid, ppid, pid, ptid, time)
        self._pages[pid] = page
        if parent_page != page:
            self._end_mappings(time, page)
            inherited = self._mappings.get(parent_page, [])
            self._mappings[page] = list(inherited)
            pseudo = process_of_page_table(page)
            for each in inherited:
                self._write_mapping(time, pseudo, pseudo, each)

    def add_mapping(
        self, time: int, thread: tuple[int, int], page: int, start: int, end: int, file: str
    ) -> None:
        """The thread mapped executable memory. `file` is the text of the plugin's message.

        Raises ValueError if the text has another form.
        """
        new = _Mapping(start, end, start, _ANONYMOUS, None)
        if file:
            offset, is_initial, path = file.split(" ", 2)
            build_id = self._add_initial_file(path) if int(is_initial) else None
            new = _Mapping(start, end, int(offset), path, build_id)
        mappings = self._mappings.setdefault(page, [])
        mappings[:] = [each for each in mappings if each.start < start or end < each.end]
        if len(mappings) < _MAX_MAPPINGS:
            mappings.append(new)
        pseudo = process_of_page_table(page)
        self._write_mapping(time, pseudo, pseudo, new)
        pid, tid = thread
        if tid and cr3_of_process(pid) is None:
            self._pages[pid] = page
            self._write_mapping(time, pid, tid, new)

    def check_code(self, page: int, address: int, code: bytes) -> None:
        """Compare code that runs with the file that it is from: the guest can change the file."""
        # With page table isolation, programs run with the page table after that of their mappings.
        found = self._mappings.get(page) or self._mappings.get(page - (page & 1), [])
        for each in found:
            key = file_key(each.path, each.build_id)
            if each.start <= address < each.end and key in self._files:
                at = address - each.start + each.offset
                expected = self._files[key][at : at + min(len(code), each.end - address)]
                if expected != code[: len(expected)]:
                    self._changed_files.add(key)

    def write_files(self) -> None:
        """Write the mapped files that do not differ from the code that ran. Raises RecordError."""
        files = {
            key: content for key, content in self._files.items() if key not in self._changed_files
        }
        if not files:
            return
        path = program_files_path(self._writer.path)
        try:
            write_program_files(path, files)
        except OSError as error:
            raise RecordError(f"cannot write {path}: {error.strerror}") from error

    def _add_initial_file(self, path: str) -> bytes | None:
        """Return the build id of a file of the initial file system, if it has one."""
        if self._initial_files is None:
            self._initial_files = {}
            if self._initrd is not None:
                try:
                    self._initial_files = read_initial_files(self._initrd)
                except ImageError as error:
                    self.problem = f"functions of programs have no names: {error}"
        content = self._initial_files.get(path)
        if content is None:
            return None
        build_id = build_id_in(bytes(content[:_HEAD]))
        self._files[file_key(path, build_id)] = content
        return build_id

    def _end_mappings(self, time: int, page: int) -> None:
        """End the mappings of a page table: another program uses it from now on."""
        if self._mappings.pop(page, None):
            pseudo = process_of_page_table(page)
            self._writer.exit(pseudo, pseudo, pseudo, pseudo, time)

    def _write_mapping(self, time: int, pid: int, tid: int, each: _Mapping) -> None:
        self._writer.mmap2(
            pid,
            tid,
            time,
            each.start,
            each.end - each.start,
            each.offset,
            _PROTECTION,
            _PRIVATE,
            *(0, 0, 0, 0),
            each.path,
            each.build_id,
        )
