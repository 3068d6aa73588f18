"""Who ran where: what the records beside a trace tell of threads and memory over time.

A stage of its own: `perfdata` turns bytes into records, this turns records into `Threads` and into
the address spaces of `image.Images`, and a trace's streams are decoded with these. `order` has the
records in order of time, `threads` and `spaces` have one `apply` each.
"""

from __future__ import annotations

from rtit.sideband.process_records import Threads, follow
from rtit.sideband.processes import Ended, Loss, Losses, Process
from rtit.sideband.scheduling import Turn, TurnList, Turns

__all__ = ["Ended", "Loss", "Losses", "Process", "Threads", "Turn", "TurnList", "Turns", "follow"]
