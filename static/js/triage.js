// Triage by keyboard: a finding's page, a meeting's, and the decision about many.

import { addShortcuts } from "./keys.js";

const form = document.querySelector("form[data-decision]");

const go = (selector) => () => {
  const link = document.querySelector(selector);
  if (link) location.assign(link.href);
};

const field = (name) => form?.querySelector(`[name="${name}"]:not([type="radio"])`);

function focus(name) {
  const box = field(name);
  if (!box) return;
  box.focus();
  box.scrollIntoView({ block: "nearest" });
}

function choose(decision) {
  const radio = form?.querySelector(`[name="decision"][value="${decision}"]`);
  if (!radio) return false;
  radio.checked = true;
  radio.scrollIntoView({ block: "nearest" });
  return true;
}

const decide = (decision, then) => () => {
  if (choose(decision) && then) focus(then);
};

function take(number) {
  const buttons = document.querySelectorAll("[data-suggest]");
  if (buttons[number - 1]) takeProblem(buttons[number - 1].dataset.suggest);
}

function takeProblem(problem) {
  if (!choose("known")) return;
  field("problem").value = problem;
  field("problem").dispatchEvent(new Event("change", { bubbles: true }));
}

function onlyUndecided() {
  const address = new URL(location.href);
  if (address.searchParams.get("standing") === "all") address.searchParams.delete("standing");
  else address.searchParams.set("standing", "all");
  address.searchParams.delete("page");
  location.assign(address);
}

const submit = (selector) => () => document.querySelector(selector)?.requestSubmit();

if (document.querySelector("[data-triage]")) {
  addShortcuts([
    ["j", "next finding", go("[data-after]")],
    ["k", "finding before", go("[data-before]")],
    [" ", "pin, or take off the pinboard", submit("form[data-pin]")],
    ["1", "take the first suggestion; 2 to 5 the others", () => take(1)],
    ...[2, 3, 4, 5].map((number) => [String(number), "", () => take(number)]),
    ["l", "link to a known problem", decide("known", "problem")],
    ["n", "write down a new problem", go("[data-new-problem]")],
    ["x", "not a problem: say why", decide("not-a-problem", "reason")],
    ["w", "the check or its reference is wrong: say why", decide("check-wrong", "reason")],
    ["i", "inconclusive", decide("inconclusive")],
    ["e", "needs evidence: run it again", decide("needs-evidence")],
    ["a", "assign", () => focus("assignee")],
    ["c", "comment", () => focus("comment")],
    ["z", "undo your last deed", submit("form[data-undo]")],
    ["ctrl+enter", "save, also while typing", () => form?.requestSubmit()],
  ]);
} else {
  addShortcuts([
    ["u", "only those that need a person, or all", onlyUndecided],
    ["z", "undo your last deed", submit("form[data-undo]")],
    ["ctrl+enter", "save, also while typing", () => form?.requestSubmit()],
  ]);
}

document.querySelector(".triage-queue [aria-current]")?.scrollIntoView({ block: "center" });

for (const button of document.querySelectorAll("[data-suggest]")) {
  button.hidden = false;
  button.addEventListener("click", () => takeProblem(button.dataset.suggest));
}

// The page's own keys work again after a field was left with Escape.
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && form?.contains(event.target)) event.target.blur();
});
