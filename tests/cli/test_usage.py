"""Words that the command line has no place for."""

from __future__ import annotations

import pytest

from rtit.cli.main import main


@pytest.mark.parametrize(
    ("words", "usage", "error"),
    [
        (["recrod", "ls"], "usage: rtit [", "no verb 'recrod' (did you mean record?)"),
        (["xyzzy"], "usage: rtit [", "no verb 'xyzzy';"),
        (
            ["record", "--filtr", "filter main", "--", "ls"],
            "usage: rtit record [options]",
            "no option --filtr (did you mean --filter?)",
        ),
        (
            ["record", "--snapshto=4M", "--", "ls"],
            "usage: rtit record [options]",
            "no option --snapshto (did you mean --snapshot?)",
        ),
        (
            ["report", "--jsn", "perf.data"],
            "usage: rtit report [",
            "no option --jsn (did you mean --json?)",
        ),
        (["report", "--zzzz"], "usage: rtit report [", "no option --zzzz\n"),
        (["report", "perf.data", "more"], "usage: rtit report [", "unexpected argument 'more'"),
        (["record", "--backend", "gdb", "ls"], "usage: rtit record [options]", "'gdb'"),
        (["diff", "--top", "-1", "a", "b"], "usage: rtit diff [", "--top"),
        (["report", "--top", "-1"], "usage: rtit report [", "--top"),
        (["--jsn"], "usage: rtit [", "no option --jsn\n"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_words(
    words: list[str], usage: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (2, "")
    assert said.err.startswith(usage)
    assert error in said.err
    assert "Traceback" not in said.err


def test_a_programs_own_options_are_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    """What follows the program is not looked at, whatever it resembles."""
    with pytest.raises(SystemExit):
        main(["record", "--jsn", "x", "echo", "--filtr"])
    assert "--filtr" not in capfd.readouterr().err
