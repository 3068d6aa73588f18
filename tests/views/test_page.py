"""The page of `rtit view` in headless Chromium: its numbers are those of other commands."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rtit.cli.main import main
from rtit.views.page import page_data
from support.browser import BrowserPage
from support.profiles import ProfiledProgram
from views.test_flame_graph import parse_frames, relative_luminance

VIEWS = ("summary", "timeline", "flame", "functions", "code", "coverage")
CommandRunner = Callable[..., str]


@pytest.fixture(scope="module")
def page_url(profiled: ProfiledProgram, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the address of the page of a recording."""
    path = tmp_path_factory.mktemp("page") / "page.html"
    assert main(["view", str(profiled.data), "-o", str(path)]) == 0
    return path.as_uri()


@pytest.fixture
def run(profiled: ProfiledProgram, capsys: pytest.CaptureFixture[str]) -> CommandRunner:
    """Run another command with the recording of the page, and return its output."""

    def run_command(command: str, *options: str) -> str:
        assert main([command, *options, str(profiled.data)]) == 0
        return capsys.readouterr().out

    return run_command


def open_view(browser: BrowserPage, url: str, state: str, **options: Any) -> None:
    browser.open(f"{url}#view={state}", **options)


def table_rows(browser: BrowserPage, selector: str) -> list[list[str]]:
    """Return the cells of all rows of a table."""
    script = f"""(() => {{
        const more = document.querySelector("{selector} .tools button");
        while (!more.hidden) more.click();
        return [...document.querySelectorAll("{selector} tbody tr")].map(
            (row) => [...row.cells].map((cell) => cell.textContent));
    }})()"""
    rows: list[list[str]] = browser.evaluate(script)
    return rows


def test_summary_has_the_numbers_of_report(
    browser: BrowserPage, page_url: str, run: CommandRunner
) -> None:
    report = json.loads(run("report", "--json"))
    [stream] = report["streams"]
    open_view(browser, page_url, "summary")
    figures = browser.evaluate(
        "Object.fromEntries([...document.querySelectorAll('.figures div')].map("
        "(each) => [...each.children].map((one) => one.textContent)))"
    )
    assert figures == {
        "instructions": f"{report['instructions']:,}",
        "branches": f"{stream['branches']:,}",
        "PT bytes": f"{stream['pt_bytes']:,}",
        "decoded": f"{stream['exact_bytes'] / stream['pt_bytes']:.1%}",
        "processes": "1",
    }
    [row] = table_rows(browser, "#streams")
    assert [row[0], row[2], row[5]] == [
        f"{stream['instructions']:,}",
        f"{stream['pt_bytes']:,}",
        stream["title"],
    ]
    assert browser.evaluate("document.querySelector('#losses').textContent").startswith("All bytes")


def test_functions_have_the_numbers_of_report(
    browser: BrowserPage, page_url: str, run: CommandRunner
) -> None:
    report = json.loads(run("report", "--json", "--sort", "total"))
    expected = [
        [
            *(f"{each[column]:,}" for column in ("self", "total", "calls")),
            f"{each['function'] or 'unknown'} {Path(each['module']).name}",
        ]
        for each in report["calls"]
    ]
    open_view(browser, page_url, "functions")
    rows = [[row[0], row[2], row[4], row[5]] for row in table_rows(browser, "#functions")]
    assert sorted(rows) == sorted(expected)
    self_counts = [int(row[0].replace(",", "")) for row in rows]
    assert self_counts == sorted(self_counts, reverse=True)
    browser.evaluate("document.querySelectorAll('#functions th button')[4].click()")
    most_calls = max(int(each["calls"]) for each in report["calls"])
    assert table_rows(browser, "#functions")[0][4] == f"{most_calls:,}"


def calls_by_function(text: str, level: int) -> Counter[tuple[str, int, int, int]]:
    """Return name, total, self and calls of the functions of one level of `rtit calls`, with those
    that differ only by their note added up.
    """
    found: dict[str, list[int]] = {}
    for line in text.partition("\n\n")[0].splitlines()[1:]:
        total, _, own, calls, name = line.split(None, 4)
        if line.index(name) != 49 + 2 * level:
            continue
        name = re.sub(r"  \(\+[\d,]+\)$", "", name).partition(" [")[0].partition(" (")[0]
        numbers = [int(each.replace(",", "")) for each in (total, own, calls)]
        found[name] = [*map(sum, zip(found.get(name, (0, 0, 0)), numbers, strict=True))]
    return Counter((name, total, own, calls) for name, (total, own, calls) in found.items())


