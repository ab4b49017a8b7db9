// The operations page: asks the server every two seconds, while the page is visible, and shows the answers.

import { call, getJson } from "./api.js";
import { listing, mapView } from "./cache-map.js";
import { byId } from "./dom.js";
import { askForKey } from "./key.js";
import { parseMetrics, quantile, rate } from "./metrics.js";
import { Plot } from "./plot.js";
import { slotsView } from "./slots.js";
import { batchesView, pluginsView, requestsView } from "./tables.js";

const INTERVAL = 2; // seconds
const SPAN = 300; // seconds that plots show
const WINDOW = 30; // seconds of requests that latencies are taken of
const RATE_WINDOW = 5; // minimum seconds in which rates are taken
const BATCHES_EVERY = 5; // rounds

const FIRST = "sglang:time_to_first_token_seconds";
const BETWEEN = "sglang:inter_token_latency_seconds";
const ENDED = ["sglang:num_requests_total", "sglang:num_aborted_requests_total"];
const TOKENS = ["sglang:prompt_tokens_total", "sglang:cached_tokens_total", "sglang:generation_tokens_total"];

const requests = new Plot("Requests", "", ["running", "waiting"], SPAN);
const usage = new Plot("KV slots", "%", ["running", "prefix cache"], SPAN);
const throughput = new Plot("Throughput", "tokens/s", ["prompt", "cached", "generated"], SPAN);
const finished = new Plot("Finished requests", "per second", ["all", "aborted"], SPAN);
const firstToken = new Plot("Time to first token", "ms", ["median", "95 %"], SPAN);
const betweenTokens = new Plot("Time between tokens", "ms", ["median", "95 %"], SPAN);

/** The plots of what `/metrics` says, in their order; the server may have no such route. */
const measured = [throughput, finished, firstToken, betweenTokens];

let readings = [];
let hasMetrics = true;
let paused = false;
let plugins = { plugins: [], components: [] };

async function showMetrics() {
  let answer;
  try {
    answer = await call("metrics");
  } catch (error) {
    if (error.status !== 404) throw error;
    hasMetrics = false;
    byId("metrics-note").hidden = false;
    for (const plot of measured) plot.element.hidden = true;
    return;
  }
  const time = performance.now() / 1000;
  const now = { time, ...parseMetrics(await answer.text()) };
  readings = [...readings.filter((reading) => reading.time > time - WINDOW), now];
  const before = readings.findLast((reading) => reading.time <= time - RATE_WINDOW);
  if (before === undefined) return;
  const rates = (names) => names.map((name) => rate(before, now, name, time - before.time));
  const milliseconds = (name) => [0.5, 0.95].map((part) => thousandfold(quantile(readings[0], now, name, part)));
  throughput.add(time, rates(TOKENS));
  finished.add(time, rates(ENDED));
  firstToken.add(time, milliseconds(FIRST));
  betweenTokens.add(time, milliseconds(BETWEEN));
}

const thousandfold = (value) => value && 1000 * value;

async function showActivity() {
  const activity = await getJson("activity");
  const { slots, counts, prefix_cache: cache } = activity;
  const time = performance.now() / 1000;
  requests.add(time, [counts.running, counts.waiting]);
  usage.add(time, [slots.running, slots.cached_in_use + slots.cached_unused].map((count) => (100 * count) / slots.capacity));
  show(byId("slots"), slotsView(activity));
  show(byId("cache"), mapView(cache));
  show(byId("cache-runs"), listing(cache));
  show(byId("requests"), requestsView(activity));
}

/** Replaces what `holder` shows; regions that scroll keep their scroll position and the focus. */
function show(holder, views) {
  const before = [...holder.querySelectorAll(".scrolling")];
  const kept = before.map((region) => ({ left: region.scrollLeft, hasFocus: region === document.activeElement }));
  holder.replaceChildren(...views);
  holder.querySelectorAll(".scrolling").forEach((region, index) => {
    region.scrollLeft = kept[index]?.left ?? 0;
    if (kept[index]?.hasFocus) region.focus({ preventScroll: true });
  });
}

async function showBatches() {
  try {
    show(byId("batches"), batchesView((await getJson("v1/batches?limit=20")).data));
  } catch (error) {
    if (error.status !== 404) throw error; // blocked by --block-plugin
    byId("batches").closest("section").hidden = true;
  }
}

const showPlugins = () => show(byId("plugins"), pluginsView(plugins, byId("plugin-filter").value));

async function update(round) {
  await showActivity();
  if (hasMetrics) await showMetrics();
  if (round % BATCHES_EVERY === 0) await showBatches();
}

const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));

async function run() {
  for (let round = 0; ; round += 1) {
    if (!paused && !document.hidden) {
      try {
        await update(round);
        byId("notice").hidden = true;
      } catch (error) {
        setPaused(error.status === 401);
        byId("notice").textContent = paused ? `${error.message} Press Continue to try again.` : `No answer: ${error.message}`;
        byId("notice").hidden = false;
      }
    }
    await pause(INTERVAL);
  }
}

function setPaused(value) {
  paused = value;
  byId("pause").setAttribute("aria-pressed", String(paused));
  byId("pause").textContent = paused ? "Continue" : "Pause";
}

async function start() {
  byId("key-button").addEventListener("click", () => askForKey("The key is sent with every request of this page."));
  byId("pause").addEventListener("click", () => setPaused(!paused));
  byId("plugin-filter").addEventListener("input", showPlugins);
  byId("plots").append(...[requests, usage, ...measured].map((plot) => plot.element));
  const model = await getJson("model_info");
  byId("model").textContent = `${model.served_model_name} on ${model.device}, ${model.dtype}`;
  plugins = await getJson("plugins");
  showPlugins();
  await run();
}

start().catch((error) => {
  byId("notice").textContent = `${error.message} Reload the page to try again.`;
  byId("notice").hidden = false;
});
