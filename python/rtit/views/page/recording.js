// The page of a recording: reads the data, and shows one view at a time.
// The address keeps the view: #view=NAME&function=NUMBER&file=NUMBER.

const VIEWS = {
  summary: ["Summary", showSummary],
  timeline: ["Timeline", showTimeline],
  flame: ["Flame graph", showFlame],
  functions: ["Functions", showFunctions],
  code: ["Code", showCode],
  coverage: ["Coverage", showCoverage],
  instructions: ["Instructions", showInstructions],
};

let data = null;
const shownViews = {};

async function readData() {
  const text = document.getElementById("data").textContent;
  const bytes = Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

const readState = () => new URLSearchParams(location.hash.slice(1));

function go(changes) {
  const state = readState();
  for (const [name, value] of Object.entries(changes)) {
    if (value === null) state.delete(name);
    else state.set(name, value);
  }
  location.hash = `#${state}`;
}

function showView() {
  const state = readState();
  const name = VIEWS[state.get("view")] ? state.get("view") : "summary";
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  for (const [other, {section}] of Object.entries(shownViews)) section.hidden = other !== name;
  if (!shownViews[name]) {
    const section = element("section", {id: `view-${name}`, "aria-label": VIEWS[name][0]});
    document.querySelector("main").append(section);
    shownViews[name] = {section, update: VIEWS[name][1](section)};
  }
  shownViews[name].update?.(state);
}

// Summary

function showSummary(section) {
  const {report} = data, {streams} = report;
  const figures = [
    ["instructions", formatCount(report.instructions)],
    ["branches", formatCount(report.branches)],
    ["PT bytes", formatCount(report.pt_bytes)],
    ["decoded", formatShare(report.decoded_bytes, report.pt_bytes)],
    ["processes", formatCount(report.processes_count)],
  ];
  // several processes have a table with their ends
  const endings = report.processes_count > 1 ? [] : report.endings;
  const facts = [["File", report.file], ...Object.entries(report.facts),
    ...endings.map((each) => [`process ${each.pid}`, endingText(each)])];
  section.append(
    element("dl", {class: "figures"}, ...figures.map(([name, value]) => element("div", {},
      element("dt", {}, name), element("dd", {}, value)))),
    ...lossElements(report),
    element("dl", {class: "facts"}, ...facts.flatMap(([name, value]) =>
      [element("dt", {}, name === "profile" ? "processor profile" : name), element("dd", {}, value)])),
    ...report.faults.map(faultElement), moreNote(report, "faults", "faults"),
    streamTable(streams), moreNote(report, "streams", "threads or CPUs"), processTable(report),
  );
}

function moreNote(report, name, what) {
  const hidden = report[`${name}_count`] - report[name].length;
  return note(hidden > 0 ? `${formatCount(hidden)} further ${what} are not shown` : "");
}

const endingText = (each) =>
  each.signal ? `ended by signal ${each.signal}` : `exit code ${each.exit_code}`;

const LOSSES_AT_ONCE = 10;

function lossElements(report) {
  const lines = report.image_problems.map((each) => `code: ${each}`);
  const hidden = report.image_problems_count - report.image_problems.length;
  if (hidden > 0) lines.push(`${formatCount(hidden)} further problems of code`);
  if (report.incomplete) lines.unshift(`the recording is incomplete: ${report.incomplete}`);
  report.streams.forEach((each, number) => {
    lines.push(...each.losses.map((text) => `${each.title}: ${text}`));
    const rest = report.lost[number] - each.losses.length;
    if (rest > 0) lines.push(`${each.title}: ${formatCount(rest)} more losses`);
    if (each.unsure.switches) {
      lines.push(`${each.title}: ${formatCount(each.unsure.switches)} times code near a thread `
        + `switch may belong to either thread: ${formatCount(each.unsure.instructions)} instructions`);
    }
    lines.push(...each.repeats.map((text) => `${each.title}: ${text}`));
    if (each.missing) {
      lines.push(`${each.title}: ${formatCount(each.missing)} instructions of further loop `
        + "iterations are in the total, but in no function");
    }
  });
  if (data.no_calls) lines.push(data.no_calls);
  if (!lines.length) return [element("p", {id: "losses"}, "All bytes of the trace were decoded.")];
  const list = (texts) => element("ul", {class: "losses"}, ...texts.map((each) => element("li", {}, each)));
  const rest = lines.slice(LOSSES_AT_ONCE);
  return [element("div", {class: "warning", id: "losses"}, element("strong", {}, "Missing or unsure"),
    list(lines.slice(0, LOSSES_AT_ONCE)), rest.length ? element("details", {},
      element("summary", {}, `${formatCount(rest.length)} more`), list(rest)) : "")];
}

function faultElement(fault) {
  const place = `${fault.function || "unknown"}${fault.offset ? `+0x${fault.offset.toString(16)}` : ""}`;
  const line = fault.file ? ` (${fault.file}:${fault.line})` : "";
  return element("div", {class: "warning"},
    element("strong", {}, `${fault.name} in thread ${fault.tid}, in ${place}${line}`),
    element("p", {class: "code"}, fault.instruction),
    element("p", {}, "Call stack: ", fault.call_stack.slice(0, 20).map((each) => each.to).join(", ")));
}

function streamTable(streams) {
  const rows = streams.flatMap((each) => [each, ...Object.entries(each.threads).map(
    ([title, instructions]) => ({title: `${each.title}: ${title}`, instructions, branches: null,
      pt_bytes: null, exact_bytes: null}))]);
  const table = new DataTable({
    caption: "Threads and CPUs",
    sortedBy: 0,
    rows,
    columns: [
      countColumn("instructions", (each) => each.instructions),
      countColumn("branches", (each) => each.branches),
      countColumn("PT bytes", (each) => each.pt_bytes),
      {title: "bytes per 1000", value: (each) => each.instructions ? each.pt_bytes / each.instructions : 0,
        show: (each) => each.pt_bytes === null ? "-"
          : (each.instructions ? 1000 * each.pt_bytes / each.instructions : 0).toFixed(1)},
      shareColumn("decoded", (each) => each.exact_bytes, (each) => each.pt_bytes),
      {title: "stream", isName: true, value: (each) => each.title, show: (each) => each.title},
    ],
  });
  return element("div", {id: "streams"}, element("h2", {}, "Threads"), table.element);
}

function processTable(report) {
  if (report.processes_count < 2) return "";
  const parents = new Map(report.processes.map((each) => [each.pid, each.parent]));
  const depthOf = (pid) => {
    let depth = 0;
    for (let at = parents.get(pid); at && depth < 20; at = parents.get(at)) depth++;
    return depth;
  };
  const order = new Map(report.processes.map((each, number) => [each, number]));
  const table = new DataTable({
    caption: "Processes",
    sortedBy: 3,
    rows: report.processes,
    columns: [
      countColumn("instructions", (each) => each.instructions),
      countColumn("with children", (each) => each.instructions_with_children),
      countColumn("threads", (each) => each.threads),
      {title: "process", isName: true, value: (each) => order.get(each), show: (each) => {
        const ended = each.exit_code !== null || each.signal ? `: ${endingText(each)}` : "";
        const cell = element("div", {}, `${each.pid} ${each.name}${ended}`);
        cell.style.paddingLeft = `${depthOf(each.pid)}rem`;
        return cell;
      }},
    ],
  });
  return element("div", {id: "processes"}, element("h2", {}, "Processes"), table.element,
    moreNote(report, "processes", "processes"));
}

// Timeline

function showTimeline(section) {
  const {timeline} = data;
  const details = element("p", {class: "details", role: "status"});
  const view = new Timeline(timeline, (track, call) => {
    details.replaceChildren(track ? element("span", {}, `${view.describe(track, call)} `) : "");
    if (!track) return;
    const number = data.functions.name.indexOf(timeline.names[track.name[call]]);
    if (number >= 0) details.append(linkButton("callers and callees",
      () => go({view: "functions", function: number})));
    if (!data.served || view.axis !== "instructions") return;
    details.append(", ", linkButton("instructions",
      () => go({view: "instructions", tid: track.tid, first: track.begins[call]})));
  });
  const setAxis = (event) => view.setAxis(event.target.value);
  const axis = element("select", {"aria-label": "Axis", onchange: setAxis},
    ...Object.keys(timeline.axes).map((name) => element("option", {value: name}, name)));
  const button = (text, label, onclick) =>
    element("button", {type: "button", "aria-label": label, onclick}, text);
  section.append(
    element("div", {class: "tools"}, element("label", {}, "Axis ", axis),
      button("+", "Zoom in", () => view.zoom(0.6)), button("\u2212", "Zoom out", () => view.zoom(1 / 0.6)),
      button("\u2190", "Move left", () => view.move(-0.2)),
      button("\u2192", "Move right", () => view.move(0.2)),
      button("All", "Show all", () => view.show(view.first, view.last)),
      searchField("Search calls", (text) => view.search(text)), perfettoElement()),
    details, view.element, note(TIMELINE_HELP), note(timeline.note));
  return () => view.draw();
}

// The served page opens Perfetto; a file names the command that does.
function perfettoElement() {
  if (!data.served) {
    return element("span", {class: "faint"}, "In Perfetto: ", element("code", {}, data.perfetto_command));
  }
  return element("a", {href: "perfetto", target: "_blank", rel: "noreferrer"},
    data.served === "perfetto" ? "Open in Perfetto" : "Save for Perfetto");
}

// Flame graph

function showFlame(section) {
  const place = element("div", {id: "flame"});
  const links = element("p", {class: "details", role: "status"});
  section.append(place, links, note("Click a frame, or press Enter on it, to zoom; Escape shows all. Arrow "
    + "keys go to callers, callees and neighbours. The width of a frame is its instructions with those "
    + "of all callees."));
  const picture = new DOMParser().parseFromString(data.flame_graph, "image/svg+xml").documentElement;
  const svg = place.appendChild(document.importNode(picture, true));
  svg.setAttribute("role", "group");
  svg.setAttribute("aria-label", "Flame graph");
  const graph = showFlameGraph(svg, {
    availableWidth: () => place.clientWidth,
    onSelect: (name) => {
      const number = name ? functionOfFrame(name) : -1;
      links.replaceChildren(number < 0 ? ""
        : linkButton(`Callers and callees of ${name}`, () => go({view: "functions", function: number})));
    },
  });
  svg.scrollIntoView({block: "end"});
  return () => graph.resize();
}

// The label of a frame may have a note, and the file if several files have a function of the name.
function functionOfFrame(label) {
  const {name, module} = data.functions, text = label.replace(/ \[[^\]]*\]$/, "");
  const found = name.indexOf(text);
  return found >= 0 ? found : name.findIndex((each, number) => `${each} (${fileName(module[number])})` === text);
}

