"""Measures recording and decoding, side by side with other decoders, in one run.

Writes bench/results/DATE.json and DATE.md, unless --no-save. Only ratios carry over to other
machines.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent
TESTS = BENCH.parent / "tests"
sys.path.insert(0, str(TESTS))


def workload() -> Path:
    """Builds the program that is measured."""
    from programs import build

    return build.compiled(
        "workload",
        [str(BENCH / "workload.c")],
        language="c",
        flags=[*build.COMMON, *build.BARE, f"-I{build.SOURCES}"],
        depends=[(build.SOURCES / "start.h").read_bytes()],
    )


def under_qemu(folder: Path, repetitions: int) -> list[dict[str, Any]]:
    """Real programs under QEMU; nothing where no QEMU fits."""
    import recording
    from rtit.capture.qemu import find_qemu

    found = find_qemu()
    if isinstance(found, str):
        return []
    text = folder / "text"
    text.write_bytes(b"".join(b"line %d of a file to compress\n" % (i * i) for i in range(30_000)))
    commands: dict[str, list[str | Path]] = {
        "ls -l /usr/bin": ["/bin/ls", "-l", "/usr/bin"],
        "gzip of 1 MB": ["/bin/gzip", "-kf", text],
        "sort of 1 MB": ["/usr/bin/sort", "--parallel=2", "-o", "/dev/null", text],
    }
    output = folder / "qemu.data"
    return [
        recording.recording(what, command, output, repetitions, str(found.qemu))
        for what, command in commands.items()
    ]


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    import clock
    import decoding
    import recording

    program = workload()
    result: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": clock.machine(),
        "repetitions": arguments.repetitions,
        "recording": [],
        "decoding": None,
    }
    with tempfile.TemporaryDirectory(prefix="rtit-bench-") as folder:
        data = Path(folder) / "perf.data"
        commands: dict[str, list[str | Path]] = {
            "/bin/true": ["/bin/true"],
            f"workload {arguments.times}": [program, str(arguments.times)],
        }
        if arguments.only != "decoding":
            for what, command in commands.items():
                row = recording.recording(what, command, data, arguments.repetitions)
                result["recording"].append(row)
            result["recording"] += under_qemu(Path(folder), arguments.repetitions)
            recording.record([program, str(arguments.times)], data)
        else:
            recording.record([program, str(arguments.times)], data)
        if arguments.only != "recording":
            result["decoding"] = decoding.decoding(
                data, program, arguments.megabytes, arguments.repetitions
            )
    return result


def main() -> int:
    import report

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["recording", "decoding"])
    parser.add_argument("--repetitions", type=int, default=5, metavar="N")
    parser.add_argument("--megabytes", type=float, default=16, help="of PT to decode")
    parser.add_argument("--times", type=int, default=4, help="rounds of the workload")
    parser.add_argument("--no-save", action="store_true")
    arguments = parser.parse_args()
    result = measure(arguments)
    text = report.markdown(result)
    print(text)
    if not arguments.no_save:
        results = BENCH / "results"
        results.mkdir(exist_ok=True)
        path = results / f"{result['date']}.json"
        path.write_text(json.dumps(result, indent=1) + "\n")
        path.with_suffix(".md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
