"""Whose code runs in which turn of a logical processor."""

from __future__ import annotations

from rtit._core import Space
from rtit.image import Image, Images, guest_kernel_pid, guest_process_pid
from rtit.sideband import Turn, TurnList
from rtit.sideband.scheduling import InGuest
from rtit.trace.recording.byte_source import Bytes
from rtit.trace.recording.settings import Settings
from rtit.trace.stream import Stream
from rtit.trace.threads.schedule import Shares, Whose

TURNS = [
    Turn(0, 0, 0),
    Turn(5, 10, 11),
    Turn(7, 20, 21),
    Turn(9, 30, 31),
    Turn(12, 10, 11),
    Turn(15, 10, 12),
]
"""Of nobody, of threads of two processes, and of one of which nothing else is known."""
TEN, TWENTY = Image(), Image()


def shares(turns: list[Turn], *, switch: int | None = None, can_part: bool = True) -> Shares:
    images = Images()
    images.set_image(10, TEN)
    images.set_image(20, TWENTY)
    return Shares(TurnList(turns), images, can_part, switch=switch)


def told(found: Shares) -> list[tuple[int, str | None, bool]]:
    """Since when, whose code ("": none, None: not followed), whether there is no doubt."""
    names: dict[Space, str] = {TEN.native: "ten", TWENTY.native: "twenty"}
    since, which, whose = found.native()
    rows = zip(memoryview(since), memoryview(which), strict=True)
    return [
        (time, None if (code := whose[at][0]) is None else names.get(code, ""), whose[at][1])
        for time, at in rows
    ]


def test_decoder_follows_all_threads() -> None:
    codes = ["", "ten", "twenty", "", "ten", "ten"]
    times = [turn.since for turn in TURNS]
    idle = [True, *[False] * 5]
    assert told(shares(TURNS)) == list(zip(times, codes, idle, strict=True))
    # the kernel shows where it switches
    all_of = told(shares(TURNS, switch=1, can_part=False))
    assert all_of == list(zip(times, codes, [True] * 6, strict=True))


def test_decoder_follows_selected_threads() -> None:
    codes = [None, "ten", None, None, "ten", None]
    found = shares(TURNS).of((10, 11))
    assert [code for _, code, _ in told(found)] == codes
    assert [idle for _, _, idle in told(found)] == [True, *[False] * 5]
    assert [code for _, code, _ in told(shares(TURNS).of((20, 21)))] == [
        *[None] * 2,
        "twenty",
        *[None] * 3,
    ]
    # one of whom there are no turns
    assert {code for _, code, _ in told(shares(TURNS).of((9, 99)))} == {None}
    # with the kernel in the trace the others are, too
    whole = shares(TURNS, can_part=False)
    assert told(whole.of((10, 11))) == told(whole)


def test_code_of_others_comes_in_the_order_of_its_first_turns() -> None:
    (nobody, nothing), *rest = shares(TURNS).others(TEN)
    assert (nobody, nothing in (TEN, TWENTY)) == (0, False)
    assert rest == [(20, TWENTY)]
    late = [Turn(1, 20, 21), Turn(2, 10, 11), Turn(3, 20, 21)]
    assert shares(late).others(Image()) == [(20, TWENTY), (10, TEN)]
    assert shares(late).of((10, 11)).others(Image()) == [(10, TEN)]
    assert shares(late).of((10, 11)).others(TEN) == []


def test_guests() -> None:
    """A thread that runs a machine, in which two processes take turns."""
    turns = [
        Turn(1, 10, 11, InGuest(7, 7)),
        Turn(2, 20, 21),
        Turn(3, 10, 11, InGuest(8, 8)),
        Turn(4, 10, 11, InGuest(7, 7)),
    ]
    seven, kernel = Image(), Image()
    for found in (shares(turns), shares(turns).of((10, 11))):
        found.images.set_image(guest_process_pid(10, 7), seven)
        found.images.set_image(guest_kernel_pid(10), kernel)
        _, which, whose = found.native()
        inside = [whose[at][2:] for at in memoryview(which)]
        own = (seven.native, kernel.native)
        assert inside == [own, (None, None), (None, kernel.native), own]
    assert found.others(TEN) == [(guest_process_pid(10, 7), seven), (guest_kernel_pid(10), kernel)]


def test_next_interval_belongs_to_another_thread() -> None:
    """Turns of one that runs a machine follow each other."""
    cut = [Turn(time, 10, 11, InGuest(time, time)) for time in (1, 2, 3)]
    whose = Whose(shares([*cut, Turn(4, 20, 21), Turn(5, 10, 11)]))
    following = []
    for now in range(6):
        whose._now = now
        following.append(whose._next)
    assert following == [1, 4, 4, 4, 5, 6]


def test_last_start_is_that_of_the_latest_interval() -> None:
    for tid, since in ((11, 12), (21, 7), (99, 0)):
        stream = Stream(Bytes(b""), TEN, Settings(), tid=tid, shares=shares(TURNS).of((0, tid)))
        assert stream.last_turn == since
    assert Stream(Bytes(b""), TEN, Settings()).last_turn == 0