// Functions

function functionRows() {
  const {functions} = data;
  return functions.name.map((name, number) => ({
    number, name: name || "unknown", module: functions.module[number], self: functions.self[number],
    total: functions.total?.[number], calls: functions.calls?.[number],
  }));
}

function showFunctions(section) {
  const {functions} = data, rows = functionRows(), whole = functions.instructions;
  const nameColumn = (title, of) => ({
    title, isName: true, value: (row) => of(row)?.name || "",
    show: (row) => of(row) ? functionElement(of(row)) : element("span", {class: "faint"}, "no known caller"),
  });
  const functionElement = (row) => element("span", {},
    linkButton(row.name, () => go({view: "functions", function: row.number})), " ",
    element("span", {class: "faint"}, fileName(row.module)));
  const table = new DataTable({
    caption: "Functions",
    sortedBy: 0,
    rows,
    searched: (row) => `${row.name} ${row.module}`,
    columns: [
      countColumn("self", (row) => row.self), shareColumn("share", (row) => row.self, whole),
      ...(data.no_calls ? [] : [
        countColumn("total", (row) => row.total), shareColumn("share", (row) => row.total, whole),
        countColumn("calls", (row) => row.calls)]),
      nameColumn("function", (row) => row),
    ],
  });
  const details = element("div", {id: "function", role: "region", "aria-label": "Selected function"});
  section.append(
    element("div", {class: "tools"}, searchField("Search functions", (text) => table.search(text))),
    element("div", {class: "columns"},
      element("div", {id: "functions"}, table.element, note(functions.note)), details));

  function codeLink(row) {
    const number = annotationOf(row.name, row.module);
    return number < 0 ? "" : element("p", {},
      linkButton("Source and machine code", () => go({view: "code", code: number})));
  }

  function relatedTable(caption, related, number) {
    const found = related.filter(([each]) => each === number)
      .map(([, other, calls, self, total]) => ({other: rows[other], calls, self, total}));
    if (!found.length) return note("None.");
    return new DataTable({
      caption,
      sortedBy: 0,
      rows: found,
      columns: [
        countColumn("total", (row) => row.total), countColumn("self", (row) => row.self),
        countColumn("calls", (row) => row.calls), nameColumn("function", (row) => row.other),
      ],
    }).element;
  }

  return (state) => {
    const row = rows[state.get("function") ?? -1];
    if (!row) {
      details.replaceChildren();
      return;
    }
    details.replaceChildren(
      element("h2", {}, row.name), element("p", {class: "faint"}, row.module || "unknown file"),
      element("p", {}, `self ${formatCount(row.self)} (${formatShare(row.self, whole)})`,
        data.no_calls ? "" : `, total ${formatCount(row.total)} (${formatShare(row.total, whole)}); `
          + countNoun(row.calls, "call")),
      codeLink(row));
    if (data.no_calls) return;
    details.append(
      linkButton("Find in the flame graph", () => {
        go({view: "flame", search: `^${row.name.replace(/[^\w\s]/g, "\\$&")}( [[(]|$)`, zoom: null});
        delete shownViews.flame;
        document.getElementById("view-flame")?.remove();
      }),
      ...["Callers", "Callees"].flatMap((title) => [element("h3", {}, title),
        element("div", {id: title.toLowerCase()},
          relatedTable(title, functions[title.toLowerCase()], row.number))]));
  };
}

