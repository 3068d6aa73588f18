"""Start a recording under QEMU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtit.capture.qemu.installation import QemuInstallation
from rtit.capture.qemu.plugin_protocol import plugin_settings
from rtit.capture.qemu.qemu_process import GuestProgram, QemuProcess, qemu_for_request
from rtit.capture.request import TRUTH_FORMS, RecordPlan, RecordRequest
from rtit.errors import UsageError

if TYPE_CHECKING:
    from rtit.capture.qemu.session import QemuSession

_HASHES_WHEN_CUT = 2048
"""Instructions between two hashes of the truth if a size limit may end the trace early."""
_UNSUPPORTED = 1 << 31
"""IA32_RTIT_CTL.EventEn: the trace unit in the plugin has no event tracing."""


def start_qemu(
    request: RecordRequest,
    *,
    installation: QemuInstallation | None = None,
    truth_by_instruction: bool = False,
) -> QemuSession:
    """Start a program under QEMU and return its session.

    `installation` None: QEMU is searched for. With `truth_by_instruction` a separate callback at
    each instruction writes the truth, which is slow. Raises UsageError for requests that this back
    end does not support, RecordError if the program cannot be started (exit codes 125, 126, 127).
    """
    installation = qemu_for_request(request, installation)
    plan = request.plan_recording()
    if plan.options.rtit_ctl & _UNSUPPORTED:
        raise UsageError("event tracing (the term 'event') needs the ptrace back end")
    if plan.window and truth_by_instruction:
        raise UsageError("--start-at and --stop-at do not work with truth_by_instruction")
    guest = GuestProgram.from_request(request)
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
    qemu = QemuProcess(installation, settings, guest)
    try:
        return _begin_session(plan, installation, qemu)
    except BaseException:
        qemu.abandon()
        raise


def _begin_session(
    plan: RecordPlan, installation: QemuInstallation, qemu: QemuProcess
) -> QemuSession:
    # Imported here: QEMU starts at the same time.
    from rtit.capture.options import describe_time_model
    from rtit.capture.qemu.session import QemuSession
    from rtit.capture.qemu.sink import QemuRecordingSink
    from rtit.capture.store.recording_writer import open_writer, replace_output_file

    with replace_output_file(plan.path):
        writer = open_writer(
            plan,
            time=f"{describe_time_model(plan.time)}, one clock for each thread",
            backend=f"qemu-user {installation.version}",
        )
        sink = QemuRecordingSink(writer, plan.request.truth, plan.size_limits, plan.time)
        session = QemuSession(plan, sink, qemu)
        try:
            session.wait_for_start()
        except BaseException:
            session.abandon()
            raise
    return session


def _min_joined_instructions(plan: RecordPlan) -> int:
    """Return the least number of instructions in a run of the truth file."""
    joined = 1 if plan.filters else TRUTH_FORMS[plan.request.truth_form or "hashes"]
    return joined if plan.size_limits.max_size is None else min(joined, _HASHES_WHEN_CUT)