@pytest.mark.parametrize("name", ["main", "fibonacci", "compare"])
def test_callers_and_callees_have_the_numbers_of_calls(
    name: str, browser: BrowserPage, page_url: str, run: CommandRunner
) -> None:
    open_view(browser, page_url, "functions")
    number = browser.evaluate(f"data.functions.name.indexOf({json.dumps(name)})")
    open_view(browser, page_url, f"functions&function={number}")
    for selector, options in (("#callers", ["--callers"]), ("#callees", [])):
        text = run("calls", "--function", name, "--min-share", "0", "--max-depth", "2", *options)
        has_rows = browser.evaluate(f"document.querySelector('{selector} table') !== null")
        rows = table_rows(browser, selector) if has_rows else []
        shown = Counter(
            (row[3].partition(" ")[0], *(int(each.replace(",", "")) for each in row[:3]))
            for row in rows
            if row[3] != "no known caller"
        )
        assert shown == calls_by_function(text, 1)


def test_flame_graph_has_the_frames_of_calls(
    browser: BrowserPage, page_url: str, run: CommandRunner
) -> None:
    expected = parse_frames(run("calls", "--flamegraph").encode())
    open_view(browser, page_url, "flame")
    titles = browser.evaluate(
        "[...document.querySelectorAll('.frames > svg > title')].map((each) => each.textContent)"
    )
    found = dict(each.split("\n", 1) for each in titles)
    assert found == {name: frame.facts for name, frame in expected.items()}
    open_view(browser, page_url, "flame&search=main")
    assert "found" in browser.evaluate("document.querySelector('svg .head').textContent")


def test_coverage_has_the_numbers_of_coverage(
    browser: BrowserPage, page_url: str, run: CommandRunner
) -> None:
    open_view(browser, page_url, "coverage")
    files = {row[4]: row[:4] for row in table_rows(browser, "#files")}
    text = run("coverage").partition("source\n")[2]
    shown = {
        path: [line_share, lines, branch_share, branches]
        for lines, line_share, branches, branch_share, path in re.findall(
            r"^ *(\S+) +(\S+%) +(\S+) +(\S+%) (\S+)$", text, re.MULTILINE
        )
    }
    assert shown
    for path, row in shown.items():
        assert [files[path][0], files[path][1], files[path][3]] == [row[0], row[1], row[3]]
    tracefile = run("coverage", "--format", "lcov")
    totals = [
        sum(map(int, re.findall(rf"^{name}:(\d+)", tracefile, re.M))) for name in ("LH", "LF")
    ]
    folders = table_rows(browser, "#folders")
    assert f"{totals[0]:,}/{totals[1]:,}" in {row[1] for row in folders}


def test_source_lines_have_the_counts_of_lcov(
    browser: BrowserPage, page_url: str, run: CommandRunner
) -> None:
    open_view(browser, page_url, "coverage")
    [file] = browser.evaluate(
        "data.coverage.files.filter((each) => each.path.endsWith('/profiled.c'))"
    )
    open_view(browser, page_url, f"coverage&file={file['number']}")
    lines = browser.evaluate(
        "[...document.querySelectorAll('#source span')].map((each) => each.textContent)"
    )
    record = run("coverage", "--format", "lcov").partition(f"SF:{file['path']}\n")[2]
    expected = dict(re.findall(r"^DA:(\d+),(\d+)", record.partition("end_of_record")[0], re.M))
    counted = {line.split()[0]: line[7:21].strip().replace(",", "") for line in lines}
    assert {number: count for number, count in counted.items() if count} == expected
    text = Path(file["path"]).read_text().expandtabs().split("\n")
    assert [line[31:-1] for line in lines] == text


def test_code_has_the_counts_of_annotate(
    browser: BrowserPage, page_url: str, run: CommandRunner
) -> None:
    expected = json.loads(run("annotate", "--json", "fibonacci"))
    open_view(browser, page_url, "functions")
    number = browser.evaluate("data.functions.name.indexOf('fibonacci')")
    open_view(browser, page_url, f"functions&function={number}")
    browser.evaluate(
        "[...document.querySelectorAll('#function button')].find("
        "(each) => each.textContent.startsWith('Source and')).click()"
    )
    browser.evaluate("new Promise((done) => setTimeout(done))")  # the address changes later
    source, code = browser.evaluate(
        """[...document.querySelectorAll(".annotated table")].map((table) => [...table.rows].map(
            (row) => [...row.cells].map((cell) => cell.textContent)))"""
    )
    lines = [(row[1], row[0]) for row in source if row[0] and row[1].isdigit()]
    assert lines == [
        (f"{each['line']}", f"{each['count']:,}")
        for each in expected["lines"]
        if each["count"] is not None
    ]
    counts = [(int(row[3], 16), row[0]) for row in code[1:] if len(row) == 6]
    assert counts == [(each["address"], f"{each['count']:,}") for each in expected["instructions"]]


