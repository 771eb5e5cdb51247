// Tables: moving with the keyboard, opening and selecting rows.
// <table data-rows> has rows with a link; a row may have <input type=checkbox data-pick>. A form with data-picked shows
// how many rows are picked, and is hidden while there are none.

const MOST_COMPARED = 20;

const rows = () => [...document.querySelectorAll("table[data-rows] tbody tr")];
const current = () => document.activeElement?.closest?.("table[data-rows] tbody tr") ?? null;

export function moveRow(by) {
  const all = rows();
  if (!all.length) return;
  const at = all.indexOf(current());
  const row = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + by, 0), all.length - 1)];
  row.tabIndex = -1;
  row.focus();
  row.scrollIntoView({ block: "nearest" });
}

export function openRow() {
  const link = current()?.querySelector("a[href]");
  if (link) location.assign(link.href);
}

export function selectRow() {
  const box = current()?.querySelector("input[data-pick]");
  if (!box) return;
  box.checked = !box.checked;
  box.dispatchEvent(new Event("change", { bubbles: true }));
}

function showPicked() {
  const boxes = [...document.querySelectorAll("input[data-pick]")];
  const count = boxes.filter((box) => box.checked).length;
  for (const box of boxes) box.closest("tr").classList.toggle("is-selected", box.checked);
  for (const bar of document.querySelectorAll("[data-picked]")) {
    bar.hidden = count === 0;
    for (const label of bar.querySelectorAll("[data-picked-count]")) label.textContent = count;
    for (const button of bar.querySelectorAll("[data-needs-two]")) button.disabled = count < 2 || count > MOST_COMPARED;
  }
  for (const all of document.querySelectorAll("input[data-pick-all]")) {
    all.checked = count > 0 && count === boxes.length;
    all.indeterminate = count > 0 && count < boxes.length;
  }
}

export function startTables() {
  document.addEventListener("change", (event) => {
    if (event.target.matches("input[data-pick-all]")) {
      for (const box of document.querySelectorAll("input[data-pick]")) box.checked = event.target.checked;
    }
    if (event.target.matches("input[data-pick], input[data-pick-all]")) showPicked();
  });
  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-pick-none]")) return;
    for (const box of document.querySelectorAll("input[data-pick]")) box.checked = false;
    showPicked();
  });
  showPicked();
}
