"""Names of functions with quotes, markup, line breaks and terminal codes, in every output."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from programs.build import compiled
from rtit.cli.main import main
from rtit.text_escaping import escape_control_characters
from support.browser import BrowserPage
from support.profiles import ProfiledProgram, ToolRunner, record_program
from views.test_timeline import chrome_slices, perfetto_slices

HOSTILE = b"</script>\"'<b>&;,|`\\{}%=() \n\r\x1b]0;x\x07\x7f+"
NAME = HOSTILE.decode()
SHOWN = escape_control_characters(NAME)

SOURCE = """
int deepest(int n);
__attribute__((noipa)) int PLACEHOLDER(int n) { return deepest(n) + 1; }
__attribute__((noipa)) int deepest(int n) { return n * n; /* \x1b]0;x\x07\x7f </script> */ }
int main(void) { int sum = 0; for (int i = 0; i < 100; i++) sum += PLACEHOLDER(i); return sum < 0; }
"""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> ProfiledProgram:
    """A program that has a function of this name in its symbols and in its DWARF."""
    folder = tmp_path_factory.mktemp("hostile")
    placeholder = "p" * len(HOSTILE)
    source = folder / "program.c"
    source.write_text(SOURCE.replace("PLACEHOLDER", placeholder))
    flags = ["-O1", "-g", "-gdwarf-4", "-static"]
    built = compiled("hostile", [str(source)], language="c", flags=flags, directory=folder)
    program = folder / "program"
    program.write_bytes(built.read_bytes().replace(placeholder.encode(), HOSTILE))
    program.chmod(0o755)
    return record_program(program, folder)


@pytest.fixture
def written(recording: ProfiledProgram, tmp_path: Path) -> Callable[..., bytes]:
    """Run a command that writes a file, and return the bytes of that file."""

    def run(command: str, *options: str) -> bytes:
        output = tmp_path / "output"
        assert main([command, "-o", str(output), *options, str(recording.data)]) == 0
        return output.read_bytes()

    return run


@pytest.mark.parametrize(
    "words",
    [
        ["calls", "--min-share", "0"],
        ["calls", "--function", NAME],
        ["calls", "--function", SHOWN, "--callers"],
        ["calls", "--folded"],
        ["report", "--sort", "total", "--top", "1000"],
        ["instructions", "--function", NAME],
        ["stat", "--per", "function"],
        ["profile", "--for", "callgrind"],
        ["coverage", "--format", "lcov"],
        ["annotate", NAME],
        ["annotate", "main"],
    ],
    ids=lambda words: " ".join(words[:3:2]),
)
def test_text_has_the_escaped_name(words: list[str], recording: ProfiledProgram) -> None:
    command = [sys.executable, "-m", "rtit", *words, str(recording.data)]
    ended = subprocess.run(command, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr
    lines = (ended.stdout + ended.stderr).decode().split("\n")
    assert all(line.isprintable() for line in lines)
    shown = SHOWN.replace(";", ":") if "--folded" in words else SHOWN
    assert any(shown in line for line in lines)


@pytest.mark.parametrize(
    "words",
    [
        ["calls", "--json"],
        ["calls", "--speedscope"],
        ["report", "--json"],
        ["stat", "--per", "function", "--json"],
    ],
    ids=" ".join,
)
def test_json_has_the_name(
    words: list[str], recording: ProfiledProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([words[0], str(recording.data), *words[1:]]) == 0
    found = names_in(json.loads(capsys.readouterr().out))
    assert any(name.removesuffix(" (program)") in (NAME, SHOWN) for name in found)


def names_in(value: object) -> set[str]:
    """Return all strings of a JSON value, and all keys."""
    if isinstance(value, str):
        return {value}
    if isinstance(value, dict):
        return {*value}.union(*map(names_in, value.values()))
    if isinstance(value, list):
        return set().union(*map(names_in, value))
    return set()


@pytest.mark.parametrize("function", [NAME, "main", "deepest"])
def test_annotated_page_has_the_escaped_name_and_source(
    function: str, written: Callable[..., bytes]
) -> None:
    page = written("annotate", "--html", function)
    assert [*map(page.lower().count, (b"<script", b"</script"))] == [1, 1]
    reader = TextOfPage()
    reader.feed(page.decode())
    texts = "".join(reader.texts)
    assert (SHOWN in texts) == (function != "deepest")
    assert all(each.isprintable() for each in texts.split("\n"))
    if function == "deepest":
        source = "return n * n; /* \\x1b]0;x\\x07\\x7f </script> */ }"
        assert source in texts


class TextOfPage(HTMLParser):
    """Collects the text of a page, without the style sheet and the script."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def handle_data(self, data: str) -> None:
        if self.cdata_elem is None:
            self.texts.append(data)


