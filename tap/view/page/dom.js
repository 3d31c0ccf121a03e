// Elements are made and text is set here, and nowhere by markup: what comes
// from a request is never anything but text.

export const $ = (id) => document.getElementById(id);

/** el makes an element. Attributes that are null or false are left out. */
export function el(name, attrs, ...children) {
  return fill(document.createElement(name), attrs, children);
}

/** svg makes an element of a drawing. */
export function svg(name, attrs, ...children) {
  return fill(document.createElementNS('http://www.w3.org/2000/svg', name), attrs, children);
}

function fill(e, attrs, children) {
  for (const [key, value] of Object.entries(attrs || {})) {
    if (value !== null && value !== undefined && value !== false) e.setAttribute(key, value === true ? '' : value);
  }
  e.append(...children.filter((c) => c !== null && c !== undefined && c !== false));
  return e;
}

/** say sets the text of e. What is the same already is left alone, which spares the browser its work. */
export function say(e, text) {
  if (e.textContent !== text) e.textContent = text;
}

/** mark sets the classes of e, if they are others. */
export function mark(e, classes) {
  if (e.className !== classes) e.className = classes;
}

/** once calls draw in the next frame, however often it was asked for before. */
export function once(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
}
