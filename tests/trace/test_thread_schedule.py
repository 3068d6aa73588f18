"""The code of each scheduling interval, and the threads that a scope selects."""

from __future__ import annotations

from rtit._core import Space
from rtit.image import Image, Images, guest_kernel_pid, guest_process_pid
from rtit.sideband import IntervalList, SchedulingInterval
from rtit.sideband.scheduling import GuestThread
from rtit.trace.recording.byte_source import MemorySource
from rtit.trace.recording.decoder_settings import Settings
from rtit.trace.stream import Stream
from rtit.trace.threads.schedule import ThreadAttribution, ThreadSchedule, ThreadScope

INTERVALS = [
    SchedulingInterval(0, 0, 0),
    SchedulingInterval(5, 10, 11),
    SchedulingInterval(7, 20, 21),
    SchedulingInterval(9, 30, 31),
    SchedulingInterval(12, 10, 11),
    SchedulingInterval(15, 10, 12),
]
"""The idle thread, threads of processes 10 and 20 with code, and one of a process without code."""
TEN, TWENTY = Image(), Image()


def scope(
    intervals: list[SchedulingInterval],
    *,
    switch_address: int | None = None,
    user_code_only: bool = True,
) -> ThreadScope:
    images = Images()
    images.set_image(10, TEN)
    images.set_image(20, TWENTY)
    return ThreadScope(
        ThreadSchedule(IntervalList(intervals), images, user_code_only, switch_address)
    )


def interval_code(found: ThreadScope) -> list[tuple[int, str | None, bool]]:
    """Return start, name of the code ("": unknown, None: skipped) and `has_certain_start` of
    each.
    """
    names: dict[Space, str] = {TEN.native: "ten", TWENTY.native: "twenty"}
    starts, indices, codes = found.native_interval_columns()
    rows = []
    for start, index in zip(memoryview(starts), memoryview(indices), strict=True):
        code = codes[index]
        name = None if code.user is None else names.get(code.user, "")
        rows.append((start, name, code.has_certain_start))
    return rows


def user_code(found: ThreadScope) -> list[str | None]:
    return [name for _, name, _ in interval_code(found)]


def test_scope_without_selection_decodes_all_intervals() -> None:
    codes = ["", "ten", "twenty", "", "ten", "ten"]
    starts = [each.start for each in INTERVALS]
    is_idle = [True, *[False] * 5]
    assert interval_code(scope(INTERVALS)) == list(zip(starts, codes, is_idle, strict=True))
    with_kernel = interval_code(scope(INTERVALS, switch_address=1, user_code_only=False))
    assert with_kernel == list(zip(starts, codes, [True] * 6, strict=True))


def test_selected_thread_skips_other_intervals_of_user_code() -> None:
    found = scope(INTERVALS).select_threads((10, 11))
    assert user_code(found) == [None, "ten", None, None, "ten", None]
    assert [certain for _, _, certain in interval_code(found)] == [True, *[False] * 5]
    assert user_code(scope(INTERVALS).select_threads((20, 21))) == [
        None,
        None,
        "twenty",
        None,
        None,
        None,
    ]
    without_intervals = scope(INTERVALS).select_threads((9, 99))
    assert set(user_code(without_intervals)) == {None}


def test_selected_thread_keeps_other_intervals_of_kernel_code() -> None:
    every = scope(INTERVALS, user_code_only=False)
    assert interval_code(every.select_threads((10, 11))) == interval_code(every)


def test_other_images_are_in_order_of_first_interval() -> None:
    (idle_pid, unknown), *rest = scope(INTERVALS).other_images(TEN)
    assert (idle_pid, unknown in (TEN, TWENTY)) == (0, False)
    assert rest == [(20, TWENTY)]
    late = [
        SchedulingInterval(1, 20, 21),
        SchedulingInterval(2, 10, 11),
        SchedulingInterval(3, 20, 21),
    ]
    assert scope(late).other_images(Image()) == [(20, TWENTY), (10, TEN)]
    assert scope(late).select_threads((10, 11)).other_images(Image()) == [(10, TEN)]
    assert scope(late).select_threads((10, 11)).other_images(TEN) == []


def test_intervals_have_code_of_guest_process_and_kernel() -> None:
    """A thread runs a virtual machine with two processes."""
    intervals = [
        SchedulingInterval(1, 10, 11, GuestThread(7, 7)),
        SchedulingInterval(2, 20, 21),
        SchedulingInterval(3, 10, 11, GuestThread(8, 8)),
        SchedulingInterval(4, 10, 11, GuestThread(7, 7)),
    ]
    seven, kernel = Image(), Image()
    for found in (scope(intervals), scope(intervals).select_threads((10, 11))):
        found.schedule.images.set_image(guest_process_pid(10, 7), seven)
        found.schedule.images.set_image(guest_kernel_pid(10), kernel)
        _, indices, codes = found.native_interval_columns()
        guests = [codes[index][2:] for index in memoryview(indices)]
        with_both = (seven.native, kernel.native)
        assert guests == [with_both, (None, None), (None, kernel.native), with_both]
        others = [(guest_process_pid(10, 7), seven), (guest_kernel_pid(10), kernel)]
        assert [each for each in found.other_images(TEN) if each[1] is not TWENTY] == others


def test_next_thread_skips_intervals_of_the_same_thread() -> None:
    """A thread that runs a virtual machine has consecutive intervals."""
    guests = [SchedulingInterval(time, 10, 11, GuestThread(time, time)) for time in (1, 2, 3)]
    found = scope([*guests, SchedulingInterval(4, 20, 21), SchedulingInterval(5, 10, 11)])
    attribution = ThreadAttribution(found.schedule)
    following = []
    for current in range(6):
        attribution._current = current
        following.append(attribution._next_interval_of_other_thread())
    assert following == [1, 4, 4, 4, 5, 6]


def test_last_interval_start_is_that_of_the_streams_thread() -> None:
    for tid, start in ((11, 12), (21, 7), (99, 0)):
        stream = Stream(
            MemorySource(b""),
            TEN,
            Settings(),
            tid=tid,
            thread_scope=scope(INTERVALS).select_threads((0, tid)),
        )
        assert stream.last_interval_start == start
    assert Stream(MemorySource(b""), TEN, Settings()).last_interval_start == 0
