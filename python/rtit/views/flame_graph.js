// Zoom and search of a flame graph; flame_graph.py writes the picture.
// The address keeps the state: #zoom=FRAME&search=TEXT.
"use strict";
// onSelect: gets the name of the function that was clicked. availableWidth: in pixels.
function showFlameGraph(svg, {availableWidth = null, onSelect = null} = {}) {
  const ROW = 18, MARGIN = 10, SEARCH_WIDTH = 200;
  const find = (selector) => svg.querySelector(selector);
  const group = find(".frames"), axis = find(".axis"), head = find(".head");
  const title = find(".title"), note = find(".note"), ownNote = note.textContent;
  const titleText = find("title").textContent;

  // Frames are in the order of a walk through the tree: a frame begins where its caller begins,
  // or where the previous callee of its caller ends.
  const begins = [0];
  const frames = [...group.children].map((element) => {
    const depth = +element.dataset.d, total = +element.dataset.n, start = begins[depth];
    begins[depth] = start + total;
    begins[depth + 1] = start;
    const facts = element.querySelector("title").textContent;
    const text = element.querySelector("text") || element.appendChild(create("text", {x: 3, y: 13}));
    return {element, text, depth, total, start, facts, name: facts.slice(0, facts.indexOf("\n"))};
  });
  const whole = frames[0];
  let zoomed = whole, width = 0;

  function create(name, attributes, parent) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    setAttributes(element, attributes);
    return parent ? parent.appendChild(element) : element;
  }

  function setAttributes(element, attributes) {
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  }

  function shorten(text, space, size) {
    const count = Math.floor(space / size);
    return text.length <= count ? text : count > 2 ? text.slice(0, count - 1) + "\u2026" : "";
  }

  function draw() {
    const scale = (width - 2 * MARGIN) / (zoomed.total || 1), end = zoomed.start + zoomed.total;
    for (const frame of frames) {
      const frameEnd = frame.start + frame.total;
      const isCaller = frame.depth < zoomed.depth && frame.start <= zoomed.start && frameEnd >= end;
      const isInside = frame.depth >= zoomed.depth && frame.start >= zoomed.start && frameEnd <= end;
      const total = isCaller ? zoomed.total : frame.total;
      const isShown = isCaller || (isInside && total * scale >= 0.2);
      frame.element.style.display = isShown ? "" : "none";
      frame.element.classList.toggle("caller", isCaller);
      if (!isShown) continue;
      const x = isCaller ? 0 : (frame.start - zoomed.start) * scale;
      setAttributes(frame.element, {x: MARGIN + x, width: total * scale});
      frame.text.textContent = shorten(frame.name, total * scale - 6, characterWidth);
    }
    const count = (number) => number.toLocaleString("en-US");
    axis.textContent = zoomed === whole ? `${count(whole.total)} instructions`
      : `${count(zoomed.total)} of ${count(whole.total)} instructions`;
    reset.style.display = zoomed === whole ? "none" : "";
  }

  function resize() {
    const height = svg.getAttribute("height");
    if (availableWidth) {
      width = availableWidth();
      if (width <= 0) return;  // the page does not show the graph
      setAttributes(svg, {width, viewBox: `0 0 ${width} ${height}`});
    } else {
      width = svg.viewBox.baseVal.width;
    }
    const right = width - MARGIN - SEARCH_WIDTH;
    box.setAttribute("x", right);
    reset.setAttribute("x", right - 10);
    matched.setAttribute("x", width - MARGIN);
    title.textContent = shorten(titleText, right - 110, characterWidth * 15 / 12);
    draw();
  }

  function search() {
    let pattern = null, sum = 0, covered = 0, count = 0;
    try {
      pattern = input.value && new RegExp(input.value, "i");
      input.setCustomValidity("");
    } catch {
      input.setCustomValidity("not a regular expression");
    }
    for (const frame of frames) {
      const isFound = Boolean(pattern) && frame !== whole && pattern.test(frame.name);
      frame.element.classList.toggle("found", isFound);
      if (!isFound) continue;
      count++;
      if (frame.start < covered) continue;  // a caller is found, too
      sum += frame.total;
      covered = frame.start + frame.total;
    }
    const share = (100 * sum / (whole.total || 1)).toFixed(2);
    matched.textContent = input.value ? `${count} found, ${share}%` : "";
  }

  function keepState() {
    const state = new URLSearchParams(location.hash.slice(1));
    const values = {zoom: zoomed === whole ? "" : frames.indexOf(zoomed), search: input.value};
    for (const [name, value] of Object.entries(values)) {
      if (value) state.set(name, value);
      else state.delete(name);
    }
    location.replace(`#${state}`);
  }

  function zoom(frame) {
    zoomed = frame;
    draw();
    keepState();
    if (onSelect) onSelect(frame === whole ? null : frame.name);
  }

  function showFacts(frame) {
    const facts = frame?.facts.replace("\n", ": ");
    if (facts) note.textContent = shorten(facts, width - 2 * MARGIN - 180, characterWidth);
  }

  // Frames are reached by arrow keys; the Tab key reaches the one that was reached last.
  function focus(frame) {
    if (!frame) return;
    for (const each of frames) each.element.setAttribute("tabindex", each === frame ? 0 : -1);
    frame.element.focus();
  }

  function neighbour(frame, key) {
    const step = key === "ArrowLeft" || key === "ArrowDown" ? -1 : 1;
    const depth = frame.depth + (key === "ArrowUp" ? 1 : key === "ArrowDown" ? -1 : 0);
    for (let at = frames.indexOf(frame) + step; frames[at]; at += step) {
      if (frames[at].element.style.display === "none") continue;
      if (frames[at].depth === depth) return frames[at];
      if (key === "ArrowUp" && frames[at].depth < depth) return null;
    }
    return null;
  }

  const frameOf = (event) => frames.find((frame) => frame.element === event.target.closest(".frames > svg"));
  group.classList.add("zoomable");
  group.addEventListener("click", (event) => zoom(frameOf(event) || zoomed));
  group.addEventListener("mouseover", (event) => showFacts(frameOf(event)));
  // as a listener of the group, it would let the Tab key reach the group
  document.addEventListener("focusin", (event) => showFacts(frameOf(event)));
  group.addEventListener("keydown", (event) => {
    const frame = frameOf(event);
    if (!frame || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Enter" || event.key === " ") zoom(frame);
    else if (event.key.startsWith("Arrow")) focus(neighbour(frame, event.key));
    else return;
    event.preventDefault();
  });
  for (const {element, facts} of frames) {
    setAttributes(element, {tabindex: -1, role: "button", "aria-label": facts.replace("\n", ": ")});
  }
  whole.element.setAttribute("tabindex", 0);
  group.addEventListener("mouseleave", () => { note.textContent = ownNote; });

  const reset = create("text",
    {class: "reset", y: 24, "text-anchor": "end", tabindex: 0, role: "button"}, head);
  reset.textContent = "Reset zoom";
  reset.addEventListener("click", () => zoom(whole));
  reset.addEventListener("keydown", (event) => { if (event.key === "Enter") zoom(whole); });
  const matched = create("text", {class: "note", y: 46, "text-anchor": "end"}, head);
  const box = create("foreignObject", {y: 8, width: SEARCH_WIDTH, height: 24}, head);
  const input = document.createElementNS("http://www.w3.org/1999/xhtml", "input");
  Object.assign(input, {type: "search", placeholder: "Search (regular expression)"});
  input.setAttribute("aria-label", "Search functions of the flame graph");
  box.appendChild(input).addEventListener("input", () => { search(); keepState(); });
  addEventListener("keydown", (event) => {
    if (!svg.getClientRects().length) return;
    if (event.key === "f" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      input.select();
    } else if (event.key === "Escape") {
      input.value = "";
      search();
      zoom(whole);
    }
  });

  const sample = create("text", {}, group);
  sample.textContent = "0".repeat(100);
  const characterWidth = sample.getComputedTextLength() / 100 || 7.25;
  sample.remove();
  const state = new URLSearchParams(location.hash.slice(1));
  zoomed = frames[+state.get("zoom")] || whole;
  input.value = state.get("search") || "";
  resize();
  search();
  if (availableWidth) {
    addEventListener("resize", resize);
    // The root is at the end of the picture; the title and the search stay visible.
    addEventListener("scroll", () => {
      const hidden = Math.max(-svg.getBoundingClientRect().top, 0);
      head.setAttribute("transform", `translate(0 ${hidden})`);
    });
  }
  return {resize};
}

function showFlameGraphFile(svg) {
  if (svg !== document.documentElement) return showFlameGraph(svg);
  showFlameGraph(svg, {availableWidth: () => Math.max(innerWidth - 16, 500)});
  scrollTo(0, svg.getAttribute("height"));
}
