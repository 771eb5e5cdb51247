// The copy button of a report's page.

const SAID_MS = 4000;

async function copy(button, status) {
  const source = document.querySelector(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(source.textContent);
    status.textContent = "The Markdown is in the clipboard.";
    button.textContent = "Copied";
  } catch {
    // No permission, or no secure connection: select it, so that ctrl+C takes it.
    const range = document.createRange();
    range.selectNodeContents(source);
    window.getSelection().removeAllRanges();
    window.getSelection().addRange(range);
    source.focus();
    status.textContent = "The Markdown is selected; copy it with ctrl+C.";
    button.textContent = "Selected";
  }
  window.setTimeout(() => {
    button.textContent = "Copy Markdown";
    status.textContent = "";
  }, SAID_MS);
}

const status = document.querySelector("[data-copied]");
for (const button of document.querySelectorAll("[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", () => copy(button, status));
}
