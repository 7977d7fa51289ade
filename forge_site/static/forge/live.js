// Live patches. A node's state is swapped the moment its event arrives; what else the page shows (reasons, places, bars) is
// read again from the server, at most every few seconds, and only what differs is touched.
import { Feed } from "./feed.js";
import { morph } from "./morph.js";
import { refreshTimes } from "./times.js";

const QUIET_S = 2;
const STALE_S = 30;

const looks = JSON.parse(document.getElementById("looks")?.textContent ?? "{}");

export function follow(topic, sequence) {
  const badge = connectionBadge();
  const refresh = refresher();
  new Feed(topic, sequence, {
    event(frame) {
      patch(frame);
      refresh();
    },
    state: badge,
    reset: () => location.reload(),
  });
}

function patch({ kind, subject }) {
  const [what, state] = kind.split(".");
  const look = looks[state];
  if (what !== "node" || !look) return;
  const id = subject.split(":")[1];
  const box = document.getElementById(`n${id}`);
  const row = document.getElementById(`r${id}`);
  if (box) {
    dress(box, "node", look);
    box.setAttribute("aria-label", `${box.querySelector(".key").textContent}, ${look.word}`);
    for (const line of document.querySelectorAll(`.lines [data-from="${id}"]`)) line.classList.toggle("met", look.tone === "ok");
    flash(box);
  }
  if (row) {
    dress(row.querySelector(".state"), "state", look);
    flash(row);
  }
  announce(`${(box ?? row)?.querySelector(".key, th a")?.textContent ?? ""} ${look.word}`);
}

function dress(element, base, look) {
  element.setAttribute("class", `${base} tone-${look.tone}`);
  element.querySelector("use").setAttribute("href", `#i-${look.icon}`);
  element.querySelector(".word").textContent = look.word;
}

function flash(element) {
  element.classList.remove("flash");
  element.getBoundingClientRect(); // so that the same animation starts again
  element.classList.add("flash");
}

// A screen reader hears at most one message in five seconds.
const waiting = [];
function announce(text) {
  waiting.push(text);
  if (waiting.length > 1) return;
  setTimeout(() => {
    document.getElementById("announce").textContent = waiting.length > 3 ? `${waiting.length} changes` : waiting.join(", ");
    waiting.length = 0;
  }, 5000);
}

function refresher() {
  let due = null, took = 0;
  return () => {
    due ??= setTimeout(async () => {
      const begun = performance.now();
      try {
        await readAgain();
      } catch {
        // the badge says when the server is away; the next event tries again
      }
      took = performance.now() - begun;
      due = null;
    }, Math.max(QUIET_S * 1000, 5 * took)); // a page that is dear to make is made less often
  };
}

async function readAgain() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok || answer.redirected) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const section of fresh.querySelectorAll("[data-live]")) {
    const old = document.querySelector(`[data-live="${section.dataset.live}"]`);
    if (old) morph(old, section);
  }
  const drawn = document.querySelectorAll("a.node").length, now = fresh.querySelectorAll("a.node").length;
  const missing = [...fresh.querySelectorAll("[data-live]")].some((s) => !document.querySelector(`[data-live="${s.dataset.live}"]`));
  if (drawn !== now || missing) document.getElementById("main").replaceWith(document.importNode(fresh.getElementById("main"), true));
  document.title = fresh.title;
  refreshTimes();
}

function connectionBadge() {
  const badge = document.getElementById("connection");
  let stale = null;
  badge.hidden = false;
  const show = (state, words) => {
    badge.dataset.state = state;
    badge.title = words;
    badge.querySelector(".words").textContent = words;
    document.body.classList.toggle("stale", state === "stale");
  };
  show("reconnecting", "connecting");
  return (state) => {
    if (state === "live") {
      clearTimeout(stale);
      stale = null;
      show("live", "live");
      return;
    }
    const since = new Date().toLocaleTimeString(undefined, { timeStyle: "short" });
    if (!stale) {
      show("reconnecting", "reconnecting");
      stale = setTimeout(() => show("stale", `stale since ${since}`), STALE_S * 1000);
    }
  };
}
