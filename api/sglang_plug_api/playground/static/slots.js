// The KV slots as a bar of owners, with a legend.

import { element, svgElement } from "./dom.js";

const WIDTH = 1000;
const SHOWN_CALLERS = 6;

/** Returns the bar and its legend for what `/activity` says. */
export function slotsView({ slots, callers }) {
  const owners = [
    ...callerOwners(slots.running, callers),
    { name: "prefix cache, in use", count: slots.cached_in_use, look: "cached-used" },
    { name: "prefix cache, unused", count: slots.cached_unused, look: "cached" },
    { name: "free", count: slots.free, look: "free" },
  ];
  const bar = svgElement("svg", { viewBox: `0 0 ${WIDTH} 28`, role: "img", preserveAspectRatio: "none", class: "bar" });
  const legend = element("ul", { className: "owners" });
  let left = 0;
  for (const { name, count, look } of owners) {
    const width = (count / slots.capacity) * WIDTH;
    bar.append(svgElement("rect", { x: left, width: count ? Math.max(width, 2) : 0, y: 0, height: 28, class: look }));
    left += width;
    const share = ((100 * count) / slots.capacity).toFixed(1);
    legend.append(element("li", { className: look }, `${name}: ${count.toLocaleString()} (${share} %)`));
  }
  bar.setAttribute("aria-label", `${slots.capacity.toLocaleString()} KV slots; the owners are listed below`);
  return [bar, legend];
}

/** Returns the owners among the running requests: their callers, if there are several. */
function callerOwners(running, callers) {
  const owning = callers.filter((caller) => caller.slots > 0);
  if (owning.length <= 1) return [{ name: "running requests", count: running, look: "caller-0" }];
  const owners = owning.slice(0, SHOWN_CALLERS).map(({ caller, slots }, index) => ({
    name: `running, caller ${caller.slice(0, 8) || "without key"}`,
    count: slots,
    look: `caller-${index % 3}`,
  }));
  const others = running - owners.reduce((sum, { count }) => sum + count, 0);
  return others > 0 ? [...owners, { name: "running, other callers", count: others, look: "caller-0" }] : owners;
}
