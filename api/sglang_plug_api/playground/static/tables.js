// Tables of requests, batches and plugins.

import { element, row } from "./dom.js";
import { table } from "./pooling-view.js";

const caller = (id) => id.slice(0, 8) || "–";
const seconds = (value) => `${value.toFixed(1)} s`;
const note = (text) => element("p", { className: "note" }, text);

/** Returns the tables of running and waiting requests for what `/activity` says. */
export function requestsView({ running, waiting, counts }) {
  const summary = note(`${counts.running} running, ${counts.waiting} waiting, ${counts.paused} paused`);
  const views = [summary];
  const heads = ["request", "caller", "age", "prompt", "cached", "generated", "at most", "KV slots", "retracted"];
  if (running.length) views.push(table("Running", heads, running.map(requestRow)));
  if (waiting.length) views.push(table("Waiting, in the order of arrival", heads, waiting.map(requestRow)));
  const unlisted = counts.running + counts.waiting - running.length - waiting.length;
  if (unlisted > 0) views.push(note(`${unlisted} further requests are not listed.`));
  return views;
}

function requestRow(request) {
  const id = element("code", { title: request.id }, request.id.slice(0, 16));
  const progress = request.computed_tokens < request.prompt_tokens ? ` (${request.computed_tokens} computed)` : "";
  const room = request.most_tokens - request.prompt_tokens;
  const prompt = `${request.prompt_tokens}${progress}`;
  const cells = [id, caller(request.caller), seconds(request.age), prompt, request.cached_tokens ?? "–", request.generated_tokens];
  return row([...cells, room, request.slots, request.retractions]);
}

/** Returns the table of batches with their progress. */
export function batchesView(batches) {
  if (batches.length === 0) return [note("There are no batches.")];
  const rows = batches.map((batch) => {
    const { total = 0, completed = 0, failed = 0 } = batch.request_counts ?? {};
    const label = `${completed + failed} of ${total}${failed ? `, ${failed} failed` : ""}`;
    const bar = element("progress", { max: total || 1, value: completed + failed, "aria-label": label });
    return row([element("code", {}, batch.id), batch.endpoint, batch.status, element("span", {}, bar, ` ${label}`)]);
  });
  return [table("Batches, the newest first", ["batch", "endpoint", "status", "requests"], rows)];
}

/** Returns the table of the plugins that contain `filter`, with what each declares, or why it failed. */
export function pluginsView({ plugins, components, failures = [] }, filter) {
  const text = filter.trim().toLowerCase();
  const declared = new Map(failures.map(({ name, error }) => [name, [error]]));
  for (const component of components) {
    declared.set(component.plugin, [...(declared.get(component.plugin) ?? []), `${component.kind}:${component.name}`]);
  }
  const rows = plugins
    .map((plugin) => ({ ...plugin, declares: (declared.get(plugin.name) ?? []).join(", ") }))
    .filter((plugin) => !text || JSON.stringify(Object.values(plugin)).toLowerCase().includes(text))
    .map((plugin) => row([plugin.name, plugin.distribution ?? plugin.file ?? "–", plugin.version ?? "–", plugin.status, plugin.declares]));
  return [table(`${rows.length} plugins`, ["plugin", "distribution", "version", "status", "declares"], rows)];
}