// Annotated code

const annotationOf = (name, module) => data.annotations.functions.findIndex(
  (each) => each.name === name && each.module === module);

function showCode(section) {
  const {functions, note: text} = data.annotations;
  const place = element("div", {id: "code"});
  const select = element("select", {onchange: (event) => go({code: event.target.value})},
    ...functions.map((each, number) => element("option", {value: number},
      `${each.name} (${fileName(each.module)}): ${countNoun(each.self, "instruction")}`)));
  section.append(element("div", {class: "tools"}, element("label", {}, "Function ", select)),
    place, note(text));
  if (!functions.length) place.append(element("p", {}, "No code of a file with functions ran."));
  // The links of an annotation go to a line of it; the address of the page has the view.
  place.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (!link) return;
    event.preventDefault();
    document.getElementById(link.getAttribute("href").slice(1))?.scrollIntoView({block: "center"});
  });
  let shown = null;
  return (state) => {
    const number = state.get("code") ?? 0;
    if (number === shown || !functions[number]) return;
    shown = number;
    select.value = number;
    const parsed = new DOMParser().parseFromString(functions[number].html, "text/html");
    place.replaceChildren(...parsed.body.children);
    markLinesOfAnnotations();
  };
}

// Coverage

function showCoverage(section) {
  const {coverage} = data;
  if (coverage.message) {
    section.append(element("p", {}, coverage.message));
    return null;
  }
  coverage.files.forEach((file, number) => { file.number = number; });
  const shares = [
    shareColumn("lines %", (each) => each.lines_hit, (each) => each.lines),
    {title: "lines", value: (each) => each.lines_hit,
      show: (each) => `${formatCount(each.lines_hit)}/${formatCount(each.lines)}`},
    shareColumn("branches %", (each) => each.outcomes_hit, (each) => each.outcomes),
    {title: "branches", value: (each) => each.outcomes_hit,
      show: (each) => `${formatCount(each.outcomes_hit)}/${formatCount(each.outcomes)}`},
  ];
  const folder = (path) => ({title: "folder", isName: true, value: path,
    show: (row) => linkButton(row.path || "/", () => go({folder: row.path, file: null}))});
  const folders = new DataTable({caption: "Folders", sortedBy: 4, rows: coverage.folders,
    columns: [...shares, folder((row) => row.path)]});
  const files = new DataTable({caption: "Files", sortedBy: 1, rows: coverage.files,
    searched: (file) => file.path,
    columns: [...shares, {title: "file", isName: true, value: (file) => file.path,
      show: (file) => file.rows ? linkButton(file.path, () => go({file: file.number})) : file.path}]});
  const source = element("div", {id: "source", role: "region", "aria-label": "Source file"});
  section.append(
    element("h2", {}, "Folders"), element("div", {id: "folders"}, folders.element),
    element("h2", {}, "Files"),
    element("div", {class: "tools"}, searchField("Search files", (text) => files.search(text)),
      element("button", {type: "button", onclick: () => go({folder: null})}, "All folders")),
    element("div", {id: "files"}, files.element), note(coverage.note), source);
  let shownFile = null, shownFolder = null;
  return (state) => {
    const prefix = state.get("folder");
    if (prefix !== shownFolder) {
      shownFolder = prefix;
      const beginning = [null, "."].includes(prefix) ? "" : prefix.endsWith("/") ? prefix : `${prefix}/`;
      files.replaceRows(coverage.files.filter((file) => file.path.startsWith(beginning)));
    }
    const file = coverage.files[state.get("file") ?? -1];
    if (file === shownFile) return;
    shownFile = file;
    source.replaceChildren(...(file?.rows ? sourceElements(file) : []));
    if (file) source.scrollIntoView();
  };
}

