"""Stock perf as an oracle: what `perf script` makes of a perf.data file."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ERROR = re.compile(
    r"instruction trace error type \d+"
    r"(?: time (?P<time>[\d.]+))?(?: cpu (?P<cpu>-?\d+))?(?: pid (?P<pid>-?\d+))?"
    r"(?: tid (?P<tid>-?\d+))?"
    r"(?: ip (?P<ip>0x[0-9a-f]+|0))?(?: code (?P<code>\d+))?: (?P<message>.*)"
)
PACKET = re.compile(r"\.  ([0-9a-f]{8}):  ((?:[0-9a-f]{2} )+) *(.*)")
STREAM = re.compile(r"\. \.\.\. Intel Processor Trace data: size (\d+) bytes")


class PerfMissingError(Exception):
    """perf is not installed here, or not one that decodes Intel PT."""


class PerfFailedError(Exception):
    """perf ended with an error, a signal, or not in time."""


@dataclass(frozen=True)
class TraceError:
    """One error of perf's decoder; `code` is perf's own number, `time` in ns."""

    tid: int | None
    ip: int | None
    code: int | None
    message: str
    time: int | None = None


@dataclass(frozen=True)
class Packet:
    """`buffer` numbers the AUXTRACE records of the file; `offset` is in it.

    perf joins PADs in a row into one packet.
    """

    buffer: int
    offset: int
    data: bytes
    text: str


def instructions(
    recording: Path, symfs: Mapping[str, Path] | None = None
) -> tuple[dict[int, list[int]], list[TraceError]]:
    """Return every instruction address by thread id, in order; and the errors.

    `symfs` has the file for each recorded path that does not exist here.
    """
    return _samples(recording, "i0nse", symfs)


def sampled_instructions(
    recording: Path, period: int
) -> tuple[dict[int, list[int]], list[TraceError]]:
    """As `instructions`, but of every `period` instructions of a thread the last."""
    return _samples(recording, f"i{period}ie", None)


def _samples(
    recording: Path, itrace: str, symfs: Mapping[str, Path] | None
) -> tuple[dict[int, list[int]], list[TraceError]]:
    ips: dict[int, list[int]] = {}
    errors: list[TraceError] = []
    for line in script(recording, [f"--itrace={itrace}", "-F", "tid,ip"], symfs).splitlines():
        if "instruction trace error" in line:
            errors.append(_error(line))
            continue
        tid, ip = line.split()
        ips.setdefault(int(tid), []).append(int(ip, 16))
    return ips, errors


def errors(recording: Path, symfs: Mapping[str, Path] | None = None) -> list[TraceError]:
    """The errors of a whole decode; the quickest way through a file that perf has."""
    lines = script(recording, ["--itrace=e"], symfs).splitlines()
    return [_error(line) for line in lines if "instruction trace error" in line]


def packets(recording: Path) -> list[Packet]:
    """The PT packets of all AUXTRACE records, in file order."""
    result = []
    buffer = -1
    for line in script(recording, ["-D"]).splitlines():
        if STREAM.match(line):
            buffer += 1
        elif buffer >= 0 and (match := PACKET.fullmatch(line)) and match[3]:
            data = bytes.fromhex(match[2])
            result.append(Packet(buffer, int(match[1], 16), data, match[3].strip()))
    return result


def script(recording: Path, arguments: list[str], symfs: Mapping[str, Path] | None = None) -> str:
    """The output of `perf script`. Raises PerfMissingError and PerfFailedError."""
    perf = shutil.which("perf")
    if perf is None:
        raise PerfMissingError("perf (package linux-perf) is not installed")
    with tempfile.TemporaryDirectory(prefix="perf-oracle-") as home:
        if symfs is not None:
            root = Path(home) / "symfs"
            for recorded, real in symfs.items():
                copy = root / recorded.lstrip("/")
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(real, copy)
            arguments = ["--symfs", str(root), *arguments]
        # A separate home folder keeps perf from the user's settings and build-id cache.
        environment = {**os.environ, "HOME": home, "LC_ALL": "C"}
        command = [perf, "script", "-f", "-i", str(recording), *arguments]
        try:
            result = subprocess.run(
                command, capture_output=True, text=True, env=environment, timeout=300, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise PerfFailedError(f"{' '.join(command)}: no end") from error
    if result.returncode:
        raise PerfFailedError(f"{' '.join(command)}: {result.returncode}: {result.stderr.strip()}")
    return result.stdout


def _error(line: str) -> TraceError:
    match = ERROR.search(line)
    if match is None:
        return TraceError(None, None, None, line.strip())

    def number(name: str, base: int = 10) -> int | None:
        return int(match[name], base) if match[name] else None

    time = int(match["time"].replace(".", "")) if match["time"] else None
    return TraceError(number("tid"), number("ip", 16), number("code"), match["message"], time)
