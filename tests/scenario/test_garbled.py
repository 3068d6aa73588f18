"""Scenarios with changed, moved or missing words run, or are rejected with one message."""

from __future__ import annotations

import random
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from rtit.errors import ScenarioError
from rtit.packets import NAMES
from rtit.scenario import parse, run, shipped_scenarios
from rtit.scenario.vocabulary import OTHER_SETTINGS, event_signatures, setting_fields
from support.properties import examples

TEXTS = [path.read_text() for path in shipped_scenarios()]
FIELDS = [f"{name}=" for fields in setting_fields().values() for name in fields]
ARGUMENTS = [f"{name}=" for signature in event_signatures().values() for name in signature.named]
NUMBERS = [
    *("0", "1", "2", "-1", "255", "256", "0x1000", "0xffff_ffff", "0x7fffffffffff", "4096"),
    *("0x800000000000", "0xffffffffffffffff", "0x10000000000000000", "1e3", "08", "\u0661", ""),
]
WORDS = [
    *event_signatures(),
    *setting_fields(),
    *OTHER_SETTINGS,
    *NAMES,
    *FIELDS,
    *ARGUMENTS,
    *NUMBERS,
    *("True", "False", "...", "=", "= 02 82", "#GP", "#", ":", "1:2=3", "at_1=5", "CTL:0x2009"),
    *("full", "skylake", "root", "nonroot", "late", "early", "long", "\u2028", "\x00", "\udcff"),
]

Change = Callable[[list[list[str]], random.Random], None]


def put_word(lines: list[list[str]], chance: random.Random) -> None:
    line = chance.choice(lines)
    line[chance.randrange(len(line) + 1) : chance.randrange(len(line) + 1)] = [chance.choice(WORDS)]


def put_value(lines: list[list[str]], chance: random.Random) -> None:
    line = chance.choice(lines)
    at = chance.randrange(len(line))
    name, equals, _ = line[at].partition("=")
    line[at] = f"{name}={chance.choice(NUMBERS)}" if equals else chance.choice(NUMBERS)


def drop_word(lines: list[list[str]], chance: random.Random) -> None:
    line = chance.choice(lines)
    del line[chance.randrange(len(line))]
    line.append("")


def drop_line(lines: list[list[str]], chance: random.Random) -> None:
    lines[chance.randrange(len(lines))] = [""]


def repeat_line(lines: list[list[str]], chance: random.Random) -> None:
    lines.insert(chance.randrange(len(lines) + 1), list(chance.choice(lines)))


def swap_lines(lines: list[list[str]], chance: random.Random) -> None:
    first, second = chance.randrange(len(lines)), chance.randrange(len(lines))
    lines[first], lines[second] = lines[second], lines[first]


def put_character(lines: list[list[str]], chance: random.Random) -> None:
    line = chance.choice(lines)
    at = chance.randrange(len(line))
    column = chance.randrange(len(line[at]) + 1)
    line[at] = line[at][:column] + chance.choice("=:,#- \t0xT.\u00e9\r") + line[at][column:]


CHANGES: list[Change] = [
    *(put_word, put_value, put_value, drop_word, drop_line, repeat_line, swap_lines),
    put_character,
]


def attempt(text: str) -> None:
    refusal = "garbled:"
    try:
        run(parse(text, "garbled"))
    except ScenarioError as error:
        refusal = str(error)
    assert refusal.startswith("garbled:")
    assert "\n" not in refusal


@examples(400)
@given(st.sampled_from(TEXTS), st.integers(1, 6), st.randoms(use_true_random=False))
def test_mutated_scenarios_run_or_raise_scenario_errors(
    text: str, count: int, chance: random.Random
) -> None:
    other = chance.choice(TEXTS)
    source = chance.choice((text, text, f"{text}\n{other}"))
    lines = [line.split(" ") for line in source.splitlines()]
    for _ in range(count):
        chance.choice(CHANGES)(lines, chance)
    attempt("\n".join(" ".join(line) for line in lines))


@given(st.lists(st.lists(st.sampled_from(WORDS), max_size=6), max_size=8))
def test_random_words_run_or_raise_scenario_errors(lines: list[list[str]]) -> None:
    attempt("\n".join(" ".join(line) for line in lines))


@given(st.text(max_size=200))
def test_any_text_runs_or_raises_scenario_errors(text: str) -> None:
    attempt(text)
