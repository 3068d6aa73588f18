"""The perf.data file of a recording, as every back end begins it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from rtit.capture.filters import kernel_form
from rtit.capture.request import Plan
from rtit.perfdata import TimeConversion, Writer, rotate
from rtit.registers import FULL


@contextlib.contextmanager
def output_file(path: Path) -> Iterator[None]:
    """Keep an existing file as `path.old`; put it back if the recording does not start."""
    had = path.is_file()
    rotate(path)
    try:
        yield
    except BaseException:
        if path.is_file():
            path.unlink()
        if had:
            Path(f"{path}.old").rename(path)
        raise


def open_writer(plan: Plan, *, time: str, **facts: str) -> Writer:
    """The file that `plan` asks for; `time` and `facts` are what it says of itself besides."""
    model = plan.time
    return Writer(
        plan.path,
        config=plan.options.config,
        cpuid=FULL.cpuid_text,
        cmdline=plan.command,
        time=TimeConversion(model.time_shift, model.time_mult, model.time_zero),
        tsc_ctc=(model.tsc_numerator, model.tsc_denominator),
        max_nonturbo_ratio=model.max_non_turbo_ratio,
        filter=kernel_form(plan.filters),
        snapshot=plan.extent.snapshot is not None,
        facts={"profile": FULL.name, "time": time, "event": str(plan.options), **facts},
    )
