// Theme and density: kept in cookies, so that the server draws the page in them and nothing flashes.
// Charts listen for "plumbline:theme" on the document.

const YEAR_S = 31536000;
const THEMES = ["auto", "light", "dark"];
const THEME_NAMES = { auto: "system", light: "light", dark: "dark" };
const DENSITIES = ["comfortable", "compact"];

const root = document.documentElement;

function remember(name, value) {
  const secure = location.protocol === "https:" ? "; secure" : "";
  document.cookie = `${name}=${value}; path=/; max-age=${YEAR_S}; samesite=lax${secure}`;
}

function next(values, value) {
  return values[(values.indexOf(value) + 1) % values.length];
}

function show() {
  for (const label of document.querySelectorAll("[data-theme-name]")) label.textContent = THEME_NAMES[root.dataset.theme];
  for (const label of document.querySelectorAll("[data-density-name]")) label.textContent = root.dataset.density;
}

function announce() {
  document.dispatchEvent(new CustomEvent("plumbline:theme", { detail: { theme: root.dataset.theme } }));
}

export function switchTheme() {
  root.dataset.theme = next(THEMES, root.dataset.theme);
  remember("theme", root.dataset.theme);
  show();
  announce();
}

export function switchDensity() {
  root.dataset.density = next(DENSITIES, root.dataset.density);
  remember("density", root.dataset.density);
  show();
}

export function startTheme() {
  for (const [selector, act] of [["[data-theme-switch]", switchTheme], ["[data-density-switch]", switchDensity]]) {
    for (const button of document.querySelectorAll(selector)) {
      button.hidden = false;
      button.addEventListener("click", act);
    }
  }
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", announce);
  show();
}
