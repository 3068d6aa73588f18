"""Feeds changed copies of good files to one reader for some seconds.

    python fuzz/python/run_target.py READER SECONDS [--seed N]
    python fuzz/python/run_target.py READER --replay FILE

An input is saved in fuzz/artifacts/python-READER if the reader raises an undocumented error, takes
more than 10 seconds of CPU time, or waits for 10 minutes. The exit code is 1 if there was one.
Ctrl-C ends the run early with the findings so far.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import resource
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from types import FrameType

import files
import generated_inputs
import readers
from mutations import Mutator

from rtit.errors import RtitError

HERE = Path(__file__).resolve().parent.parent
READERS = readers.READERS | generated_inputs.READERS | files.READERS
SHARED_CORPORA = {
    "packets": "packet",
    "events": "events",
    "perfdata": "perfdata",
    "trace": "perfdata",
}
"""Readers with the corpus of another target; others have one of their own name."""
LIMIT = 200_000
MEMORY = 2 << 30
MAX_CPU_SECONDS = 10.0
"""Seconds of CPU time: on a busy machine wall time says little."""
MAX_WALL_SECONDS = 600.0
"""Wall seconds, for a reader that waits without CPU time."""


class Hang(BaseException):
    """A reader exceeded its time; no `except Exception` hides this."""


def attempt(reader: readers.Reader, data: bytes, folder: Path) -> tuple[bool, str]:
    """Return whether the input was read to its end, and the failure, if any."""
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, MAX_WALL_SECONDS)
    try:
        reader(data, folder)
    except RtitError as error:
        return False, "" if str(error) else "an error without a message"
    except KeyboardInterrupt:
        raise
    except BaseException:  # a panic of the native module is no Exception
        return False, traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    return True, ""


def complain(number: int, frame: FrameType | None) -> None:
    """Handle an alarm."""
    cpu = number == signal.SIGPROF
    limit = (
        f"{MAX_CPU_SECONDS:.0f} seconds of CPU time" if cpu else f"{MAX_WALL_SECONDS:.0f} seconds"
    )
    raise Hang(f"more than {limit}")


def kind_of(failure: str) -> str:
    """Return a key that is equal for failures with the same last line of code and error."""
    lines = failure.strip().splitlines()
    places = [line for line in lines if line.lstrip().startswith("File ")]
    return f"{places[-1].strip() if places else ''}: {lines[-1].split(':')[0]}"


def save(name: str, data: bytes) -> Path:
    """Save an input that failed."""
    folder = HERE / "artifacts" / f"python-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"crash-{hashlib.sha1(data).hexdigest()}"
    path.write_bytes(data)
    return path


def fuzz(name: str, seconds: float, number: int, folder: Path) -> int:
    """Run until the time is over; return the exit code."""
    reader = READERS[name]
    folders = (HERE / "corpus" / SHARED_CORPORA.get(name, name), HERE / "kept" / name)
    seeds = [path.read_bytes() for each in folders for path in sorted(each.glob("*"))]
    if not seeds:
        print("no seeds: run fuzz/python/seeds.py first", file=sys.stderr)
    mutator = Mutator(seeds, LIMIT, number)
    known: dict[str, int] = {}
    runs = read = 0
    end = time.monotonic() + seconds
    waiting = list(seeds)
    with contextlib.suppress(KeyboardInterrupt):
        while time.monotonic() < end:
            data = waiting.pop() if waiting else mutator.make()
            whole, failure = attempt(reader, data, folder)
            runs += 1
            read += whole
            if whole and runs % 16 == 0:
                mutator.keep(data)
            if failure:
                kind = kind_of(failure)
                known[kind] = known.get(kind, 0) + 1
                if known[kind] == 1:
                    print(f"{save(name, data)}\n{failure}", flush=True)
    print(f"{name}: {runs} inputs, {read} read to the end, {len(known)} kinds of failure")
    for kind, count in known.items():
        print(f"  {count} x {kind}")
    return int(bool(known))


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description="Feeds changed copies of good files to a reader.")
    parser.add_argument("reader", choices=READERS)
    parser.add_argument("seconds", type=float, nargs="?", default=60.0)
    parser.add_argument("--seed", type=int, default=0, help="number of the sequence of inputs")
    parser.add_argument("--replay", type=Path, help="run one input only")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGALRM, complain)
    signal.signal(signal.SIGPROF, complain)
    with tempfile.TemporaryDirectory() as folder:
        if options.replay is None:
            return fuzz(options.reader, options.seconds, options.seed, Path(folder))
        reader = READERS[options.reader]
        _, failure = attempt(reader, options.replay.read_bytes(), Path(folder))
        print(failure or "no failure")
        return int(bool(failure))


if __name__ == "__main__":
    sys.exit(main())
