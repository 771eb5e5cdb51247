// What every page does: theme, shortcuts, tables, times in the reader's zone, menus that close.

import { startKeys } from "./keys.js";
import { startTables } from "./table.js";
import { startTheme } from "./theme.js";

const UNITS = [
  ["day", 86400, "d"],
  ["hour", 3600, "h"],
  ["minute", 60, "min"],
];
const REFRESH_MS = 30000;

function relative(then) {
  const seconds = Math.round((Date.now() - then.getTime()) / 1000);
  const size = Math.abs(seconds);
  for (const [, length, unit] of UNITS) {
    if (size >= length) {
      const count = Math.floor(size / length);
      return seconds < 0 ? `in ${count} ${unit}` : `${count} ${unit} ago`;
    }
  }
  return seconds < 0 ? "soon" : "just now";
}

export function showTimes(root = document) {
  for (const time of root.querySelectorAll("time[data-ago]")) {
    const then = new Date(time.dateTime);
    time.title = then.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" });
    const text = relative(then);
    if (time.textContent !== text) time.textContent = text;
  }
}

function startMenus() {
  const menus = document.querySelectorAll("details[data-menu]");
  document.addEventListener("click", (event) => {
    for (const menu of menus) if (menu.open && !menu.contains(event.target)) menu.open = false;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const menu of menus) {
      if (!menu.open) continue;
      menu.open = false;
      menu.querySelector("summary").focus();
    }
  });
}

// Forms that ask before they act: <form data-confirm="…">. Without scripts they act at once, and the server still checks.
function startConfirmations() {
  document.addEventListener("submit", (event) => {
    const question = event.target.dataset.confirm;
    if (question && !window.confirm(question)) event.preventDefault();
  });
}

// Filters act when they are changed, and leave what is empty out of the address.
function startFilters() {
  for (const form of document.querySelectorAll("form[data-autosubmit]")) {
    form.addEventListener("change", (event) => {
      if (event.target.matches("select")) form.requestSubmit();
    });
    form.addEventListener("submit", () => {
      for (const field of form.elements) if (field.name && field.value === "") field.disabled = true;
    });
    window.addEventListener("pageshow", () => {
      for (const field of form.elements) field.disabled = false;
    });
  }
}

// A part of a page that is asked for after the session has ended must not get the sign-in page in its place.
function startSessionWatch() {
  document.addEventListener("htmx:beforeSwap", (event) => {
    const address = event.detail.xhr?.responseURL;
    if (!address || !new URL(address).pathname.startsWith("/sign-in")) return;
    event.detail.shouldSwap = false;
    location.reload();
  });
}

startTheme();
startKeys();
startTables();
startMenus();
startConfirmations();
startFilters();
startSessionWatch();
showTimes();
setInterval(showTimes, REFRESH_MS);
document.addEventListener("htmx:afterSettle", (event) => showTimes(event.target));
