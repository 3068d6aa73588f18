"""Event options as perf spells them."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtit.capture.options import TERMS, PtOptions
from rtit.errors import UsageError
from rtit.registers import CTL


# attr.config of real perf.data files, with the event that their command line names.
@pytest.mark.parametrize(
    ("event", "config"),
    [
        ("intel_pt//u", 0x300E601),  # perf 4.15 on Skylake
        ("intel_pt/mtc=0,mtc_period=0,psb_period=0/u", 0x2401),  # Broadwell's default
        ("intel_pt/config=0x2401/u", 0x2401),
        ("intel_pt/pt=0,branch=0,mtc=0,mtc_period=0,psb_period=0/u", 0x400),
    ],
)
def test_attr_config_equals_that_of_perf(event: str, config: int) -> None:
    assert PtOptions.parse(event).attr_config == config


def test_term_without_value_is_one_and_last_term_wins() -> None:
    options = PtOptions.parse("intel_pt/cyc,noretcomp,cyc_thresh=5,tsc=0,cyc_thresh=0x2/u")
    assert (options.cyc, options.noretcomp, options.cyc_thresh, options.tsc) == (1, 1, 2, 0)


@pytest.mark.parametrize("event", ["intel_pt//u", "intel_pt//:u", "intel_pt:u", " intel_pt/tsc/u "])
def test_default_event_spellings_are_equal(event: str) -> None:
    assert PtOptions.parse(event) == PtOptions()


# The register model was typed from Table 33-6 by itself; perf's terms are the same bits.
@pytest.mark.parametrize(
    ("term", "field"),
    [
        ("cyc", "CYCEn"),
        ("pwr_evt", "PwrEvtEn"),
        ("fup_on_ptw", "FUPonPTW"),
        ("mtc", "MTCEn"),
        ("tsc", "TSCEn"),
        ("noretcomp", "DisRETC"),
        ("ptw", "PTWEn"),
        ("branch", "BranchEn"),
        ("mtc_period", "MTCFreq"),
        ("cyc_thresh", "CycThresh"),
        ("psb_period", "PSBFreq"),
        ("event", "EventEn"),
        ("notnt", "DisTNT"),
    ],
)
def test_event_terms_are_bits_of_their_rtit_ctl_fields(term: str, field: str) -> None:
    low, width = TERMS[term]
    row = next(row for row in CTL.fields if row.name == field)
    assert (row.low, row.high) == (low, low + width - 1)


def test_rtit_ctl_has_user_set_and_trace_en_clear() -> None:
    assert PtOptions().rtit_ctl == 0x300E608
    assert PtOptions(pt=0, branch=0, mtc=0, mtc_period=0, psb_period=0).rtit_ctl == 0x2408


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ("intel_pt//", "only user mode"),
        ("intel_pt//k", "only user mode"),
        ("intel_pt//uk", "only user mode"),
        ("intel_pt//ux", "unknown modifier 'x'.*valid modifiers: u, k"),
        ("intel_pt/cycs/u", "unknown term 'cycs' .did you mean 'cyc'.*mtc_period"),
        ("intel_pt/mtc_period=16/u", "mtc_period must be from 0 to 15, not 16"),
        ("intel_pt/tsc=2/u", "tsc must be from 0 to 1, not 2"),
        ("intel_pt/tsc=yes/u", "tsc needs a number, not 'yes'"),
        ("intel_pt/tsc=/u", "tsc needs a number, not ''"),
        ("intel_pt/tsc,/u", "unknown term ''"),
        ("intel_pt/config=0x4/u", "bits that belong to no term: 0x4"),
        ("intel_pts//u", "unknown event 'intel_pts' .did you mean 'intel_pt'"),
        ("cycles:u", "unknown event 'cycles'; the only event"),
        ("intel_pt/tsc/mtc/u", "is not an event"),
        ("", "is not an event"),
    ],
)
def test_parse_errors_list_valid_values(event: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PtOptions.parse(event)


def test_kernel_events_parse_without_user_only() -> None:
    assert PtOptions.parse("intel_pt//", user_only=False).kernel
    assert not PtOptions.parse("intel_pt//k", user_only=False).user


_fields = st.fixed_dictionaries(
    {term: st.integers(0, (1 << width) - 1) for term, (_, width) in TERMS.items()}
)


@given(_fields, st.sampled_from([(True, False), (False, True), (True, True)]))
def test_options_round_trip_through_text_and_config(
    values: dict[str, int], modes: tuple[bool, bool]
) -> None:
    user, kernel = modes
    options = PtOptions(**values, user=user, kernel=kernel)
    assert PtOptions.parse(str(options), user_only=False) == options
    assert PtOptions.from_config(options.attr_config, user=user, kernel=kernel) == options


@given(st.text(alphabet="intel_pt/,=u0x9 mtcycbranch:k", max_size=40))
def test_any_text_parses_or_raises_usage_error(text: str) -> None:
    with suppress(UsageError):
        PtOptions.parse(text)
