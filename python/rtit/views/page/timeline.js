// The calls of each thread over instructions or time: one canvas for each track, one range for all.

const CALL_HEIGHT = 17, MIN_RANGE = 8, LABEL_SPACE = 26;
const TIMELINE_HELP = "Arrow keys move, + and - zoom, Home shows all, Page Up and Page Down go to the "
  + "next call, Enter zooms to the call. Mouse: the wheel with Ctrl zooms, drag to move, double "
  + "click to zoom to a call.";

// 1.5 k, 2 M: for the axis, where the range says how exact a number is
function shortNumber(number) {
  for (const [size, unit] of [[1e9, " G"], [1e6, " M"], [1e3, " k"]]) {
    if (Math.abs(number) >= size) return `${+(number / size).toFixed(6)}${unit}`;
  }
  return String(+number.toFixed(3));
}

class Timeline {
  // onSelect: gets a track and the number of a call in it.
  constructor({names, axes}, onSelect) {
    this.names = names;
    this.axes = axes;
    this.onSelect = onSelect;
    this.selected = null;
    this.matches = null;
    this.element = element("div");
    this.observer = new IntersectionObserver((entries) => {
      for (const {target, isIntersecting} of entries) {
        const track = this.tracks.find((each) => each.canvas === target);
        if (!track) continue;
        track.isVisible = isIntersecting;
        if (isIntersecting) this.drawTrack(track);
      }
    });
    this.setAxis("instructions");
    addEventListener("resize", () => this.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  setAxis(axis) {
    this.axis = axis;
    this.selected = null;
    this.observer.disconnect();
    this.tracks = this.axes[axis].map((packed) => this.unpack(packed));
    const withCalls = this.tracks.filter((track) => track.calls);
    this.first = Math.min(...withCalls.map((track) => track.begins[0]), Infinity);
    this.last = Math.max(...withCalls.map((track) => track.end), -Infinity);
    if (this.first > this.last) this.first = this.last = 0;
    this.last = Math.max(this.last, this.first + MIN_RANGE);
    this.range = [this.first, this.last];
    this.element.replaceChildren(...this.tracks.map((track) => this.trackElement(track)));
    for (const track of this.tracks) if (track.canvas) this.observer.observe(track.canvas);
  }

  unpack(packed) {
    let at = packed.start, end = 0, deepest = 0;
    const begins = packed.begin.map((step) => at += step);
    const ends = begins.map((begin, number) => begin + packed.length[number]);
    for (const each of ends) end = Math.max(end, each);
    for (const each of packed.depth) deepest = Math.max(deepest, each);
    return {...packed, begins, ends, end, rows: deepest + 1, isVisible: false, canvas: null};
  }

  trackElement(track) {
    const heading = element("h3", {}, `${track.title} `,
      element("span", {class: "faint"}, `thread ${track.tid}, process ${track.pid}: `
        + countNoun(track.calls, "call")));
    if (!track.calls) return element("section", {class: "track"}, heading);
    const height = track.rows * CALL_HEIGHT + LABEL_SPACE;
    track.canvas = element("canvas", {tabindex: 0, role: "application",
      "aria-label": `Timeline of ${track.title}, thread ${track.tid}. ${TIMELINE_HELP}`});
    track.canvas.style.height = `${height}px`;
    track.height = height;
    this.listen(track);
    return element("section", {class: "track"}, heading, track.canvas);
  }

  listen(track) {
    const {canvas} = track;
    let dragged = null;
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey) return;
      event.preventDefault();
      if (event.shiftKey) this.move((event.deltaX || event.deltaY) / 500);
      else this.zoom(Math.exp(event.deltaY / 200), this.positionAt(canvas, event.offsetX));
    }, {passive: false});
    canvas.addEventListener("pointerdown", (event) => {
      dragged = {x: event.clientX, range: this.range, hasMoved: false};
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!dragged) {
        const call = this.callAt(track, event.offsetX, event.offsetY);
        canvas.title = call < 0 ? "" : this.describe(track, call);
        return;
      }
      const moved = event.clientX - dragged.x;
      dragged.hasMoved ||= Math.abs(moved) > 3;
      if (!dragged.hasMoved) return;
      const [begin, end] = dragged.range, step = moved * (end - begin) / canvas.clientWidth;
      this.show(begin - step, end - step);
    });
    canvas.addEventListener("pointerup", (event) => {
      const wasMoved = dragged?.hasMoved;
      dragged = null;
      if (!wasMoved) this.select(track, this.callAt(track, event.offsetX, event.offsetY));
    });
    canvas.addEventListener("dblclick", (event) => {
      this.zoomTo(track, this.callAt(track, event.offsetX, event.offsetY));
    });
    canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      const step = {ArrowLeft: -0.1, ArrowRight: 0.1}[event.key];
      const [begin, end] = this.range, current = this.selected?.track === track ? this.selected.call : -1;
      if (step) this.move(step);
      else if (event.key === "+" || event.key === "=") this.zoom(0.6, (begin + end) / 2);
      else if (event.key === "-") this.zoom(1 / 0.6, (begin + end) / 2);
      else if (event.key === "Home") this.show(this.first, this.last);
      else if (event.key === "PageDown") this.select(track, Math.min(current + 1, track.calls - 1));
      else if (event.key === "PageUp") this.select(track, Math.max(current - 1, 0));
      else if (event.key === "Enter") this.zoomTo(track, current);
      else return;
      event.preventDefault();
    });
  }

  positionAt(canvas, x) {
    return this.range[0] + x / canvas.clientWidth * (this.range[1] - this.range[0]);
  }

  callAt(track, x, y) {
    const position = this.positionAt(track.canvas, x);
    const depth = Math.floor((y - LABEL_SPACE) / CALL_HEIGHT);
    const slack = 2 / track.canvas.clientWidth * (this.range[1] - this.range[0]);
    let found = -1;
    for (let call = 0; call < track.calls && track.begins[call] <= position + slack; call++) {
      if (track.depth[call] === depth && track.ends[call] >= position - slack) found = call;
    }
    return found;
  }

  describe(track, call) {
    const begin = track.begins[call], end = track.ends[call];
    const what = this.axis === "time" ? "ns" : "instructions";
    return `${this.names[track.name[call]]}: ${formatCount(end - begin)} ${what}, from `
      + `${formatCount(begin)} to ${formatCount(end)}`;
  }

  select(track, call) {
    this.selected = call < 0 ? null : {track, call};
    this.draw();
    this.onSelect(call < 0 ? null : track, call);
  }

  zoomTo(track, call) {
    if (call < 0) return;
    const margin = (track.ends[call] - track.begins[call]) / 50;
    this.show(track.begins[call] - margin, track.ends[call] + margin);
  }

  zoom(factor, around = (this.range[0] + this.range[1]) / 2) {
    const [begin, end] = this.range;
    this.show(around - (around - begin) * factor, around + (end - around) * factor);
  }

  move(share) {
    const step = share * (this.range[1] - this.range[0]);
    this.show(this.range[0] + step, this.range[1] + step);
  }

  show(begin, end) {
    const size = Math.min(Math.max(end - begin, MIN_RANGE), this.last - this.first);
    const from = Math.min(Math.max(begin + (end - begin - size) / 2, this.first), this.last - size);
    this.range = [from, from + size];
    this.draw();
  }

  search(pattern) {
    const matches = matcher(pattern);
    this.matches = pattern ? this.names.map(matches) : null;
    this.draw();
  }

  draw() {
    for (const track of this.tracks) if (track.isVisible) this.drawTrack(track);
  }

  drawTrack(track) {
    const {canvas} = track, width = canvas.clientWidth, ratio = devicePixelRatio || 1;
    if (!width) return;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(track.height * ratio);
    const context = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    context.scale(ratio, ratio);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    this.drawAxis(context, width, track.height, colour);
    const [first, last] = this.range, scale = width / (last - first);
    const lastPixel = new Int32Array(track.rows).fill(-1);
    for (let call = 0; call < track.calls; call++) {
      const begin = track.begins[call], end = track.ends[call], depth = track.depth[call];
      if (begin > last) break;
      if (end < first) continue;
      const x = Math.max((begin - first) * scale, -2), right = Math.min((end - first) * scale, width + 2);
      const isFound = this.matches?.[track.name[call]];
      const isSelected = this.selected?.track === track && this.selected.call === call;
      // calls that share a pixel are one line
      if (right <= lastPixel[depth] && !isFound && !isSelected) continue;
      lastPixel[depth] = Math.floor(Math.max(right, x + 1));
      const top = LABEL_SPACE + depth * CALL_HEIGHT, size = Math.max(right - x - 0.5, 1);
      context.fillStyle = isFound ? "#86198f" : this.colourOf(track.name[call]);
      context.fillRect(x, top, size, CALL_HEIGHT - 1);
      if (isSelected) {
        context.strokeStyle = colour("--text");
        context.lineWidth = 2;
        context.strokeRect(x, top, Math.max(size, 2), CALL_HEIGHT - 1);
      }
      const space = size - 6;
      if (space < 14) continue;
      context.fillStyle = isFound ? "#ffffff" : "#18181b";
      context.fillText(this.label(context, this.names[track.name[call]], space), x + 3, top + CALL_HEIGHT / 2);
    }
  }

  drawAxis(context, width, height, colour) {
    const [first, last] = this.range, size = last - first;
    const rough = size / Math.max(width / 110, 1), power = 10 ** Math.floor(Math.log10(rough));
    const step = Math.max([1, 2, 5, 10].find((each) => each * power >= rough) * power, 1);
    for (let at = Math.ceil(first / step) * step; at <= last; at += step) {
      const x = (at - first) / size * width;
      context.fillStyle = colour("--line");
      context.fillRect(x, 0, 1, height);
      context.fillStyle = colour("--faint");
      context.fillText(shortNumber(at), x + 4, LABEL_SPACE / 2);
    }
  }

  label(context, name, space) {
    if (context.measureText(name).width <= space) return name;
    const characters = Math.floor(name.length * space / context.measureText(name).width) - 1;
    return characters > 1 ? `${name.slice(0, characters)}\u2026` : "";
  }

  // a light colour, the same for all calls of a function
  colourOf(name) {
    const hue = name * 137.508 % 360;
    return `hsl(${hue.toFixed(0)} 65% 76%)`;
  }
}