const MAX_EMPTY_LINES = 1 << 16;  // numbers of lines can be arbitrary

function sourceElements(file) {
  const lines = file.text, rows = new Map(file.rows.map((row) => [row[0], row]));
  const last = Math.min(Math.max(lines.length, ...rows.keys()), lines.length + MAX_EMPTY_LINES);
  const listing = element("pre", {class: "source", tabindex: 0});
  for (let number = 1; number <= last; number++) {
    const row = rows.get(number), text = lines[number - 1] ?? "";
    const [, count, signs] = row ?? [0, null, ""];
    const kind = !row ? null : !count ? "not" : signs.includes("-") ? "part" : "ran";
    const counts = `${(row ? formatCount(count) : "").padStart(14)} ${signs.padEnd(8)} `;
    listing.append(element("span", {class: kind},
      element("i", {}, `${String(number).padStart(6)} `), `${counts}${text}\n`));
  }
  return [element("h2", {}, file.path),
    element("p", {}, "Columns: line, executions, branches (+ for an outcome that occurred, - for one that "
      + "did not). Lines: ", element("b", {class: "ran"}, "executed"), " ",
      element("b", {class: "part"}, "executed, but some outcome did not occur"), " ",
      element("b", {class: "not"}, "not executed"), ", without colour: no code."), listing];
}

