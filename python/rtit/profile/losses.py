"""What a profile lacks, as sentences: lost bytes, code in no file, limits of counters.

This module does not load NumPy: `rtit stat -- PROGRAM` waits for signals in its main thread, and
the threads of NumPy's BLAS would take them.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class ProfileLosses:
    """What the binaries of a profile lack."""

    kernel: int = 0
    """Instructions in kernel code."""
    no_file: int = 0
    """Instructions in no file: JIT code, the vDSO."""
    changed_code: int = 0
    """Instructions where the file has other code now."""
    bytes_lost: int = 0
    """Bytes of PT that were not decoded exactly."""
    bytes: int = 0
    """All bytes of PT."""
    problems: list[str] = field(default_factory=list)
    """A sentence for each file with unknown code."""
    deep_calls: int = 0
    """Calls beyond the limits of depth and contexts."""
    calls_beyond_pairs: int = 0
    """Calls between locations beyond the first `max_pairs` pairs."""
    max_pairs: int = 0
    uncounted_runs: int = 0
    """Instruction runs beyond the limit of counters."""
    uncounted_transfers: int = 0
    """Transfers beyond the limit of counters."""
    incomplete: str | None = None
    """Why the recording ends early, if it does."""
    unknown_loops: list[str] = field(default_factory=list)
    """A sentence for each loop without packets, whose iterations PT does not count."""
    loop_instructions: int = 0
    """Instructions of further iterations, which only the total and the threads have."""

    @property
    def has_gaps(self) -> bool:
        """Whether anything that was recorded is missing from the counts."""
        found = self.bytes_lost or self.problems or self.changed_code or self.incomplete
        return bool(found or self.uncounted_runs or self.uncounted_transfers or self.unknown_loops)

    @property
    def instructions_in_no_file(self) -> int:
        """Instructions that ran in no file of their process."""
        return self.kernel + self.no_file

    def describe_call_losses(self) -> list[str]:
        """Return a sentence for each limit of calls that was exceeded."""
        found, why = [], "their instructions count as instructions of a caller"
        if self.deep_calls:
            found.append(f"{self.deep_calls:,} calls are too deep or in too many contexts: {why}")
        if self.calls_beyond_pairs:
            found.append(
                f"{self.calls_beyond_pairs:,} calls are between more than {self.max_pairs:,} pairs "
                f"of caller and callee: {why} (--max-edges N keeps half as many pairs)"
            )
        return found

    def describe_counter_losses(self) -> list[str]:
        """Return a sentence for each limit of counters that was exceeded."""
        if not (self.uncounted_runs or self.uncounted_transfers):
            return []
        from rtit.trace.tables.counts import UNCOUNTED_EXPLANATION

        found = []
        if self.uncounted_runs:
            found.append(
                f"{self.uncounted_runs:,} runs of instructions are {UNCOUNTED_EXPLANATION}"
            )
        if self.uncounted_transfers:
            found.append(f"{self.uncounted_transfers:,} transfers are {UNCOUNTED_EXPLANATION}")
        return found

    def describe_losses(self, *, unmapped: bool = True) -> list[str]:
        """Return a sentence for each kind of loss; with `unmapped`, also for code in no file."""
        found = []
        if self.kernel and unmapped:
            found.append(f"{self.kernel:,} instructions ran in the kernel")
        if self.no_file and unmapped:
            found.append(f"{self.no_file:,} instructions ran in no file (JIT code, the vdso)")
        if self.changed_code:
            found.append(f"{self.changed_code:,} instructions ran where a file has no such code")
        if self.bytes_lost:
            share = self.bytes_lost / self.bytes
            found.append(
                f"{self.bytes_lost:,} of {self.bytes:,} bytes of PT ({share:.1%}) could not be "
                "decoded exactly"
            )
        found.extend(self.problems)
        found.extend(self.describe_call_losses())
        found.extend(self.describe_counter_losses())
        found.extend(self.unknown_loops)
        if self.loop_instructions:
            found.append(
                f"{self.loop_instructions:,} instructions of further loop iterations are in the "
                "total of the thread, but in no other count"
            )
        if self.incomplete:
            found.append(f"incomplete: {self.incomplete}")
        return found
