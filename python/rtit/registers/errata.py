"""Known errata of PT as switches, and which processors have them.

Errata show in streams of real processors. A profile has none unless asked for: see `Profile.errata`
and `Profile.with_errata`. BDM106 acts in the rules for WRMSR, the others in the trace unit. Two do
not act (`Erratum.acts` is False), because no public document says what they write: the wrong target
of BDM64, the corrupt values and the stray byte of SKZ84. An erratum that occurs now and then on a
real processor occurs each time here; APL11 only where TraceEn is cleared, SKL168 only for the CYC.
"""

from __future__ import annotations

from dataclasses import dataclass

_LIBIPT = "libipt: the models in pt_cpu_errata (pt_config.c), the text in struct pt_errata"
_LINUX = "Linux: pt_pmu_hw_init (arch/x86/events/intel/pt.c)"

_BROADWELL = frozenset((6, model) for model in (0x3D, 0x47, 0x4F, 0x56))
_SKYLAKE = frozenset((6, model) for model in (0x4E, 0x5E, 0x8E, 0x9E, 0xA5, 0xA6))
_SERVERS = frozenset((6, model) for model in (0x55, 0x6A, 0x6C))
_LATER_SERVERS = frozenset((6, model) for model in (0x8F, 0xAD, 0xAE, 0xCF)) | {(0x13, 0x01)}
_ICE_LAKE = frozenset((6, model) for model in (0x66, 0x7D, 0x7E, 0x8C, 0x8D, 0xA7, 0xA8))
_HYBRIDS = frozenset(
    (6, model)
    for model in (0x97, 0x9A, 0xAA, 0xAC, 0xB5, 0xB7, 0xBA, 0xBD, 0xBF, 0xC5, 0xC6, 0xCC, 0xD5)
)
_HYBRIDS |= {(0x12, 0x01), (0x12, 0x03)}
_GOLDMONT = frozenset((6, model) for model in (0x5C, 0x5F))
_ATOMS = frozenset((6, model) for model in (0x7A, 0x86, 0x96, 0x9C, 0xAF, 0xB6, 0xDD))


@dataclass(frozen=True, slots=True)
class Erratum:
    """One erratum under the name of the first processor that listed it.

    `effect` describes the stream, against the chapter; `models` are (DisplayFamily, DisplayModel);
    `aliases` are its names on other processors; `acts` is whether rtit models it. `flag` names the
    boolean of `Profile` that switches it on, if there is one.
    """

    name: str
    effect: str
    source: str
    models: frozenset[tuple[int, int]]
    aliases: tuple[str, ...] = ()
    acts: bool = False
    flag: str | None = None


_ERRATA = (
    Erratum(
        "BDM64",
        "a transactional abort right after a branch: the branch's packet may have a wrong target",
        _LIBIPT,
        _BROADWELL,
    ),
    Erratum(
        "BDM70",
        "a PSB+ in front of a TIP.PGE may hold a FUP and a MODE.Exec though PacketEn is still 0",
        _LIBIPT,
        _BROADWELL | _SKYLAKE | _SERVERS | _LATER_SERVERS | _ICE_LAKE | _HYBRIDS,
        ("SKD024", "SKL021", "KBL021"),
        acts=True,
    ),
    Erratum(
        "BDM106",
        "WRMSR that sets TraceEn with BranchEn clear faults",
        _LINUX,
        _BROADWELL,
        acts=True,
        flag="branchen_must_be_set",
    ),
    Erratum(
        "SKD007",
        "an overflow may cut a CYC of several bytes: the OVF follows its first byte",
        _LIBIPT,
        _SKYLAKE,
        ("SKL049", "KBL041"),
        acts=True,
    ),
    Erratum(
        "SKD010",
        "an OVF may lack the FUP or TIP.PGE with the address at which tracing continues",
        _LIBIPT,
        _SKYLAKE,
        ("SKD014", "SKL033", "KBL030"),
        acts=True,
    ),
    Erratum(
        "SKD022",
        "a VM entry that clears TraceEn while PacketEn is 1 puts a FUP before its TIP.PGD",
        _LIBIPT,
        _SKYLAKE | _SERVERS | _LATER_SERVERS | _ICE_LAKE | _HYBRIDS,
        ("SKL024", "KBL023"),
        acts=True,
    ),
    Erratum(
        "SKL014",
        "a direct unconditional branch out of the filter range may give a TIP.PGD without its IP",
        _LIBIPT,
        _SKYLAKE | _SERVERS | _ICE_LAKE,
        ("KBL014",),
        acts=True,
    ),
    Erratum(
        "SKL168",
        "a PSB may swallow the CYC right before it, and the MTC that belongs to that CYC",
        _LIBIPT,
        _SKYLAKE,
        acts=True,
    ),
    Erratum(
        "SKZ84",
        "TSC offsetting or scaling in a guest: TMA packets hold wrong values and a stray byte",
        _LIBIPT,
        _SERVERS | _LATER_SERVERS,
    ),
    Erratum(
        "APL11",
        "an overflow as TraceEn or ContextEn is cleared may put a TIP.PGD after the OVF",
        _LIBIPT,
        _GOLDMONT | _ATOMS | _HYBRIDS,
        acts=True,
    ),
    Erratum(
        "APL12",
        "an overflow outside the filter range may put a FUP after the OVF",
        _LIBIPT,
        _GOLDMONT,
        acts=True,
    ),
)

ERRATA = {erratum.name: erratum for erratum in _ERRATA}
"""Every erratum by name."""


def errata_of(family: int, model: int) -> tuple[str, ...]:
    """Return the names of the known errata of a processor, in the order of `ERRATA`."""
    return tuple(each.name for each in _ERRATA if (family, model) in each.models)


def erratum_name(name: str) -> str:
    """Return the name in `ERRATA` of a name or alias in any case. Raises ValueError."""
    wanted = name.upper()
    for each in _ERRATA:
        if wanted in (each.name, *each.aliases):
            return each.name
    raise ValueError(f"there is no erratum {name}; known are {', '.join(ERRATA)}")
