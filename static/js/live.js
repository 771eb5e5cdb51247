// A validation that is followed live. htmx fetches the moving part each second; the output is fetched in pieces and
// appended here, so that it can be read and selected while it grows.

const POLL_MS = 1000;
const MOST_CHARACTERS = 400000; // in the page; the whole log is a click away

const state = { address: "", next: 0, token: "", busy: false };

function show(box, text, isNew) {
  const pre = box.querySelector("[data-log-text]");
  const follows = box.querySelector("[data-log-follow] input").checked;
  if (isNew) pre.textContent = "";
  if (text) pre.append(text);
  if (pre.textContent.length > MOST_CHARACTERS) pre.textContent = pre.textContent.slice(-MOST_CHARACTERS / 2);
  if (follows && (text || isNew)) pre.scrollTop = pre.scrollHeight;
}

async function follow() {
  const live = document.getElementById("live");
  const box = document.getElementById("log-box");
  if (!live?.dataset.log || !box || state.busy) return;
  const isNew = live.dataset.log !== state.address;
  if (isNew) {
    Object.assign(state, { address: live.dataset.log, next: 0, token: "" });
    box.querySelector("[data-log-name]").textContent = `Output of the ${live.dataset.logTitle}`;
    const whole = box.querySelector("[data-log-whole]");
    if (whole) whole.href = live.dataset.log;
    box.querySelector("[data-log-follow]").hidden = false;
  }
  state.busy = true;
  try {
    const response = await fetch(`${state.address}?after=${state.next}`, { redirect: "error" });
    if (!response.ok) return;
    const token = response.headers.get("Plumbline-Token");
    const again = state.token !== "" && token !== state.token;
    state.token = token;
    if (again) {
      state.next = 0; // another worker has begun it anew
      show(box, "", true);
      return;
    }
    state.next = Number(response.headers.get("Plumbline-Next"));
    show(box, await response.text(), isNew);
  } catch {
    // The connection is gone; htmx's own request says so on the page.
  } finally {
    state.busy = false;
  }
}

function setOffline(isOffline) {
  document.getElementById("offline").hidden = !isOffline;
}

document.addEventListener("htmx:sendError", () => setOffline(true));
document.addEventListener("htmx:responseError", () => setOffline(true));
document.addEventListener("htmx:afterRequest", (event) => {
  if (event.detail.successful) setOffline(false);
});

setInterval(follow, POLL_MS);
follow();
