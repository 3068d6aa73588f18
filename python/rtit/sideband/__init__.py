"""Who ran where: what the records beside a trace tell of threads and memory over time.

A stage of its own: `perfdata` turns bytes into records, this turns records into `Threads` and into
the address spaces of `image.Images`, and a trace's streams are decoded with these. `order` has the
records in order of time, `threads` and `spaces` have one `apply` each.
"""

from __future__ import annotations

from rtit.sideband.endings import Ended
from rtit.sideband.follow import follow
from rtit.sideband.losses import Loss, Losses
from rtit.sideband.processes import Process
from rtit.sideband.threads import Threads
from rtit.sideband.turn_list import Turn, TurnList
from rtit.sideband.turns import Turns

__all__ = ["Ended", "Loss", "Losses", "Process", "Threads", "Turn", "TurnList", "Turns", "follow"]
