// The tree of the prefix cache: a box for each run of tokens, below the run that it continues.

import { element, row, svgElement } from "./dom.js";
import { table } from "./pooling-view.js";

const WIDTH = 1000;
const ROW = 26;
const MAX_ROWS = 16;
const LABEL_WIDTH = 44; // narrowest box with a number
const RECENT = [10, 60, 600]; // seconds since the last use, for the strength of the colour
const LISTED = 30;

/** Returns the nodes that are shown for an outline, whose runs name their parents by index. */
export function treeOf(runs) {
  const nodes = runs.map((run) => ({ ...run, below: [], total: run.tokens }));
  const roots = [];
  for (const node of nodes) (node.parent === null ? roots : nodes[node.parent].below).push(node);
  for (const node of [...nodes].reverse()) if (node.parent !== null) nodes[node.parent].total += node.total;
  return { nodes, roots };
}

const described = (node) => {
  const hidden = node.children - node.below.length;
  const parts = [`${node.tokens} tokens`, `used ${node.hits} times`, `last ${age(node.idle)} ago`];
  if (node.locked) parts.push("in use");
  if (hidden > 0) parts.push(`${hidden} further runs below are not shown`);
  return parts.join(", ");
};

const age = (seconds) =>
  seconds < 90 ? `${seconds.toFixed(0)} s` : seconds < 5400 ? `${(seconds / 60).toFixed(0)} min` : `${(seconds / 3600).toFixed(1)} h`;

/** Returns the map for what `/activity` says of the prefix cache. */
export function mapView({ tokens, runs }) {
  const { nodes, roots } = treeOf(runs);
  const mapped = nodes.reduce((sum, node) => sum + node.tokens, 0);
  const more = tokens - mapped;
  const counts = `${tokens.toLocaleString()} tokens are cached; the map shows ${nodes.length} runs with ${mapped.toLocaleString()} of them.`;
  const note = element("p", { className: "statistics" }, tokens === 0 ? "Nothing is cached." : counts);
  if (nodes.length === 0) {
    if (more > 0) note.append(" This prefix cache does not show its tree.");
    return [note];
  }
  const boxes = svgElement("g");
  let depth = 0;
  const layOut = (siblings, left, width, level) => {
    if (level >= MAX_ROWS) return;
    depth = Math.max(depth, level + 1);
    const total = siblings.reduce((sum, node) => sum + node.total, 0);
    for (const node of siblings) {
      const own = (width * node.total) / total;
      boxes.append(...box(node, left, own, level));
      layOut(node.below, left, own, level + 1);
      left += own;
    }
  };
  layOut(roots, 0, WIDTH, 0);
  const drawing = svgElement("svg", { viewBox: `0 0 ${WIDTH} ${depth * ROW}`, class: "map", role: "img" }, boxes);
  drawing.setAttribute("aria-label", "Map of the prefix cache; the table below lists its largest runs");
  return [note, element("div", { className: "scrolling" }, drawing)];
}

function box(node, left, width, level) {
  const recent = RECENT.findIndex((bound) => node.idle < bound);
  const look = `run recent-${recent === -1 ? RECENT.length : recent}${node.locked ? " locked" : ""}`;
  const at = { x: left + 0.5, y: level * ROW + 0.5, width: Math.max(width - 1, 0.5), height: ROW - 2, rx: 2 };
  const rectangle = svgElement("rect", { ...at, class: look }, svgElement("title", {}, described(node)));
  if (width < LABEL_WIDTH) return [rectangle];
  const text = svgElement("text", { x: left + 6, y: level * ROW + 17, class: `recent-text-${recent}` }, String(node.tokens));
  return [rectangle, text];
}

/** Returns a table of the largest runs. */
export function listing({ runs }) {
  const largest = treeOf(runs).nodes.sort((a, b) => b.total - a.total).slice(0, LISTED);
  const rows = largest.map((node) =>
    row([node.tokens, node.total, node.hits, age(node.idle), node.locked ? "yes" : "no", node.children]),
  );
  const heads = ["tokens", "with those below", "hits", "last use", "in use", "continued by"];
  return [table("Runs of the prefix cache", heads, rows)];
}
