// The form of a new validation: sent once, choosing all or no checks, and what differs from the validation it clones.

const form = document.getElementById("new");

const valueOf = (field) => (field.type === "checkbox" ? (field.checked ? "true" : "") : field.value.trim());
const nameOf = (field) => (field.name === "checks" ? field.value : field.labels?.[0]?.textContent.trim() ?? field.name);

function showChanges() {
  const label = document.querySelector("[data-changes]");
  if (!label) return;
  const changed = [...form.querySelectorAll("[data-origin]")].filter((field) => {
    const differs = valueOf(field) !== field.dataset.origin;
    field.closest(".field, .check").classList.toggle("field-changed", differs);
    return differs;
  });
  label.textContent = changed.length
    ? `Differs in ${changed.length}: ${changed.map((field) => `${nameOf(field)} ${field.dataset.origin || "–"} → ${valueOf(field) || "–"}`).join(", ")}.`
    : "Nothing differs yet.";
}

function chooseChecks(chosen) {
  for (const box of form.querySelectorAll("input[name=checks]")) box.checked = chosen;
  form.dispatchEvent(new Event("change", { bubbles: true }));
}

// Three dozen checks are chosen from by their claims; the rest is a screen long for each level.
function toggleHelp(button) {
  const shown = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", String(shown));
  document.getElementById("field-checks").classList.toggle("is-brief", !shown);
}

function openGroupOf(id) {
  const group = document.getElementById(id)?.closest("details");
  if (group) group.open = true;
}

function start() {
  for (const part of form.querySelectorAll("[data-needs-script]")) part.hidden = false;
  form.querySelector("[data-check-all]").addEventListener("click", () => chooseChecks(true));
  form.querySelector("[data-check-none]").addEventListener("click", () => chooseChecks(false));
  const help = form.querySelector("[data-check-help]");
  help.addEventListener("click", () => toggleHelp(help));
  document.getElementById("field-checks").classList.add("is-brief");
  form.addEventListener("input", showChanges);
  form.addEventListener("change", showChanges);
  document.getElementById("errors")?.addEventListener("click", (event) => {
    const target = event.target.hash?.slice(1);
    if (!target) return;
    event.preventDefault();
    openGroupOf(target);
    document.getElementById(target).focus();
  });
  // The hidden key makes two submissions one; the button says so at once.
  form.addEventListener("submit", (event) => {
    if (form.dataset.sent) return event.preventDefault();
    form.dataset.sent = "1";
    const button = form.querySelector("button[type=submit]");
    button.textContent = "Submitting…";
    button.setAttribute("aria-disabled", "true");
  });
  // Back from the next page, the form can be sent again.
  window.addEventListener("pageshow", () => {
    delete form.dataset.sent;
    const button = form.querySelector("button[type=submit]");
    button.textContent = "Submit";
    button.removeAttribute("aria-disabled");
  });
  showChanges();
}

if (form) start();
