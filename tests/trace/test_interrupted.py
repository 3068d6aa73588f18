"""Ctrl-C interrupts the decoding of long code without packets."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

DECODES = """
import signal
from collections import defaultdict
from functools import partial
from rtit.errors import RtitError
from rtit.image import Image
from rtit.packets import PSB, encode
from rtit.trace import Decoder, decode

signal.signal(signal.SIGINT, signal.default_int_handler)
there = encode("FUP", ip_bytes=3, payload=0x1000) + encode("PSBEND")
mode = encode("MODE.Exec", csl=1, csd=0, iflag=0)
trace = PSB + mode + there + encode("TIP", ip_bytes=3, payload=0x2000)
image = Image(missing=defaultdict(partial(bytes, 4096)).__getitem__)  # no end, and no bytecode
(stream,) = decode(trace, image).streams
long = Image().add(0x1000, bytes(1 << 24))  # hours of it
(several,) = decode([trace * 50_000] * 4, long, jobs=2).streams
for _ in range(2):
    try:
        print("begins", flush=True)
        {how}
        print("ended", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.parametrize(
    "how",
    [
        "list(stream.rows())",
        "list(stream.instructions())",
        "stream.counts()",
        "Decoder(image).run(trace)",
        "list(several.rows())",
        "several.counts()",
        "several.totals()",
    ],
)
def test_signal_interrupts_packetless_code(how: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DECODES.format(how=how)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            for _ in range(2):
                assert process.stdout.readline() == "begins\n"
                process.send_signal(signal.SIGINT)
                assert process.stdout.readline() == "interrupted\n"
            assert process.wait() == 0
        finally:
            process.kill()  # else the failure waits for hours
