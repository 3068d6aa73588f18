"""The value that every event function works on: state, configuration, output and pending packets.

`TraceUnit` in `trace_unit` adds the events as methods.
"""

from __future__ import annotations

from collections.abc import Callable

from rtit.registers import Profile, RegisterFile
from rtit.unit.compression import allowed_ip_encodings
from rtit.unit.configuration import Configuration
from rtit.unit.memory import Memory
from rtit.unit.output import Output
from rtit.unit.parameters.table import Parameters
from rtit.unit.state import NOTHING_KNOWN, DecoderKnowledge, UnitState
from rtit.unit.time_model import TimeModel


class Unit:
    """The first parameter of every event function.

    A snapshot holds `state`, `registers`, `output` and `time`. `configuration` is `registers`
    decoded. `on_pmi`, if set, is called for each ToPA PMI; `on_branch_trace` with (from, to,
    stored) for each branch that BTS stores or BTM sends.

    `packets` collects the packets of the current event; `stream.commit` writes them at its end.
    `emit` appends one packet, or discards it during an overflow. `pending_knowledge` is the value
    that State.decoder_knowledge will have once these packets have been written.

    Derived from parameters and configuration: `tnt_full` is the value of State.tnt (with the stop
    bit) at which a TNT is sent; `cyc_limit` the number of cycles after which a stand-alone CYC is
    sent; `has_bounded_buffer`: the internal buffer has a size, so it can overflow; `defers_tips`:
    TIPs wait for a full TNT; `errata`: the active ones of `registers.errata`; `pads_or_holds_back`:
    bytes are padded or held back before the output.
    """

    __slots__ = (
        *("configuration", "cyc_limit", "defers_tips", "emit", "errata", "has_bounded_buffer"),
        *("ip_encodings", "on_branch_trace", "on_pmi", "output", "packets", "pads_or_holds_back"),
        *("parameters", "pending_knowledge", "profile", "registers", "state", "time", "tnt_full"),
    )

    def __init__(
        self,
        profile: Profile,
        memory: Memory,
        time: TimeModel,
        parameters: Parameters,
        fabric: Callable[[bytes], None] | None = None,
    ) -> None:
        self.profile = profile
        self.errata = profile.errata
        self.time = time
        self.parameters = parameters
        self.configuration = Configuration()
        self.state = UnitState()
        self.registers = RegisterFile()
        self.output = Output(
            memory,
            profile=profile,
            fabric=fabric,
            follow=parameters.topa_follow,
            pmi_margin=parameters.topa_pmi_margin,
            smrr_policy=parameters.smrr_policy,
            cache=parameters.topa_cache,
        )
        self.on_pmi: Callable[[], None] | None = None
        self.on_branch_trace: Callable[[int, int, bool], None] | None = None
        self.packets = bytearray()
        self.emit: Callable[[bytes], None] = self.packets.extend
        self.pending_knowledge: DecoderKnowledge = NOTHING_KNOWN
        self.ip_encodings = allowed_ip_encodings(parameters.ip_compression, profile.linear_width)
        self.tnt_full = 1 << parameters.tnt_results
        self.pads_or_holds_back = parameters.pad_align > 1 or parameters.held_bytes > 0
        self.cyc_limit = 0
        self.has_bounded_buffer = self.defers_tips = False

    @property
    def stopped(self) -> bool:
        """IA32_RTIT_STATUS.Stopped."""
        return self.state.stopped

    @property
    def error(self) -> bool:
        """IA32_RTIT_STATUS.Error; `output.state.error` says why."""
        return self.state.error
