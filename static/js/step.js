// The step page: arrow keys in the heatmap, the cell that is open, and tables that sort by a click on their head.

function neighbour(link, rows, columns) {
  const cell = link.closest("td");
  const body = cell.closest("tbody");
  const row = cell.parentElement;
  if (columns) {
    for (let at = cell.cellIndex + columns; at >= 0 && at < row.cells.length; at += columns) {
      const found = row.cells[at].querySelector("a");
      if (found) return found;
    }
    return null;
  }
  const all = [...body.rows];
  for (let at = all.indexOf(row) + rows; at >= 0 && at < all.length; at += rows) {
    const found = all[at].cells[cell.cellIndex]?.querySelector("a");
    if (found) return found;
  }
  return null;
}

const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

function startHeat(table) {
  // One stop for the tab key; the arrows do the rest.
  const links = [...table.querySelectorAll("tbody a")];
  for (const [index, link] of links.entries()) link.tabIndex = index ? -1 : 0;
  table.addEventListener("focusin", (event) => {
    const link = event.target.closest("tbody a");
    if (!link) return;
    for (const each of links) each.tabIndex = each === link ? 0 : -1;
  });
  table.addEventListener("keydown", (event) => {
    const link = event.target.closest("tbody a");
    const move = MOVES[event.key];
    if (!link || !move) return;
    event.preventDefault();
    neighbour(link, ...move)?.focus();
  });
}

function markOpenCell() {
  const open = new URLSearchParams(location.search).get("tensor");
  for (const link of document.querySelectorAll("[data-heat] tbody a")) {
    const name = new URL(link.href).searchParams.get("tensor");
    if (open && name === open) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
}

const valueOf = (cell) => cell.querySelector("[title]")?.title || cell.textContent.trim();

function compare(a, b) {
  const [x, y] = [Number(a), Number(b)];
  if (a !== "" && b !== "" && !Number.isNaN(x) && !Number.isNaN(y)) return x - y;
  // what is no number comes last: "–", and "nan"
  if (Number.isNaN(x) !== Number.isNaN(y)) return Number.isNaN(x) ? 1 : -1;
  return a.localeCompare(b, undefined, { numeric: true });
}

function sortBy(table, head, column) {
  const down = head.getAttribute("aria-sort") !== "descending";
  for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [valueOf(row.cells[column]), row]);
  rows.sort(([a], [b]) => compare(a, b) * (down ? -1 : 1));
  body.replaceChildren(...rows.map(([, row]) => row));
}

function startSorting(root) {
  for (const table of root.querySelectorAll("table[data-sortable]:not([data-sorting])")) {
    table.dataset.sorting = "";
    for (const [column, head] of [...table.tHead.rows[0].cells].entries()) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      button.addEventListener("click", () => sortBy(table, head, column));
      head.append(button);
    }
  }
}

for (const table of document.querySelectorAll("[data-heat]")) startHeat(table);
startSorting(document);
markOpenCell();
document.addEventListener("htmx:afterSettle", (event) => {
  startSorting(event.target);
  markOpenCell();
  if (event.target.id !== "tensor") return;
  event.target.scrollIntoView({ block: "nearest" });
  document.getElementById("tensor-title")?.focus({ preventScroll: true });
});
window.addEventListener("popstate", () => location.reload());
