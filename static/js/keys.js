// The one table of keyboard shortcuts. The help dialog is drawn from it, and only this file listens for them.
// A page adds its own with addShortcuts([["u", "what it does", act]]).

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
  SHORTCUTS.push(...rows);
}

function openHelp() {
  const list = document.getElementById("help-list");
  const rows = SHORTCUTS.flatMap(([keys, text]) => {
    const term = document.createElement("dt");
    for (const [index, key] of keys.split(" ").entries()) {
      if (index) term.append(" then ");
      const cap = document.createElement("kbd");
      cap.textContent = key;
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
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    if (document.querySelector("dialog[open]")) return;
    const key = event.key === "Enter" ? "enter" : event.key;
    // Enter and space belong to the link or button that has the focus.
    if (key === "enter" && event.target.closest("a, button, summary")) return;
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
