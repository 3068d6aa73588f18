"""Create the perf.data file of a recording."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from rtit.capture.request import RecordPlan
from rtit.errors import RecordError
from rtit.perfdata import SwitchRecords, TimeConversion, Writer, needs_rotation, rotate_recording
from rtit.perfdata.filters import format_address_filters
from rtit.registers import FULL


@contextlib.contextmanager
def replace_output_file(path: Path) -> Iterator[None]:
    """Rename an existing file to `path.old`; undo this if the body raises.

    An older `path.old` is removed after success only. Raises RecordError if renaming fails.
    """
    had, old, oldest = needs_rotation(path), Path(f"{path}.old"), Path(f"{path}.old.{os.getpid()}")
    had_old = had and needs_rotation(old)
    try:
        if had_old:
            old.rename(oldest)
    except OSError as error:
        raise RecordError(f"cannot rename {old}: {error.strerror}") from error
    try:
        rotate_recording(path)
        yield
    except BaseException:
        if had and needs_rotation(old):
            old.replace(path)
        elif not had and path.is_file():
            path.unlink()
        if had_old:
            oldest.rename(old)
        raise
    if had_old:
        oldest.unlink()


def open_writer(
    plan: RecordPlan, *, time: str, switches: SwitchRecords = SwitchRecords.NONE, **facts: str
) -> Writer:
    """Create the perf.data file of `plan`; `time` and `facts` are added to its header."""
    model = plan.time
    return Writer(
        plan.path,
        config=plan.options.config,
        cpuid=FULL.cpuid_text,
        cmdline=plan.command,
        time=TimeConversion(model.time_shift, model.time_mult, model.time_zero),
        tsc_ctc=(model.tsc_numerator, model.tsc_denominator),
        max_nonturbo_ratio=model.max_non_turbo_ratio,
        filter=format_address_filters(plan.filters),
        snapshot=plan.size_limits.snapshot is not None,
        switches=switches,
        facts={"profile": FULL.name, "time": time, "event": str(plan.options), **facts},
    )
