// Elements, numbers, and tables that are sorted and searched. Texts become text nodes: no name is
// ever parsed as markup.

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((each) => each !== null));
  return made;
}

const formatCount = (number) => number === null ? "-" : number.toLocaleString("en-US");
const countNoun = (number, noun) => `${formatCount(number)} ${noun}${number === 1 ? "" : "s"}`;
const formatShare = (part, whole) => whole ? `${(100 * part / whole).toFixed(1)}%` : "-";
const fileName = (path) => path.slice(path.lastIndexOf("/") + 1);

// Returns a predicate: a regular expression in either case, or a part of the text if it is none.
function matcher(pattern) {
  if (!pattern) return () => true;
  try {
    const found = new RegExp(pattern, "i");
    return (text) => found.test(text);
  } catch {
    return (text) => text.toLowerCase().includes(pattern.toLowerCase());
  }
}

function searchField(label, onInput) {
  return element("input", {type: "search", "aria-label": label, placeholder: label,
    oninput: (event) => onInput(event.target.value)});
}

const ROWS_AT_ONCE = 200;

// A table of `rows`. Columns: {title, value(row), show(row): text or element, isName, share(row)}.
// The first click on a column of numbers sorts the largest first, on one of names the first letter.
class DataTable {
  constructor({caption, columns, rows, sortedBy, searched = null}) {
    this.columns = columns;
    this.rows = rows;
    this.searched = searched;
    this.sortedBy = sortedBy;
    this.isDescending = !columns[sortedBy].isName;
    this.shown = ROWS_AT_ONCE;
    this.headers = columns.map((column, number) => element("th",
      {scope: "col", class: column.isName ? "name" : column.share ? "share" : null},
      element("button", {type: "button", onclick: () => this.sort(number)}, column.title)));
    this.body = element("tbody");
    this.more = element("button", {type: "button", onclick: () => this.showMore()});
    this.summary = element("span", {class: "faint", role: "status"});
    this.element = element("div", {},
      element("div", {class: "wide"}, element("table", {},
        element("caption", {class: "hidden"}, caption),
        element("thead", {}, element("tr", {}, ...this.headers)), this.body)),
      element("div", {class: "tools"}, this.more, this.summary));
    this.search("");
  }

  sort(number) {
    this.isDescending = this.sortedBy === number ? !this.isDescending : !this.columns[number].isName;
    this.sortedBy = number;
    this.draw();
  }

  search(pattern) {
    const matches = matcher(pattern);
    this.found = pattern ? this.rows.filter((row) => matches(this.searched(row))) : this.rows;
    this.shown = ROWS_AT_ONCE;
    this.draw();
  }

  replaceRows(rows) {
    this.rows = this.found = rows;
    this.shown = ROWS_AT_ONCE;
    this.draw();
  }

  showMore() {
    this.shown += ROWS_AT_ONCE;
    this.draw();
  }

  draw() {
    const {value} = this.columns[this.sortedBy], sign = this.isDescending ? -1 : 1;
    const keyed = this.found.map((row) => [value(row), row]);
    keyed.sort(([a], [b]) => sign * (a < b ? -1 : a > b ? 1 : 0));
    this.headers.forEach((header, number) => {
      if (number !== this.sortedBy) header.removeAttribute("aria-sort");
      else header.setAttribute("aria-sort", this.isDescending ? "descending" : "ascending");
    });
    this.body.replaceChildren(...keyed.slice(0, this.shown).map(([, row]) => this.rowElement(row)));
    this.more.hidden = keyed.length <= this.shown;
    this.more.textContent = `Show ${Math.min(ROWS_AT_ONCE, keyed.length - this.shown)} more`;
    const shown = Math.min(keyed.length, this.shown);
    this.summary.textContent = shown < this.rows.length
      ? `${formatCount(shown)} of ${formatCount(this.rows.length)}` : "";
  }

  rowElement(row) {
    const cells = this.columns.map((column) => {
      const share = column.share ? column.share(row) : null;
      const cell = element("td", {class: column.isName ? "name" : share === null ? null : "share"},
        column.show(row));
      if (share !== null) cell.style.setProperty("--share", `${100 * share}%`);
      return cell;
    });
    return element("tr", {}, ...cells);
  }
}

const countColumn = (title, value) => ({title, value, show: (row) => formatCount(value(row))});

function shareColumn(title, value, whole) {
  const wholeOf = typeof whole === "function" ? whole : () => whole;
  return {
    title,
    value: (row) => wholeOf(row) ? value(row) / wholeOf(row) : -1,
    show: (row) => formatShare(value(row), wholeOf(row)),
    share: (row) => wholeOf(row) ? value(row) / wholeOf(row) : 0,
  };
}

const linkButton = (text, onclick) => element("button", {type: "button", class: "link", onclick}, text);
const note = (text) => text ? element("p", {class: "faint"}, text) : "";
