// Building and finding elements. Text is always set as text, never as HTML.

export const byId = (id) => document.getElementById(id);

/** Makes an element: `element("p", {className: "note"}, "text", child)`. Attributes that are no properties, such as
 * `aria-label`, are set as attributes; those that are `undefined` are left out. */
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined) continue;
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/** Makes an SVG element with attributes. */
export function svgElement(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function button(text, onClick, properties = {}) {
  const made = element("button", { type: "button", textContent: text, ...properties });
  made.addEventListener("click", onClick);
  return made;
}

/** Returns a table cell for each value; values may be elements. */
export const row = (values, cell = "td") => element("tr", {}, ...values.map((value) => element(cell, {}, value)));
