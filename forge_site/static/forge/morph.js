// Make an element like another by touching only what differs: focus, scrolling and open details stay as they are.

export function morph(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  attributes(old, fresh);
  const known = new Map([...old.children].filter((child) => child.dataset?.key).map((child) => [child.dataset.key, child]));
  let next = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const keyed = wanted.dataset?.key && known.get(wanted.dataset.key);
    if (keyed && keyed !== next) old.insertBefore(keyed, next);
    const match = keyed || (alike(next, wanted) ? next : null);
    if (!match) {
      old.insertBefore(document.importNode(wanted, true), next);
      continue;
    }
    if (match === next) next = next.nextSibling;
    if (match.nodeType === Node.ELEMENT_NODE) morph(match, wanted);
    else if (match.nodeValue !== wanted.nodeValue) match.nodeValue = wanted.nodeValue;
  }
  while (next) {
    const gone = next;
    next = next.nextSibling;
    gone.remove();
  }
}

function alike(a, b) {
  return a && a.nodeType === b.nodeType && a.nodeName === b.nodeName && !a.dataset?.key && !b.dataset?.key;
}

function attributes(old, fresh) {
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name); // the reader opened it
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
}
