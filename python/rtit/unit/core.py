"""What every topic of the unit works on: one value with the state, what is configured, where the
bytes go, and the packets of the event at hand.

`TraceUnit` in `unit` is this with the events that it traces.
"""

from __future__ import annotations

from collections.abc import Callable

from rtit.registers import Profile, RegisterFile
from rtit.unit.compression import allowed_ip_encodings
from rtit.unit.configuration import Configuration
from rtit.unit.memory import Memory
from rtit.unit.output import Output
from rtit.unit.parameters.table import Parameters
from rtit.unit.state import NOTHING_KNOWN, DecoderKnowledge, State
from rtit.unit.time_model import TimeModel


class Unit:
    """The first argument of every function that traces.

    What it does lies in `state`, `registers`, `output` and `time`, which a snapshot holds;
    `configuration` is `registers` decoded. `on_pmi`, if set, is called for each ToPA PMI, and
    `on_branch_trace` with (from, to, stored) for each branch that BTS stores or BTM sends.

    `packets` collects the whole packets of one event; `packets.stream.commit` writes them out when
    the event is over; `put` takes one, or drops it in an overflow. `pending_knowledge` is what State.told
    will be once they are out.

    Derived from the parameters and the configuration: `tnt_full` is the value of State.tnt, stop
    bit included, from which a TNT is sent; `cyc_limit` the cycles after which a CYC is sent by
    itself; `bounded`: the internal buffer has a size; `defers`: TIPs wait; `errata`: those of
    `registers.errata` that are on; `shapes`: packets are padded or held back on their way out.
    """

    __slots__ = (
        "configuration",
        "cyc_limit",
        "defers_tips",
        "emit",
        "errata",
        "has_bounded_buffer",
        "ip_encodings",
        "on_branch_trace",
        "on_pmi",
        "output",
        "packets",
        "pads_or_holds_back",
        "parameters",
        "pending_knowledge",
        "profile",
        "registers",
        "state",
        "time",
        "tnt_full",
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
        self.state = State()
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