def test_annotated_json_has_the_name_and_the_source(
    recording: ProfiledProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["annotate", "main", str(recording.data), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert NAME in {each["target_name"] for each in found["instructions"]}
    assert main(["annotate", "deepest", str(recording.data), "--json"]) == 0
    [line] = json.loads(capsys.readouterr().out)["lines"]
    assert "/* \x1b]0;x\x07\x7f </script> */" in line["text"]


def test_flame_graph_has_the_escaped_name(written: Callable[..., bytes]) -> None:
    root = ElementTree.fromstring(written("calls", "--flamegraph", "--min-share", "0"))
    titles = [each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}title")]
    assert any(title.startswith(f"{SHOWN}\n") for title in titles)
    assert len([*root.iter("{http://www.w3.org/2000/svg}script")]) == 1


def test_timelines_have_the_escaped_name(written: Callable[..., bytes]) -> None:
    for read, kind in ((chrome_slices, "chrome"), (perfetto_slices, "perfetto")):
        names = [name for name, _, _ in read(written("timeline", "--for", kind)).elements()]
        assert names.count(SHOWN) == 100


def test_coverage_page_and_cobertura_have_the_escaped_name(written: Callable[..., bytes]) -> None:
    root = ElementTree.fromstring(written("coverage", "--format", "cobertura"))
    assert SHOWN in {each.get("name") for each in root.iter("method")}
    page = written("coverage", "--format", "html").decode()
    assert "<b>" not in page.partition("<body")[2]
    assert page.count("</script>") == page.count("<script")


def test_page_has_the_escaped_name(
    recording: ProfiledProgram, tmp_path: Path, browser: BrowserPage
) -> None:
    path = tmp_path / "page.html"
    data = tmp_path / NAME.replace("/", "")
    shutil.copy(recording.data, data)
    assert main(["view", str(data), "-o", str(path)]) == 0
    page = path.read_text()
    assert page.count("<script") == page.count("</script>") == 2
    browser.messages.clear()
    browser.open(f"{path.as_uri()}#view=functions")
    number = browser.evaluate(f"data.functions.name.indexOf({json.dumps(SHOWN)})")
    for view in ("timeline", "flame", "coverage&file=0", f"functions&function={number}"):
        browser.open(f"{path.as_uri()}#view={view}")
        browser.evaluate("document.querySelector('canvas')?.dispatchEvent(new Event('click'))")
    assert browser.evaluate("document.querySelector('#function h2').textContent") == SHOWN
    browser.open(f"{path.as_uri()}#view=summary")
    file = browser.evaluate("document.querySelector('.facts dd').textContent")
    assert file == escape_control_characters(str(data))
    assert browser.evaluate("document.querySelectorAll('main b').length") == 0
    assert browser.messages == []


def test_callgrind_annotate_reads_the_escaped_name(
    recording: ProfiledProgram, run_tool: ToolRunner
) -> None:
    said = run_tool("callgrind_annotate", "--threshold=100", recording.written("callgrind"))
    [count] = re.findall(rf"^ *([\d,]+) \(.*:{re.escape(SHOWN)} \[", said, re.MULTILINE)
    assert int(count.replace(",", "")) % 100 == 0


def test_pprof_reads_the_escaped_name(recording: ProfiledProgram, run_tool: ToolRunner) -> None:
    said = run_tool("go", "tool", "pprof", "-raw", recording.written("pprof"))
    # pprof leaves out what looks like template arguments and parameters, but not of the symbol
    assert f"({SHOWN})\n" in said
    assert all(line.isprintable() for line in said.split("\n"))


@pytest.mark.parametrize("tool", ["inferno-flamegraph", "flamegraph.pl"])
def test_flame_graph_tool_reads_the_escaped_name(tool: str, written: Callable[..., bytes]) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    folded = written("calls", "--folded")
    picture = subprocess.run([tool], input=folded, stdout=subprocess.PIPE, check=True).stdout
    root = ElementTree.fromstring(picture)
    titles = [each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}title")]
    assert any(title.startswith(SHOWN.replace(";", ":")) for title in titles)
