"""Start a recording under QEMU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtit.capture.qemu.guest_program import GuestProgram, qemu_for_request
from rtit.capture.qemu.installation import QemuInstallation
from rtit.capture.qemu.plugin_protocol import plugin_settings
from rtit.capture.qemu.qemu_process import QemuProcess
from rtit.capture.request import TRUTH_FORMS, RecordPlan, RecordRequest
from rtit.errors import UsageError

if TYPE_CHECKING:
    from rtit.capture.qemu.session import QemuSession

_HASHES_WHEN_CUT = 2048
"""Instructions between two hashes of the truth where the trace may end before the program does."""
# What the trace unit in the plugin does not do: event tracing.
_UNSUPPORTED = 1 << 31


def start_qemu(
    request: RecordRequest,
    *,
    found: QemuInstallation | None = None,
    truth_by_instruction: bool = False,
) -> QemuSession:
    """Start a program under QEMU and return the recording under way.

    `found` is the QEMU to take (None: it is looked for). With `truth_by_instruction` the truth is
    what a callback of its own at each instruction tells, which is slow. Raises UsageError for what
    this back end cannot do, RecordError if the program cannot be started (exit codes 125, 126,
    127).
    """
    found = qemu_for_request(request, found)
    plan = request.plan()
    if plan.options.rtit_ctl & _UNSUPPORTED:
        raise UsageError("event tracing (the term event) needs the ptrace back end")
    if plan.window and truth_by_instruction:
        raise UsageError("a start or stop needs a truth by blocks")
    guest = GuestProgram.of(request)
    mode = "none" if request.truth is None else "instructions" if truth_by_instruction else "blocks"
    settings = plugin_settings(
        plan.options,
        mode,
        _min_joined_instructions(plan),
        plan.filters,
        plan.window,
        plan.size_limits,
        plan.time,
    )
    child = QemuProcess(found, settings, guest)
    try:
        return _begin_session(plan, found, child)
    except BaseException:
        child.abandon()
        raise


def _begin_session(plan: RecordPlan, found: QemuInstallation, child: QemuProcess) -> QemuSession:
    # QEMU loads meanwhile
    from rtit.capture.clocks import describe_time_model
    from rtit.capture.qemu.session import QemuSession
    from rtit.capture.qemu.sink import QemuRecordingSink
    from rtit.capture.recording_file import open_writer, replace_output_file

    with replace_output_file(plan.path):
        writer = open_writer(
            plan,
            time=f"{describe_time_model(plan.time)}, a clock a thread",
            backend=f"qemu-user {found.version}",
        )
        sink = QemuRecordingSink(writer, plan.request.truth, plan.size_limits, plan.time)
        session = QemuSession(plan, sink, child)
        try:
            session.begin()
        except BaseException:
            session.abandon()
            raise
    return session


def _min_joined_instructions(plan: RecordPlan) -> int:
    """Instructions that the truth joins into one run, at least."""
    joined = 1 if plan.filters else TRUTH_FORMS[plan.request.truth_form or "hashes"]
    return joined if plan.size_limits.max_size is None else min(joined, _HASHES_WHEN_CUT)
