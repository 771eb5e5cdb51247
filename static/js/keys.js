// The one table of keyboard shortcuts. The help dialog is drawn from it, and only this file listens for them.
// A page adds its own with addShortcuts([["u", "what it does", act]]); one with a key of this table takes its place.
// A shortcut without a text is not in the help: another one speaks for it.

import { moveRow, openRow, selectRow } from "./table.js";
import { switchDensity, switchTheme } from "./theme.js";

const SEQUENCE_MS = 1200;

const go = (selector) => () => {
  const link = document.querySelector(selector);
  if (link) location.assign(link.href);
};

const SHORTCUTS = [
  ["?", "this help", openHelp],
  ["g o", "overview", () => location.assign("/")],
  ["g v", "validations", () => location.assign("/validations/")],
  ["g c", "compare", () => location.assign("/compare/")],
  ["g p", "problems", () => location.assign("/problems/")],
  ["g t", "triage", () => location.assign("/triage/")],
  ["n", "new validation", () => location.assign("/validations/new/")],
  ["/", "search", focusSearch],
  ["j", "next row of a table", () => moveRow(1)],
  ["k", "row before", () => moveRow(-1)],
  ["enter", "open the row", openRow],
  ["x", "select the row", selectRow],
  ["]", "next page of a list", go("a[rel=next]")],
  ["[", "page before", go("a[rel=prev]")],
  ["t", "theme: system, light, dark", switchTheme],
  ["d", "density: comfortable, compact", switchDensity],
];

export function addShortcuts(rows) {
  for (const row of rows) {
    const at = SHORTCUTS.findIndex(([keys]) => keys === row[0]);
    if (at < 0) SHORTCUTS.push(row);
    else SHORTCUTS[at] = row;
  }
}

const SHOWN = { " ": "space" };

function openHelp() {
  const list = document.getElementById("help-list");
  const rows = SHORTCUTS.filter(([, text]) => text).flatMap(([keys, text]) => {
    const term = document.createElement("dt");
    for (const [index, key] of (keys === " " ? [keys] : keys.split(" ")).entries()) {
      if (index) term.append(" then ");
      const cap = document.createElement("kbd");
      cap.textContent = SHOWN[key] ?? key;
      term.append(cap);
    }
    const description = document.createElement("dd");
    description.textContent = text;
    return [term, description];
  });
  list.replaceChildren(...rows);
  document.getElementById("help").showModal();
}

function focusSearch() {
  const box = document.querySelector("[data-search]");
  if (!box) {
    location.assign("/validations/#search");
    return;
  }
  box.focus();
  box.select();
}

const isTyping = (target) => target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]") !== null;

export function startKeys() {
  if (location.hash === "#search") focusSearch();
  let first = "";
  let timer = 0;
  for (const button of document.querySelectorAll("[data-open-help]")) {
    button.hidden = false;
    button.addEventListener("click", openHelp);
  }
  document.addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]")) return;
    if ((event.ctrlKey || event.metaKey) && event.key === "Enter") {
      const save = SHORTCUTS.find(([each]) => each === "ctrl+enter");
      if (!save) return;
      event.preventDefault();
      save[2]();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    const key = event.key === "Enter" ? "enter" : event.key;
    // Enter and space belong to the link, button or box that has the focus; a closed dialog's has it a moment longer.
    const holder = key === "enter" || key === " " ? event.target.closest("a, button, summary, input") : null;
    if (holder?.checkVisibility()) return;
    const keys = first ? `${first} ${key}` : key;
    clearTimeout(timer);
    first = "";
    const shortcut = SHORTCUTS.find(([each]) => each === keys);
    if (shortcut) {
      event.preventDefault();
      shortcut[2]();
    } else if (SHORTCUTS.some(([each]) => each.startsWith(`${keys} `))) {
      first = keys;
      timer = setTimeout(() => (first = ""), SEQUENCE_MS);
    }
  });
}
