// <time datetime> elements say how long ago, kept current; the exact time in the viewer's own zone is in their title.
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

function ago(seconds) {
  if (seconds < 5) return seconds < -5 ? null : "just now";
  const [size, name] = UNITS.find(([size]) => seconds >= size);
  return `${Math.floor(seconds / size)} ${name} ago`;
}

export function refreshTimes(root = document) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const at = new Date(element.dateTime);
    element.title = at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
    const words = ago((Date.now() - at) / 1000);
    if (words && element.textContent !== words) element.textContent = words;
  }
}

export function keepTimes() {
  refreshTimes();
  setInterval(refreshTimes, 5000);
}
