"""Raw PT and its code on the command line, compared with libipt and the vendor's documents."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import rtit
from rtit.cli.commands import COMMANDS, command_parser
from rtit.cli.main import main
from rtit.cli.options import open_raw_trace
from rtit.packets import PSB, BadBytes, describe, encode, scan
from rtit.trace import Settings, Start, Trace
from support.recordings import Recorder
from support.streams import SYNC

REQUIRED_OPTIONS = {
    "profile": ["--for", "bolt"],
    "verify": ["--truth", "t"],
    "annotate": ["main"],
    "query": ["select * from blocks"],
    "export": ["--to", "made"],
}
NO_CODE = {
    # packets alone, or none at all
    *("packets", "lint", "info", "convert", "record", "doctor", "msr", "cpuid", "scenario"),
    # of a recording: its files; memory and registers of processes
    *("pack", "gdb"),
}
BOUNDS = ("earliest", "latest")
RETURNS = "call_indirect-ret_compressed"


@pytest.fixture
def libipt_cases(traces: Path) -> Path:
    return traces / "libipt-cases"


def raw_options(libipt_cases: Path, name: str) -> list[str]:
    return [
        "--raw",
        str(libipt_cases / f"{name}.pt"),
        "--image",
        f"{libipt_cases / name}.bin@0x100000",
    ]


def test_instructions_are_those_that_libipt_lists(
    libipt_cases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["instructions", *raw_options(libipt_cases, RETURNS), "--fields", "ip"]) == 0
    expected = re.findall(
        "^[0-9a-f]{16}$", (libipt_cases / f"{RETURNS}.instructions.txt").read_text(), re.M
    )
    shown = capsys.readouterr().out.split()
    assert [int(ip, 16) for ip in shown] == [int(ip, 16) for ip in expected]
    assert main(["instructions", *raw_options(libipt_cases, RETURNS)]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["100000", "0x100000", "call", "rbx"]


@pytest.mark.parametrize(
    ("mode", "texts"),
    [(0, ["inc ax", "jmp ax"]), (2, ["inc eax", "jmp eax"]), (1, ["jmp rax"])],
)
def test_disassembly_follows_the_execution_mode(
    mode: int, texts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """40H is INC of eAX, and a REX prefix in 64-bit code (SDM volume 2, INC; Table 33-26)."""
    stream, code = tmp_path / "stream.pt", tmp_path / "code"
    long = bytes([0x99, 1])
    head = SYNC.replace(long, bytes([0x99, mode]))
    assert SYNC.count(long) == 1
    stream.write_bytes(head + encode("TIP.PGD", ip_bytes=0, payload=None))
    code.write_bytes(b"\x40\xff\xe0")
    words = ["--raw", str(stream), "--image", f"{code}@0x1000", "--fields", "asm"]
    assert main(["instructions", *words]) == 0
    assert [" ".join(each.split()) for each in capsys.readouterr().out.splitlines()] == texts


def test_events_and_lint_read_raw_packets(
    libipt_cases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["events", *raw_options(libipt_cases, RETURNS)]) == 0
    assert "[disabled]" in (libipt_cases / f"{RETURNS}.instructions.txt").read_text()
    assert "disabled" in capsys.readouterr().out
    assert main(
        ["lint", "--raw", str(libipt_cases / f"{RETURNS}.pt"), "--cpu-model", "6/94/3"]
    ) in (0, 1)


def test_packets_are_those_that_libipt_lists(
    libipt_cases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["packets", "--raw", str(libipt_cases / f"{RETURNS}.pt")]) == 0
    expected = (libipt_cases / f"{RETURNS}.packets.txt").read_text().splitlines()
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [int(words[0], 16) for words in shown] == [int(line.split()[0], 16) for line in expected]
    names = {"TNT": "tnt.8"}
    assert [names.get(words[1], words[1].lower()) for words in shown] == [
        line.split()[1] for line in expected
    ]


@pytest.mark.parametrize("timing", [(), ("--timing",)])
def test_each_packet_and_bad_byte_has_a_line(
    timing: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    block = encode("BBP", sz=1, type=4) + b"\x0c" + bytes(4) + encode("BEP", ip=0)
    wide_block = encode("BBP", sz=0, type=4) + b"\x0c" + bytes(8) + encode("BEP", ip=0)
    data = b"\xff" * 9 + SYNC + encode("TNT", bits="TN") * 9 + block + wide_block
    data += encode("TMA", ctc=1, fast_counter=2) + b"\x02\xff" + bytes(70) + PSB + SYNC[:-1]
    raw = tmp_path / "any.pt"
    raw.write_bytes(data)
    assert main(["packets", "--raw", str(raw), *timing]) == 3
    lines = capsys.readouterr().out.splitlines()
    shown = [re.sub(r"^( *\S+ +\S+ )(?=[0-9a-f]{8}  )", "", line) for line in lines]
    assert len(shown) == len(list(scan(data)))
    for line, item in zip(shown, scan(data), strict=True):
        if isinstance(item, BadBytes):
            assert line.startswith(f"{item.offset:08x}  ({item.length} bytes) ")
        else:
            assert line == f"{item.offset:08x}  {describe(item)}"


def cyc_cut_by_ovf() -> bytes:
    """Return packets where an OVF replaces the second byte of a CYC."""
    return encode("PSB") + encode("PSBEND") + encode("CYC", cycles=0x1234)[:1] + encode("OVF")


def tma_with_reserved_bit() -> bytes:
    """Return a TMA with a set reserved bit, and a byte that looks like a TNT of two
    branches.
    """
    tma = bytearray(encode("TMA", ctc=1, fast_counter=2))
    tma[6] |= 2
    return encode("PSB") + encode("PSBEND") + bytes(tma) + b"\x0e" + encode("CBR", ratio=9)


@pytest.mark.parametrize(
    ("cpu", "lines"),
    [
        (None, ["(1 bytes) an OVF cuts off the CYC (erratum SKD007)", "OVF"]),
        ("6/94/3", ["(1 bytes) an OVF cuts off the CYC (erratum SKD007)", "OVF"]),
        ("6/61/4", ["CYC cycles=52", "CYC cycles=30"]),
    ],
)
@pytest.mark.parametrize("timing", [(), ("--timing",)])
def test_packets_apply_skd007_of_the_cpu(
    cpu: str | None,
    lines: list[str],
    timing: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    raw = tmp_path / "cyc.pt"
    raw.write_bytes(cyc_cut_by_ovf())
    named = ("--cpu-model", cpu) if cpu else ()
    code = main(["packets", "--raw", str(raw), *named, *timing])
    assert code == (3 if "OVF" in lines else 0)
    shown = capsys.readouterr().out.splitlines()
    assert [line.rsplit("  ", 1)[1] for line in shown[2:]] == lines


@pytest.mark.parametrize(
    ("cpu", "code", "lines"),
    [
        ("6/85/4", 3, ["(8 bytes) a TMA with wrong values and a stray byte (erratum SKZ84)"]),
        (None, 0, ["TMA ctc=0x1 fast_counter=0x2 (reserved bits set)", "TNT bits=TT"]),
        ("6/150/1", 0, ["TMA ctc=0x1 fast_counter=0x2 (reserved bits set)", "TNT bits=TT"]),
    ],
)
def test_packets_mark_tma_with_reserved_bits(
    cpu: str | None,
    code: int,
    lines: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    raw = tmp_path / "tma.pt"
    raw.write_bytes(tma_with_reserved_bit())
    assert main(["packets", "--raw", str(raw), *(("--cpu-model", cpu) if cpu else ())]) == code
    shown = capsys.readouterr().out.splitlines()
    assert [line.split("  ", 1)[1] for line in shown[2:]] == [*lines, "CBR ratio=9"]


def test_packet_times_equal_the_columns(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A TSC packet has exactly its own time."""
    words = ["packets", "--timing", "--raw", str(traces / "dynamorio" / "pt.bin")]
    words += ["--mtc-freq", "3", "--nom-freq", "0x25", "--cpuid-15", "2,308"]
    assert main([*words, "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    data = (traces / "dynamorio" / "pt.bin").read_bytes()
    (stream,) = rtit.decode(data, mtc_freq=3, nom_freq=0x25, cpuid_15=(2, 308)).streams
    columns = stream.packets(timing=True).columns()
    for name in ("offset", "time", "earliest", "latest", "cycles"):
        assert [each[name] for each in found] == columns[name].tolist()
    with_tsc = [each for each in found if each["name"] == "TSC"]
    assert with_tsc
    assert all(each["earliest"] == each["latest"] == each["fields"]["tsc"] for each in with_tsc)
    assert {each["frequency"] for each in found[:3]} == {None}
    assert main(words) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [int(line[2], 16) for line in lines] == [each["offset"] for each in found]
    unknown = (0, (1 << 64) - 1)
    shown = [["-" if each[end] in unknown else str(each[end]) for end in BOUNDS] for each in found]
    assert [line[:2] for line in lines] == shown


def test_elf_file_and_clock_options_give_names_and_times(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # `mov mov mov mov syscall mov mov syscall`, at the offsets that the recording's notes give
    folder = traces / "dynamorio"
    words = [
        "--raw",
        str(folder / "pt.bin"),
        "--elf",
        str(folder / "hello"),
        "--cpu-model",
        "6/85/4",
    ]
    clock = ["--mtc-freq", "3", "--nom-freq", "0x25", "--cpuid-15", "2,308"]
    assert main(["instructions", *words, *clock, "--fields", "ip,sym,asm"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    first = int(lines[0][0], 16)
    assert [int(line[0], 16) - first for line in lines] == [0, 5, 10, 20, 25, 27, 32, 37]
    assert {line[1].partition("+")[0] for line in lines} == {"_start"}
    assert [line[2] for line in lines].count("syscall") == 2
    # MTCs and CYCs between the two give time
    times = []
    for more in ([], clock):
        assert main(["instructions", *words, *more, "--fields", "time", "--tail", "1"]) == 0
        times.append(int(capsys.readouterr().out))
    assert times[1] > times[0]


def test_elf_file_is_loaded_at_the_given_address(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = traces / "dynamorio"
    words = ["--raw", str(folder / "pt.bin"), "--elf", f"{folder / 'hello'}@0x400000"]
    assert main(["report", *words]) == 0
    assert "_start (hello)" in capsys.readouterr().out
    assert main(["report", *words[:-1], f"{folder / 'hello'}@0x500000"]) == 3
    assert "no code is known at 0x401000" in capsys.readouterr().out


def test_packets_from_standard_input(libipt_cases: Path) -> None:
    command = [sys.executable, "-m", "rtit", "report", "--raw", "-"]
    with (libipt_cases / f"{RETURNS}.pt").open("rb") as file:
        ended = subprocess.run(
            [*command, "--image", f"{libipt_cases / RETURNS}.bin@100000"],
            stdin=file,
            capture_output=True,
            text=True,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("<stdin>\n")
    assert re.search("^ +3 +2 +35 .* stream$", ended.stdout, re.M)


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        (["packets", "--timing"], 0, " 00000022  TIP.PGD ip_bytes=0"),
        (["profile", "--for", "pprof"], 2, "which was read before"),
        (["stat"], 3, " of 35 bytes of PT"),
        (["info"], 0, " 35 "),
    ],
)
def test_pipe_by_its_path_is_read_once(
    command: list[str], code: int, text: str, libipt_cases: Path
) -> None:
    """The size of a pipe is known only after it was read."""
    ended = subprocess.run(
        [sys.executable, "-m", "rtit", *command, "--raw", "/dev/stdin"],
        input=(libipt_cases / f"{RETURNS}.pt").read_bytes(),
        capture_output=True,
        check=False,
    )
    assert text in (ended.stdout + ended.stderr).decode()
    assert ended.returncode == code


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--elf", "x"], "--elf describes raw PT and needs --raw FILE"),
        (["--cpuid-15", "2,3"], "--cpuid-15 describes raw PT"),
        (["--raw", "PT", "perf.data"], "two files given: perf.data and --raw PT"),
        (["--raw", "PT", "--image", "code"], "--image code: expected FILE@ADDRESS"),
        (["--raw", "PT", "--image", "code@1g"], "--image ...@1g: expected a hexadecimal address"),
        (["--raw", "PT", "--mtc-freq", "16"], "mtc_freq is 16: it has 4 bits"),
        (["--raw", "PT", "--nom-freq", "x"], "--nom-freq x: expected a number"),
        (["--raw", "PT", "--cpuid-15", "2"], "--cpuid-15 2: expected EAX,EBX"),
        (["--raw", "PT", "--cpu-model", "6/x"], "cpu '6/x': expected FAMILY/MODEL/STEPPING"),
        (["--raw", "PT", "--start-time", "soon"], "--start-time soon: expected a number"),
        (["--raw", "PT", "--guest-tsc", "x"], "--guest-tsc x: expected OFFSET[,MULTIPLIER]"),
        (
            ["--raw", "PT", "--filter", "1/2"],
            "--filter '1/2': expected 'filter START/SIZE,...' with addresses",
        ),
        (
            ["--raw", "PT", "--filter", "filter 0/1@a"],
            "expected 'filter START/SIZE,...' with addresses",
        ),
        (
            ["--raw", "PT", "--filter", "filter 0/1," * 5],
            "5 filter ranges: at most 4 are supported",
        ),
        (["--filter", "filter 0/1"], "--filter describes raw PT and needs --raw FILE"),
        (["--notnt"], "--notnt describes raw PT"),
        (["--noretcomp"], "--noretcomp describes raw PT"),
        (["--start-time", "1"], "--start-time describes raw PT"),
        (
            ["--raw", "PT", "--symfs", "."],
            "--symfs is for recordings and cannot be combined with --raw",
        ),
        (["--raw", "PT", "--map", "a=b"], "--map is for recordings"),
        (["--raw", "PT", "--debuginfod"], "--debuginfod is for recordings"),
        (["--raw", "PT", "--kernel-modules", "."], "--kernel-modules is for recordings"),
        (["--raw", "PT", "--guestmount", "."], "--guestmount is for recordings"),
        (["--raw", "PT", "--guest-process", "1=1/1"], "--guest-process is for recordings"),
        (["--raw", "PT", "--guestmodules", "m"], "--guestmodules is for recordings"),
    ],
)
def test_conflicting_options_are_a_usage_error(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *words]) == 2
    assert message in capsys.readouterr().err


OPTIONS_OF_DECODE = {
    "cpu": ["--cpu-model", "6/94/3"],
    "mtc_freq": ["--mtc-freq", "3"],
    "nom_freq": ["--nom-freq", "0x18"],
    "cpuid_15": ["--cpuid-15", "2,168"],
    "start_time": ["--start-time", "0x123456789abcdef0"],
    "guest_tsc": ["--guest-tsc=-16,0x2000000000000"],
    "start": ["--start", "1000,32,2000"],
    "ranges": ["--filter", "filter 0x1000/0x200,stop 0x3000/8,filter 0x5000/1"],
    "no_tnt": ["--notnt"],
    "no_retcomp": ["--noretcomp"],
    "spaces": ["--cr3", "5000,1", "--image", f"{__file__}@1000"],
}


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_the_options_of_rtit_decode(command: str) -> None:
    """Every command that reads raw PT with its code has an option for each setting."""
    parser = command_parser(command)
    have = set(parser.option_names())
    if "--elf" not in have:
        assert command in NO_CODE
        return
    words = [word.partition("=")[0] for words in OPTIONS_OF_DECODE.values() for word in words]
    named = {word for word in words if word.startswith("--")}
    assert named - have == set()
    assert "--raw" in have
    assert command not in NO_CODE
    given = [word for words in OPTIONS_OF_DECODE.values() for word in words]
    files = ["--raw", *(["a", "b"] if command == "diff" else [__file__])]
    arguments = parser.parse_args([*given, *files, *REQUIRED_OPTIONS.get(command, [])])
    arguments.raw, arguments.file, arguments.input = __file__, None, None
    trace = open_raw_trace(arguments)
    (stream,) = trace.streams
    assert list(stream.spaces or ()) == [(0x5000, 1)]
    assert stream.settings == Settings(
        mtc_freq=3,
        tsc_ctc=(168, 2),
        max_nonturbo_ratio=0x18,
        start_time=0x1234_5678_9ABC_DEF0,
        no_tnt=True,
        no_retcomp=True,
        cpu=(6, 94, 3),
        guest_tsc=((1 << 64) - 16, 1 << 49),
        ranges=((0x1000, 0x11FF), (0x5000, 0x5000)),
        start=Start(0x1000, 32, 0x2000),
    )


def test_option_table_covers_all_parameters_of_rtit_decode() -> None:
    others = {"data", "image", "jobs", "max_counters", "title"}
    assert set(inspect.signature(rtit.decode).parameters) - others == set(OPTIONS_OF_DECODE)


def test_filter_ranges_are_needed_with_erratum_skl014(
    libipt_cases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the ranges, the decoder cannot recognize the branch out of them."""
    index = json.loads((libipt_cases / "index.json").read_text())
    found = [
        (case, run)
        for case in index
        for run in case["runs"]
        if run["level"] == "instructions" and "--filter:addr0_a" in run["options"]
    ]
    assert found
    for case, run in found:
        path = libipt_cases / case["name"]
        options = dict(zip(run["options"], run["options"][1:], strict=False))
        first, last = (int(options[f"--filter:addr0_{end}"], 16) for end in "ab")
        expected = (libipt_cases / run["expected"]).read_text()
        ips = re.findall("^[0-9a-f]{16}$", expected, re.M)
        text = f"filter {first:#x}/{last - first + 1:#x}"
        words = ["--raw", f"{path}.pt", "--image", f"{path}.bin@{case['image_base']}"]
        words += ["--cpu-model", run["cpus"][0], "--fields", "ip"]
        assert main(["instructions", *words, "--filter", text]) == 0
        assert [int(ip, 16) for ip in capsys.readouterr().out.split()] == [
            int(ip, 16) for ip in ips
        ]
        assert main(["instructions", *words]) == 3
        capsys.readouterr()


def test_missing_files_are_an_error(libipt_cases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--raw", "/nowhere/pt"]) == 1
    assert "/nowhere/pt: No such file" in capsys.readouterr().err
    assert (
        main(["report", "--raw", str(libipt_cases / f"{RETURNS}.pt"), "--elf", "/nowhere/elf@4000"])
        == 1
    )
    assert "/nowhere/elf: cannot be read" in capsys.readouterr().err


def test_trace_takes_the_cpu_of_its_argument(traces: Path) -> None:
    from rtit.trace import Settings, Trace

    with Trace(traces / "hase" / "loopy-skylake.perf.data", cpu=(6, 61, 4)) as trace:
        settings = trace.streams[0].settings
        assert isinstance(settings, Settings)
        assert settings.cpu == (6, 61, 4)


FIRST, SECOND = bytes.fromhex("90 7400 c3"), bytes.fromhex("9090 7500 c3")
"""1000 nop; 1001 je 1003; 1003 ret, and 1000 nop; 1001 nop; 1002 jne 1004; 1004 ret"""


@pytest.fixture
def two_spaces(tmp_path: Path) -> list[str]:
    """Two address spaces with a MOV CR3 between them: first one runs, then the other."""
    away = bytes.fromhex("0f22d8")
    here, there = away + FIRST, b"\x90" * 3 + SECOND
    (tmp_path / "here").write_bytes(here)
    (tmp_path / "there").write_bytes(there)
    begin = encode("FUP", ip_bytes=6, payload=0x1000)
    end = encode("FUP", ip_bytes=6, payload=0x1007) + encode("TIP.PGD", ip_bytes=0)
    pt = encode("PSB") + b"\x99\x01" + encode("PIP", cr3=0x5000, nr=0) + begin + encode("PSBEND")
    pt += encode("PIP", cr3=0x6000, nr=0) + encode("TNT", bits="T") + end
    (tmp_path / "pt").write_bytes(pt)
    return [
        *("--raw", str(tmp_path / "pt"), "--cpu-model", "6/94/3"),
        *("--cr3", "5000", "--image", f"{tmp_path / 'here'}@1000"),
        *("--cr3", "6000,0", "--image", f"{tmp_path / 'there'}@1000"),
    ]


def test_code_follows_the_address_space(
    two_spaces: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["instructions", *two_spaces, "--fields", "ip,asm"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    # the JNE of the second space, not the JE that the first space has at this address
    assert [(line[0], line[1]) for line in lines] == [
        ("1000", "mov"),
        ("1003", "nop"),
        ("1004", "nop"),
        ("1005", "jne"),
    ]
    assert main(["report", *two_spaces]) == 0
    assert "4 " in capsys.readouterr().out


def test_symbols_follow_the_address_space(
    traces: Path, tmp_path: Path, two_spaces: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """One space has a program with symbols, the other bytes without symbols at the same
    addresses.
    """
    hello = traces / "dynamorio" / "hello"
    start = 0x401000
    pt = encode("PSB") + b"\x99\x01" + encode("PIP", cr3=0x5000, nr=0)
    pt += encode("FUP", ip_bytes=6, payload=start) + encode("PSBEND")
    (tmp_path / "pt").write_bytes(pt + encode("TIP.PGD", ip_bytes=0))
    (tmp_path / "ret").write_bytes(b"\xc3")
    raw_options = ["--raw", str(tmp_path / "pt"), "--image", f"{tmp_path / 'ret'}@{start:x}"]
    for key, name in (("5000", "_start"), ("7000", "")):
        words = [*raw_options, "--cr3", key, "--elf", f"{hello}@0x400000"]
        assert main(["instructions", *words, "--fields", "ip,sym,asm", "--head", "1"]) == 0
        line = capsys.readouterr().out.split()
        assert line[1] == (name or f"{start:#x}")
        assert line[2] == ("mov" if name else "ret")
        assert main(["report", *words]) == 0
        assert ("_start (hello)" in capsys.readouterr().out) == bool(name)
        wanted = main(["instructions", *words, "--function", "_start", "--fields", "ip"])
        assert wanted == 0
        # in another address space, the function of the program did not run
        assert capsys.readouterr().out.split()[:1] == ([f"{start:x}"] if name else [])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--cr3", "5000"], "--cr3 describes raw PT"),
        (["--raw", "pt", "--cr3", "x"], "--cr3 x: expected CR3"),
        (["--raw", "pt", "--cr3", "1,2"], "is no CR3"),
        (["--raw", "pt", "--cr3", "1,0,2,3"], "--cr3 1,0,2,3: expected CR3"),
    ],
)
def test_invalid_cr3_is_a_usage_error(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *words]) == 2
    assert why in capsys.readouterr().err


def test_verify_compares_raw_packets_with_a_truth(
    program: Callable[[str], Path],
    record: Recorder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    live = record([program("far")])
    pt = tmp_path / "pt"
    with Trace(live.data) as trace:
        (stream,) = trace.streams
        pt.write_bytes(stream.read())
        expected = stream.counts().instructions
    words = ["verify", "--raw", str(pt), "--elf", str(program("far")), "--truth", str(live.truth)]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1].startswith(
        f"identical: {expected:,} instructions of 1 thread, "
    )
    assert main([*words, "--tid", str(stream.tid)]) == 0
    capsys.readouterr()
    assert main([*words, "--tid", "1"]) == 2
    assert f"the threads {stream.tid}: use --tid" in capsys.readouterr().err
    # without one packet, the path differs from the truth
    data = pt.read_bytes()
    at = data.index(encode("PSBEND")) + 40
    pt.write_bytes(data[:at] + data[at + 1 :])
    assert main(words) == 1
    assert "DIFFERENT" in capsys.readouterr().out


def test_coverage_of_raw_packets_equals_that_of_the_recording(
    program: Callable[[str], Path],
    record: Recorder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    live = record([program("far")])
    with Trace(live.data) as trace:
        (stream,) = trace.streams
        (tmp_path / "pt").write_bytes(stream.read())
    raw_options = ["--raw", str(tmp_path / "pt"), "--elf", str(program("far"))]
    maps = []
    for number, words in enumerate(([str(live.data)], raw_options)):
        out = tmp_path / str(number)
        assert main(["coverage", "--format", "afl", "-o", str(out), *words]) == 0
        maps.append(out.read_bytes())
    assert maps[0] == maps[1]
    assert any(maps[0])
    assert main(["coverage", *raw_options, str(live.data)]) == 2
    assert "two files given" in capsys.readouterr().err


@pytest.fixture
def write_jump_packets(tmp_path: Path) -> Callable[[str], Path]:
    """Writes packets of a program with one conditional branch: `T` taken, or `N` not taken.

    The file `code` beside them holds `jz` over a `nop`, and two more `nop`.
    """
    (tmp_path / "code").write_bytes(bytes.fromhex("7401909090"))
    begin = encode("PSB") + encode("PSBEND") + encode("MODE.Exec", csl=1, csd=0, iflag=0)
    begin += encode("TIP.PGE", ip_bytes=3, payload=0x1000)

    def make(bits: str) -> Path:
        path = tmp_path / f"{bits}.pt"
        path.write_bytes(
            begin
            + encode("TNT", bits=bits)
            + encode("FUP", ip_bytes=3, payload=0x1004)
            + encode("TIP.PGD", ip_bytes=0)
        )
        return path

    return make


def test_diff_of_raw_packets_finds_the_branch(
    write_jump_packets: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    taken, passed = str(write_jump_packets("T")), str(write_jump_packets("N"))
    code = ["--image", f"{Path(taken).parent / 'code'}@1000"]
    assert main(["diff", "--raw", taken, taken, *code]) == 0
    assert "identical: 2 instructions" in capsys.readouterr().out
    assert main(["diff", "--raw", taken, passed, *code]) == 1
    shown = capsys.readouterr().out
    # one path continues at the branch target, the other after the branch
    assert "0x1003" in shown
    assert "0x1002" in shown
    assert main(["diff", taken, passed, *code]) == 2
    with pytest.raises(SystemExit, match="2"):
        main(["diff", "--raw", taken])
    capsys.readouterr()


def test_info_describes_raw_packets(
    write_jump_packets: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_jump_packets("T")
    assert main(["info", "--raw", str(path)]) == 0
    shown = capsys.readouterr().out
    assert f"{path.stat().st_size:,}" in shown
    path.write_bytes(path.read_bytes()[16:])
    assert main(["info", "--raw", str(path)]) == 0
    assert "no PSB" in capsys.readouterr().out
    path.write_bytes(path.read_bytes() + b"\xff\xff")
    assert main(["info", "--raw", str(path)]) == 3
    assert "2 bytes are no packet" in capsys.readouterr().out