def second_call_end(events: list[dict[str, Any]]) -> int:
    """Return where the second call of a trace in Chrome's format ends, in instructions."""
    depth = begins = 0
    for each in events:
        if each["ph"] == "B":
            begins, depth = begins + 1, depth + (begins >= 1)
        elif each["ph"] == "E":
            depth -= 1
            if not depth:
                return round(float(each["ts"]) * 1000)
    raise AssertionError("the second call has no end")


def test_timeline_has_the_calls_of_timeline(
    browser: BrowserPage, page_url: str, run: CommandRunner
) -> None:
    events = json.loads(run("timeline", "--for", "chrome"))["traceEvents"]
    begins = [each for each in events if each["ph"] == "B"]
    end = second_call_end(events)
    open_view(browser, page_url, "timeline")
    heading = browser.evaluate("document.querySelector('.track h3').textContent")
    assert f"{len(begins):,} calls" in heading
    browser.evaluate("document.querySelector('canvas').focus()")
    browser.press("PageDown")
    browser.press("PageDown")
    status = browser.evaluate("document.querySelector('#view-timeline .details').textContent")
    assert status.startswith(f"{begins[1]['name']}: ")
    begin = round(begins[1]["ts"] * 1000)
    assert f": {end - begin:,} instructions, from {begin:,} to {end:,}" in status


def test_axis_of_time_has_nanoseconds(browser: BrowserPage, page_url: str) -> None:
    open_view(browser, page_url, "timeline")
    browser.evaluate(
        """(() => {
            const axis = document.querySelector("select");
            axis.value = "time";
            axis.dispatchEvent(new Event("change"));
            document.querySelector("canvas").focus();
        })()"""
    )
    browser.press("PageDown")
    status = browser.evaluate("document.querySelector('#view-timeline .details').textContent")
    assert re.search(r": [\d,]+ ns, from 0 to [\d,]+ ", status)


