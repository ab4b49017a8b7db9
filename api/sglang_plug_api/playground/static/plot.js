// A plot of a few series over time, as SVG.

import { element, svgElement } from "./dom.js";

const WIDTH = 400;
const HEIGHT = 150;
const LEFT = 46;
const BOTTOM = 20;
const TOP = 8;
const SHORTEST = 60; // seconds

export const shortNumber = (value) =>
  value >= 1e6 ? `${(value / 1e6).toFixed(1)} M`
  : value >= 1e4 ? `${(value / 1e3).toFixed(0)} k`
  : value >= 100 || value === 0 ? value.toFixed(0)
  : value >= 1 ? value.toFixed(1).replace(/\.0$/, "")
  : value.toPrecision(2);

export class Plot {
  /** `names` are those of the series, `seconds` the longest time that the plot spans; it begins with a minute. */
  constructor(title, unit, names, seconds) {
    this.title = title;
    this.unit = unit;
    this.names = names;
    this.seconds = seconds;
    this.points = [];
    this.heading = element("h3", {}, `${title}${unit ? `, ${unit}` : ""}`);
    this.drawing = svgElement("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" });
    this.legend = element("p", { className: "legend" }, "Measuring …");
    this.element = element("figure", { className: "plot" }, this.heading, this.drawing, this.legend);
  }

  /** Adds the values of the series, or `null` for one that is not known, at a time in seconds. */
  add(time, values) {
    this.points.push({ time, values });
    this.points = this.points.filter((point) => point.time >= time - this.seconds);
    this.#draw(time);
  }

  #draw(now) {
    const top = niceTop(Math.max(0, ...this.points.flatMap((point) => point.values.map((value) => value ?? 0))));
    const span = Math.min(this.seconds, Math.max(SHORTEST, now - this.points[0].time));
    const x = (time) => WIDTH - ((now - time) / span) * (WIDTH - LEFT);
    const y = (value) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM);
    const lines = this.names.map((_, index) =>
      svgElement("path", { d: this.#path(index, x, y), class: `series series-${index + 1}` }),
    );
    this.drawing.replaceChildren(...this.#axes(top, y, span), ...lines);
    const latest = this.points.at(-1).values;
    const described = this.names.map((name, index) => `${name} ${this.#label(latest[index])}`);
    this.drawing.setAttribute("aria-label", `${this.title}: ${described.join(", ")}`);
    this.legend.replaceChildren(
      ...described.map((text, index) => element("span", { className: `key series-${index + 1}` }, text)),
    );
  }

  #label(value) {
    return value === null ? "–" : `${shortNumber(value)}${this.unit ? ` ${this.unit}` : ""}`;
  }

  #path(index, x, y) {
    let path = "";
    let drawing = false;
    for (const { time, values } of this.points) {
      const value = values[index];
      if (value !== null) path += `${drawing ? "L" : "M"}${x(time).toFixed(1)} ${y(value).toFixed(1)}`;
      drawing = value !== null;
    }
    return path;
  }

  #axes(top, y, span) {
    const parts = [0, 0.5, 1].flatMap((part) => {
      const height = y(part * top);
      const line = svgElement("line", { x1: LEFT, x2: WIDTH, y1: height, y2: height, class: "grid" });
      const label = svgElement("text", { x: LEFT - 5, y: height + 4, "text-anchor": "end" }, shortNumber(part * top));
      return [line, label];
    });
    const begin = svgElement("text", { x: LEFT, y: HEIGHT - 4 }, `${span.toFixed(0)} s ago`);
    const end = svgElement("text", { x: WIDTH, y: HEIGHT - 4, "text-anchor": "end" }, "now");
    return [...parts, begin, end];
  }
}

/** Returns 1, 2 or 5 times a power of ten, not below `value`. */
function niceTop(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * power).find((top) => top >= value);
}
