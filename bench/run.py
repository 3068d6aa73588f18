"""Measures the packetizers, recording and decoding, with QEMU, libipt and perf, in one run.

Writes bench/results/DATE.md, unless --no-save. Only ratios carry over to other
machines.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent
TESTS = BENCH.parent / "tests"
sys.path.insert(0, str(TESTS))

WHAT = (
    *("packetizing", "recording", "counting", "profiles", "decoding", "short", "corpus"),
    *("opening", "boot"),
)
CORPUS_PROGRAM = "import json; [json.loads(json.dumps({str(i): [i]})) for i in range(3000)]"
STEPPED = 3
"""Repetitions of recordings by single steps, which take seconds."""


def workload() -> Path:
    """Build the measured program."""
    from programs import build

    return build.compiled(
        "workload",
        [str(BENCH / "workload.c")],
        language="c",
        flags=[*build.COMMON, *build.BARE, f"-I{build.SOURCES}"],
        depends=[(build.SOURCES / "start.h").read_bytes()],
    )


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    import boot
    import clock
    import corpus
    import counting
    import decoding
    import opening
    import packetizing
    import profiles
    import recording
    import short

    program = workload()
    result: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": clock.machine(),
        "repetitions": arguments.repetitions,
        "load": [clock.load()],
        "packetizing": [],
        "recording": [],
        "counting": [],
        "profiles": None,
        "decoding": None,
        "short": None,
        "corpus": None,
        "opening": None,
        "boot": None,
    }
    wanted = {arguments.only} if arguments.only else set(WHAT)
    with tempfile.TemporaryDirectory(prefix="rtit-bench-") as name:
        folder = Path(name)
        data = folder / "perf.data"
        if "packetizing" in wanted:
            result["packetizing"] = packetizing.measure_packetizing(arguments.repetitions)
        if "recording" in wanted:
            result["recording"] = recording.under_qemu(folder, arguments.repetitions)
            row = recording.measure_recording("/bin/true", ["/bin/true"], data, STEPPED)
            result["recording"].append(row)
        if "counting" in wanted:
            result["counting"] = counting.measure_counting(folder, arguments.repetitions)
        if "profiles" in wanted:
            result["profiles"] = profiles.measure_profiles(program, folder, arguments.repetitions)
        if "decoding" in wanted:
            recording.record([program, str(arguments.times)], data)
            result["decoding"] = decoding.measure_decoding(
                data, program, arguments.megabytes, arguments.repetitions
            )
        if "short" in wanted:
            recording.record([program, str(arguments.times)], data)
            result["short"] = short.measure_short_traces(data, program, 5 * arguments.repetitions)
        if "corpus" in wanted:
            recording.record([sys.executable, "-c", CORPUS_PROGRAM], data)
            result["corpus"] = corpus.measure_corpus(data)
        if "opening" in wanted:
            recording.record([program, str(arguments.times)], data)
            result["opening"] = opening.measure_opening(data, arguments.large)
        if "boot" in wanted:
            result["boot"] = boot.measure_boot(folder, arguments.repetitions)
    result["load"].append(clock.load())
    return result


def main() -> int:
    import report

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=WHAT)
    parser.add_argument("--repetitions", type=int, default=5, metavar="N")
    parser.add_argument("--megabytes", type=float, default=16, help="of PT to decode")
    parser.add_argument("--large", type=float, default=1000, help="megabytes of a file to open")
    parser.add_argument("--times", type=int, default=4, help="rounds of the workload")
    parser.add_argument("--no-save", action="store_true")
    arguments = parser.parse_args()
    result = measure(arguments)
    text = report.markdown(result)
    print(text)
    if not arguments.no_save:
        results = BENCH / "results"
        results.mkdir(exist_ok=True)
        (results / f"{result['date']}.md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
