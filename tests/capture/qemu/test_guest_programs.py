"""The records of programs of a system, and the files beside the recording."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from programs.build import BARE, COMMON, SOURCES, compiled
from rtit.capture.options import PtOptions
from rtit.capture.qemu.guest_programs import GuestPrograms
from rtit.perfdata import SwitchRecords, Writer
from rtit.perfdata.system_processes import process_of_page_table
from rtit.registers import FULL
from rtit.trace import Trace
from rtit.trace.recording.pack_writer import write_pack
from support.boot import archive_of_folder

PARENT, CHILD = 10, 20
THREAD = (PARENT, 11)
"""A thread of the parent."""
PAGE, PAGE_OF_CHILD = 0x1234, 0x1240
SIZE = 0x1000


class Recording:
    """A recording, and an initial file system with the program `/bin/run`."""

    def __init__(self, folder: Path, build_id: str) -> None:
        program = compiled(
            f"run_with_build_id_{build_id}",
            [str(SOURCES / "recursion.c")],
            language="c",
            flags=[*COMMON, *BARE, f"-Wl,--build-id={build_id}"],
        )
        symbols = subprocess.run(["nm", program], capture_output=True, text=True, check=True)
        rows = map(str.split, symbols.stdout.splitlines())
        self.addresses = {row[2]: int(row[0], 16) for row in rows if len(row) == 3}
        headers = subprocess.run(
            ["readelf", "-lW", program], capture_output=True, text=True, check=True
        )
        [segment] = [each for each in headers.stdout.splitlines() if " R E " in each]
        self.offset, self.start = (int(number, 16) for number in segment.split()[1:3])
        self.content = program.read_bytes()
        root = folder / "root"
        (root / "bin").mkdir(parents=True)
        (root / "bin" / "run").write_bytes(self.content)
        (folder / "initrd").write_bytes(archive_of_folder(root))
        self.path = folder / "perf.data"
        self.writer = Writer(
            self.path,
            config=PtOptions.parse("intel_pt//", profile=FULL, user_only=False).attr_config,
            cpuid=FULL.cpuid_text,
            switches=SwitchRecords.CPU_WIDE,
            kernel=True,
            facts={"system": "whole machine"},
        )
        self.programs = GuestPrograms(self.writer, folder / "initrd")

    def map_program(self, time: int, *, is_initial: bool = True) -> None:
        """Map the program in the parent."""
        file = f"{self.offset} {int(is_initial)} /bin/run"
        self.programs.add_mapping(time, THREAD, PAGE, self.start, self.start + SIZE, file)

    def close(self) -> Trace:
        """Write the files, and open the recording."""
        self.programs.write_files()
        self.writer.close()
        return Trace(self.path)

    def name_of_main(self, trace: Trace, pid: int, time: int) -> str:
        """Return how the address of `main` is shown."""
        return str(trace.symbols.lookup(pid, time, self.addresses["main"]))


@pytest.fixture(params=["none", "sha1"])
def recording(request: pytest.FixtureRequest, tmp_path: Path) -> Recording:
    return Recording(tmp_path, request.param)


@pytest.mark.parametrize("pid", [PARENT, process_of_page_table(PAGE)])
def test_functions_of_a_file_in_the_initial_file_system_have_names(
    recording: Recording, pid: int
) -> None:
    recording.map_program(1000)
    with recording.close() as trace:
        assert recording.name_of_main(trace, pid, 2000) == "main"
        assert trace.images.problems == []


def test_new_process_inherits_mappings_until_exec(recording: Recording) -> None:
    recording.map_program(1000)
    recording.programs.start_process(2000, CHILD, PAGE_OF_CHILD, THREAD)
    recording.writer.comm(CHILD, CHILD, 3000, "other", by_exec=True)
    recording.programs.begin_program(3000, CHILD, PAGE_OF_CHILD)
    with recording.close() as trace:
        for pid in (CHILD, process_of_page_table(PAGE_OF_CHILD)):
            assert recording.name_of_main(trace, pid, 2500) == "main"
            assert recording.name_of_main(trace, pid, 3500) == hex(recording.addresses["main"])
        assert recording.name_of_main(trace, PARENT, 3500) == "main"


def test_file_of_another_mount_with_the_same_path_gives_no_names(recording: Recording) -> None:
    recording.map_program(1000, is_initial=False)
    with recording.close() as trace:
        found = trace.symbols.lookup(PARENT, 2000, recording.addresses["main"])
        assert (found.name, found.module) == ("", "/bin/run")


def test_file_on_another_mount_is_found_in_a_given_folder(
    recording: Recording, tmp_path: Path
) -> None:
    recording.map_program(1000, is_initial=False)
    recording.close().close()
    with Trace(recording.path, symfs=tmp_path / "root") as trace:
        assert recording.name_of_main(trace, PARENT, 2000) == "main"


@pytest.mark.parametrize("page", [PAGE, PAGE + 1], ids=["own", "isolated"])
@pytest.mark.parametrize("is_changed", [False, True])
def test_file_has_names_unless_other_code_ran(
    recording: Recording, page: int, is_changed: bool
) -> None:
    recording.map_program(1000)
    code = bytearray(recording.content[recording.offset :][:16])
    code[-1] ^= is_changed
    recording.programs.check_code(page, recording.start, bytes(code))
    with recording.close() as trace:
        found = trace.symbols.lookup(PARENT, 2000, recording.addresses["main"])
        assert (found.name, found.module) == ("" if is_changed else "main", "/bin/run")


@pytest.mark.parametrize("is_initial", [False, True])
def test_code_is_that_which_ran_whatever_is_mapped(recording: Recording, is_initial: bool) -> None:
    pid, code = process_of_page_table(PAGE), b"\x90" * 8
    recording.writer.text_poke(pid, pid, 0, recording.start, code)
    recording.map_program(1000, is_initial=is_initial)
    recording.programs.begin_program(2000, PARENT, PAGE)
    with recording.close() as trace:
        for time in (500, 1500, 2500):
            assert trace.images.image(pid).read(recording.start, 8, time=time) == code


def test_pack_has_the_program_files(recording: Recording, tmp_path: Path) -> None:
    recording.map_program(1000)
    with recording.close() as trace:
        packed = tmp_path / "packed.zip"
        with packed.open("wb") as file:
            write_pack(trace, file)
    with Trace(packed) as trace:
        assert recording.name_of_main(trace, PARENT, 2000) == "main"