def test_recording_of_the_kernel_has_a_page_without_calls(
    traces: Path, browser: BrowserPage, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    recording = traces / "chromeos" / "cpu-wide.perf.data"
    assert main(["view", str(recording), "-o", str(path)]) == 3
    open_view(browser, path.as_uri(), "timeline")
    links = browser.evaluate("[...document.querySelectorAll('nav a')].map((a) => a.textContent)")
    assert links == ["Summary", "Functions", "Code", "Coverage"]
    losses = browser.evaluate("document.querySelector('#losses').textContent")
    assert "so that rtit cannot follow the calls" in losses
    assert "no code is known at" in losses


def test_page_runs_no_script_of_others(browser: BrowserPage, page_url: str) -> None:
    open_view(browser, page_url, "summary")
    browser.evaluate(
        """document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.bad = 1'>");
        const script = document.body.appendChild(document.createElement("script"));
        script.append("window.bad = 1");"""
    )
    assert browser.evaluate("fetch('https://example.com').then(() => 'sent', () => 'refused')") == (
        "refused"
    )
    assert browser.evaluate("window.bad === undefined")
    refusals = " ".join(browser.messages)
    browser.messages.clear()
    assert all(rule in refusals for rule in ("script-src", "connect-src", "img-src"))


LABELS = """[...document.querySelectorAll("input, select, button, canvas, a, [tabindex]")]
    .filter((each) => each.getClientRects().length)
    .filter((each) => !(each.getAttribute("aria-label")
        || (each.matches("input, select") ? each.labels[0] : each)?.textContent.trim()))
    .map((each) => each.outerHTML)"""
TEXT_COLOURS = """(() => {
    const backgroundOf = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const {backgroundColor} = getComputedStyle(at);
            if (!backgroundColor.endsWith(", 0)")) return backgroundColor;
        }
        return "rgb(255, 255, 255)";
    };
    const found = new Set();
    for (const element of document.querySelectorAll("body *")) {
        const texts = [...element.childNodes].filter((each) => each.nodeType === 3);
        const hasText = texts.some((each) => each.data.trim());
        if (!hasText || !element.getClientRects().length || element.closest("svg")) continue;
        found.add(`${getComputedStyle(element).color} on ${backgroundOf(element)}`);
        const share = element.closest("td.share");
        if (share) {
            const bar = getComputedStyle(document.documentElement).getPropertyValue("--bar");
            found.add(`${getComputedStyle(element).color} on ${bar}`);
        }
    }
    return [...found];
})()"""


def contrast(colours: str) -> float:
    """As WCAG 2 defines it."""
    first, second = sorted(map(luminance, colours.split(" on ")))
    return (second + 0.05) / (first + 0.05)


def luminance(colour: str) -> float:
    if colour.startswith("#"):
        return relative_luminance(colour)
    channels = [int(each) for each in re.findall(r"\d+", colour)[:3]]
    return relative_luminance("#" + "".join(f"{each:02x}" for each in channels))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_controls_have_labels_and_texts_have_contrast(
    dark: bool, browser: BrowserPage, page_url: str
) -> None:
    for view in (*VIEWS, "functions&function=1", "coverage&file=0"):
        open_view(browser, page_url, view, dark=dark)
        assert browser.evaluate(LABELS) == []
        colours = browser.evaluate(TEXT_COLOURS)
        assert len(colours) > 1
        assert {each: contrast(each) for each in colours if contrast(each) < 4.5} == {}
    background = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (luminance(background) < 0.1) == dark


def test_call_names_contrast_with_their_colours(browser: BrowserPage, page_url: str) -> None:
    open_view(browser, page_url, "timeline")
    colours = browser.evaluate(
        """[...Array(500).keys()].map((name) => {
            document.body.style.color = Timeline.prototype.colourOf(name);
            return getComputedStyle(document.body).color;
        })"""
    )
    assert len(set(colours)) > 100
    assert min(contrast(f"#18181b on {each}") for each in colours) >= 4.5


@pytest.mark.parametrize("view", VIEWS)
def test_tab_key_reaches_every_control(view: str, browser: BrowserPage, page_url: str) -> None:
    open_view(browser, page_url, view)
    controls = browser.evaluate(
        """(() => {
            const found = [...document.querySelectorAll(
                "a, button, input, select, canvas, pre[tabindex], [tabindex='0']")];
            window.controls = found.filter((each) => each.getClientRects().length).slice(0, 40);
            document.body.setAttribute("tabindex", -1);
            document.body.focus();
            return window.controls.length;
        })()"""
    )
    reached = set()
    for _ in range(controls):
        browser.press("Tab")
        reached.add(browser.evaluate("window.controls.indexOf(document.activeElement)"))
    assert reached == {*range(controls)}


def test_keys_zoom_the_flame_graph(browser: BrowserPage, page_url: str) -> None:
    open_view(browser, page_url, "flame")
    browser.evaluate("document.querySelector('.frames > svg').focus()")
    browser.press("ArrowUp")
    browser.press("ArrowUp")
    name = browser.evaluate("document.activeElement.querySelector('title').textContent")
    browser.press("Enter")
    axis = browser.evaluate("document.querySelector('svg .axis').textContent")
    count = re.search(r"\n([\d,]+ )instructions", name)
    assert count is not None
    assert axis.startswith(f"{count[1]}of ")
    browser.press("Escape")
    assert " of " not in browser.evaluate("document.querySelector('svg .axis').textContent")


def test_narrow_page_is_as_wide_as_the_window(browser: BrowserPage, page_url: str) -> None:
    for view in (*VIEWS, "functions&function=0", "coverage&file=0"):
        open_view(browser, page_url, view, width=400)
        assert browser.evaluate("document.documentElement.scrollWidth") == 400, view


def test_page_states_what_is_cut(
    profiled: ProfiledProgram,
    browser: BrowserPage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = {"MAX_FUNCTIONS": 5, "MAX_CALLERS": 2, "MAX_CALLS": 5, "MAX_ANNOTATED": 1}
    for limit, value in limits.items():
        monkeypatch.setattr(page_data, limit, value)
    monkeypatch.setattr(page_data, "MAX_SOURCE_LINES", 1)
    path = tmp_path / "page.html"
    assert main(["view", str(profiled.data), "-o", str(path)]) == 0
    notes = {
        "functions": "callees with the fewest instructions are not shown",
        "code": "functions are not shown",
        "timeline": "calls are not shown",
    }
    for view, text in {**notes, "coverage": "is not shown"}.items():
        open_view(browser, path.as_uri(), view)
        assert text in browser.evaluate(f"document.querySelector('#view-{view}').textContent")
    open_view(browser, path.as_uri(), "functions")
    assert "functions are not shown" in browser.evaluate("document.body.textContent")
    assert len(table_rows(browser, "#functions")) == 5


def test_no_message_is_in_the_console(browser: BrowserPage, page_url: str) -> None:
    browser.messages.clear()
    for view in VIEWS:
        open_view(browser, page_url, view)
    assert browser.messages == []
