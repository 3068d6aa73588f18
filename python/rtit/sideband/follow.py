"""One walk over the records, for all who learn from them."""

from __future__ import annotations

from rtit.image import Images
from rtit.perfdata import PerfData
from rtit.sideband import spaces
from rtit.sideband.order import in_order
from rtit.sideband.threads import Threads


def follow(data: PerfData, images: Images) -> Threads:
    """Bring `images` through the times of a recording; returns its threads."""
    threads = Threads(data)
    for time, record in in_order(data):
        spaces.apply(images, time, record)
        threads.apply(record)
        threads.endings.apply(time, record)
        threads.processes.apply(time, record)
        threads.turns.apply(time, record)
        threads.losses.apply(record)
    return threads
