"""What the topics of the unit share: its state, what is configured, and the packets of the event at
hand.
"""

from __future__ import annotations

from collections.abc import Callable

from rtit.registers import Profile
from rtit.unit.compression import ip_encodings
from rtit.unit.enables import Configuration
from rtit.unit.parameters import Parameters
from rtit.unit.state import State
from rtit.unit.time_model import TimeModel


class Core:
    """The common ground of generator, timing and PSB.

    `packets` collects the whole packets of one event; the unit writes them out when the event is
    over; `put` takes one, or drops it in an overflow. `tnt_full` is the value of State.tnt, stop
    bit included, from which a TNT is sent; `cyc_limit` the cycles after which a CYC is sent by
    itself; `bounded`: the internal buffer has a size; `defers`: TIPs wait; `errata`: those of
    `registers.errata` that are on; `shapes`: packets are padded or held back on their way out.
    """

    __slots__ = (
        "bounded",
        "configuration",
        "cyc_limit",
        "defers",
        "errata",
        "ip_encodings",
        "packets",
        "parameters",
        "profile",
        "put",
        "shapes",
        "state",
        "time",
        "tnt_full",
    )

    def __init__(self, profile: Profile, time: TimeModel, parameters: Parameters) -> None:
        self.profile = profile
        self.errata = profile.errata
        self.time = time
        self.parameters = parameters
        self.configuration = Configuration()
        self.state = State()
        self.packets = bytearray()
        self.put: Callable[[bytes], None] = self.packets.extend
        self.ip_encodings = ip_encodings(parameters.ip_compression, profile.linear_width)
        self.tnt_full = 1 << parameters.tnt_results
        self.shapes = parameters.pad_align > 1 or parameters.held_bytes > 0
        self.cyc_limit = 0
        self.bounded = self.defers = False
