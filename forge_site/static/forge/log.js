// The live end of a log: asks for what was written since, and inserts it as text, never as markup.
const EVERY_S = 1;
const LETTERS = 400_000; // kept in the page; the whole is in the API

// As forge_site.pages.printable.
const ESCAPES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])/g;
const CONTROLS = /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]/g;

const printable = (text) => text.replace(ESCAPES, "").replaceAll("\r\n", "\n").replace(/[^\n]*\r(?!$)/g, "").replace(CONTROLS, "");

async function tail(log) {
  let offset = Number(log.dataset.offset);
  for (;;) {
    const address = `/api/v1/attempts/${log.dataset.attempt}/output?stream=${log.dataset.stream}&offset=${offset}`;
    let ended = false, more = false;
    try {
      const answer = await fetch(address);
      if (answer.status === 401 || answer.status === 403) return;
      if (answer.ok) {
        const piece = await answer.json();
        more = piece.nextOffset > offset;
        if (more) append(log, printable(piece.text));
        offset = piece.nextOffset;
        ended = piece.ended && !more;
      }
    } catch {
      // the server is away for a moment; nothing is lost, the offset stays
    }
    if (ended) return;
    if (!more) await new Promise((go) => setTimeout(go, EVERY_S * 1000));
  }
}

function append(log, text) {
  const follows = log.scrollTop + log.clientHeight >= log.scrollHeight - 24;
  log.append(text);
  if (log.textContent.length > LETTERS * 1.5) log.textContent = log.textContent.slice(-LETTERS);
  if (follows) log.scrollTop = log.scrollHeight;
}

for (const log of document.querySelectorAll("pre.log")) {
  log.scrollTop = log.scrollHeight;
  if (!("ended" in log.dataset)) tail(log);
}