// Single instructions, which the server decodes

const INSTRUCTIONS_AT_ONCE = 100;

function showInstructions(section) {
  const thread = element("select", {onchange: () => show(0)},
    ...data.threads.map(({tid, title}) => element("option", {value: tid}, title)));
  const number = element("input", {type: "number", min: 0, onchange: () => show(+number.value)});
  const button = (text, step) =>
    element("button", {type: "button", onclick: () => show(+number.value + step)}, text);
  const status = element("p", {class: "details", role: "status"});
  const listing = element("pre", {class: "source", tabindex: 0, "aria-label": "Instructions"});
  section.append(element("div", {class: "tools"}, element("label", {}, "Thread ", thread),
    element("label", {}, "First instruction ", number), button("Previous", -INSTRUCTIONS_AT_ONCE),
    button("Next", INSTRUCTIONS_AT_ONCE)), status, listing,
  note("Columns: number, address, bytes and text of the instruction, function. A line after a run of "
    + "instructions is a packet that the decoder read for the run: its offset, fields and bytes."));

  const show = (first) => go({tid: thread.value, first: Math.max(first, 0)});
  let shown = "";

  async function list(tid, first) {
    const query = new URLSearchParams({tid, first, count: INSTRUCTIONS_AT_ONCE});
    if (shown === `${query}`) return;
    shown = `${query}`;
    status.textContent = "Decoding\u2026";
    const reply = await (await fetch(`instructions?${query}`)).json();
    if (shown !== `${query}`) return;  // another request was made meanwhile
    status.textContent = reply.error || (reply.lines.length ? "" : "The thread has no such instruction.");
    listing.replaceChildren(...(reply.lines || []).flatMap((line, offset) => [
      element("span", {}, `${line}\n`),
      ...(reply.packets[first + offset] || []).map(([at, text, bytes]) => element("span", {class: "part"},
        `${" ".repeat(13)}${at.toString(16).padStart(8, "0")}  ${text}  (${bytes})\n`)),
    ]));
  }

  return (state) => {
    thread.value = state.get("tid") ?? data.threads[0]?.tid;
    number.value = state.get("first") ?? 0;
    list(+thread.value, +number.value).catch((error) => { status.textContent = error.message; });
  };
}

// The page

async function showPage() {
  data = await readData();
  if (!data.served || data.no_calls) delete VIEWS.instructions;
  if (data.no_calls) {
    delete VIEWS.timeline;
    delete VIEWS.flame;
  }
  document.querySelector("nav").append(...Object.entries(VIEWS).map(([name, [title]]) =>
    element("a", {href: `#view=${name}`, "data-view": name}, title)));
  addEventListener("hashchange", showView);
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.matches("input, select")) return;
    const fields = [...document.querySelectorAll("input[type=search]")];
    const field = fields.find((each) => each.getClientRects().length);
    if (field) {
      event.preventDefault();
      field.select();
    }
  });
  showView();
  document.body.dataset.ready = "yes";
}

showPage().catch((error) => {
  const text = `The page cannot be shown: ${error.message}`;
  document.querySelector("main").append(element("p", {class: "warning"}, text));
});
