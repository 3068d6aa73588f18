"""An AFL target that is a program as it is: a fork server which has rtit count each run's edges.
Run as `forkserver.py PROGRAM [ARGUMENTS]`.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

from rtit.coverage.formats.blocks import SIZE

CONTROL, STATUS = 198, 199


def shared_map() -> ctypes.Array[ctypes.c_ubyte]:
    """Return AFL's map in shared memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
    address = libc.shmat(int(os.environ["__AFL_SHM_ID"]), None, 0)
    return (ctypes.c_ubyte * SIZE).from_address(address)


def main() -> None:
    """Serve until AFL exits."""
    counters = shared_map()
    rtit = [sys.executable, "-m", "rtit"]
    folder = Path(os.environ["FORKSERVER_FOLDER"])
    data, out = str(folder / "data"), str(folder / "map")
    os.write(STATUS, bytes(4))
    while len(os.read(CONTROL, 4)) == 4:
        os.write(STATUS, os.getpid().to_bytes(4, "little"))
        ran = subprocess.run(
            [*rtit, "record", "-q", "--backend", "qemu", "-o", data, "--", *sys.argv[1:]],
            check=False,
        )
        command = [*rtit, "coverage", data, "--format", "afl", "-o", out]
        subprocess.run(command, check=True)
        counters[:] = [*Path(out).read_bytes()]
        os.write(STATUS, (ran.returncode << 8).to_bytes(4, "little"))


if __name__ == "__main__":
    main()
