// Every page: relative times, light or dark, keys in the picture, and the live feed where the page names a topic.
import { follow } from "./live.js";
import { keepTimes } from "./times.js";

keepTimes();

const theme = document.getElementById("theme");
if (theme) {
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    document.cookie = `theme=${root.dataset.theme}; path=/; max-age=31536000; samesite=lax`;
  });
}

// In the picture the arrow keys follow the work: right to what comes after, left to what it needs, up and down by place.
const picture = document.querySelector("svg.graph");
if (picture) {
  const place = (node) => node.querySelector(".body").getBBox();
  picture.addEventListener("keydown", (event) => {
    const here = event.target.closest("a.node");
    const turn = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
    if (!here || !turn) return;
    const from = place(here);
    let nearest = null, distance = Infinity;
    for (const node of picture.querySelectorAll("a.node")) {
      const to = place(node), x = to.x - from.x, y = to.y - from.y;
      const along = x * turn[0] + y * turn[1], across = Math.abs(x * turn[1]) + Math.abs(y * turn[0]);
      if (along > 4 && along + 2 * across < distance) [nearest, distance] = [node, along + 2 * across];
    }
    if (nearest) {
      event.preventDefault();
      nearest.focus();
    }
  });
  // A picture larger than its frame opens where the work is, and can be shown whole.
  const frame = picture.closest(".scroll"), fit = document.getElementById("fit");
  const box = frame.getBoundingClientRect();
  if (frame.scrollWidth > frame.clientWidth + 1 || frame.scrollHeight > frame.clientHeight + 1) {
    const work = picture.querySelector(".tone-active, .tone-land, .tone-warn") ?? picture.querySelector("a.node");
    const at = work.getBoundingClientRect();
    if (at.right > box.right) frame.scrollLeft = at.left - box.left - frame.clientWidth / 2;
    if (at.bottom > box.bottom) frame.scrollTop = at.top - box.top - frame.clientHeight / 2;
    fit.hidden = false;
    fit.addEventListener("click", () => {
      const whole = picture.closest(".picture").classList.toggle("fitted");
      fit.setAttribute("aria-pressed", whole);
      fit.textContent = whole ? "Full size" : "Show all of it";
    });
  }
  const light = (event, on) => {
    const node = event.target.closest("a.node");
    if (node) for (const line of picture.querySelectorAll(`[data-from="${node.id.slice(1)}"]`)) line.classList.toggle("lit", on);
  };
  for (const [begin, end] of [["mouseover", "mouseout"], ["focusin", "focusout"]]) {
    picture.addEventListener(begin, (event) => light(event, true));
    picture.addEventListener(end, (event) => light(event, false));
  }
}

const main = document.getElementById("main");
if (main.dataset.topic) follow(main.dataset.topic, Number(main.dataset.sequence));
