// Reads Prometheus' text format, and makes rates and quantiles of what changed between two readings.

const LINE = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/;
const BOUND = /(?:^|,)le="([^"]+)"/;

/** Returns `{values, histograms}`: sums over all labels by name, and for each histogram its counts by upper bound. */
export function parseMetrics(text) {
  const values = new Map();
  const histograms = new Map();
  for (const line of text.split("\n")) {
    const [, name, labels, number] = LINE.exec(line) ?? [];
    if (name === undefined) continue;
    const bound = BOUND.exec(labels ?? "");
    if (bound && name.endsWith("_bucket")) {
      const histogram = histograms.get(name.slice(0, -"_bucket".length)) ?? new Map();
      histograms.set(name.slice(0, -"_bucket".length), histogram);
      const upper = bound[1] === "+Inf" ? Infinity : Number(bound[1]);
      histogram.set(upper, (histogram.get(upper) ?? 0) + Number(number));
    } else {
      values.set(name, (values.get(name) ?? 0) + Number(number));
    }
  }
  return { values, histograms };
}

/** Returns how much a counter grew per second; `null` if it is not known, or began anew. */
export function rate(before, after, name, seconds) {
  const grown = after.values.get(name) - before.values.get(name);
  return grown >= 0 && seconds > 0 ? grown / seconds : null;
}

/** Returns the quantile of what a histogram counted between two readings, interpolated in its bucket; `null` if it
 * counted nothing. */
export function quantile(before, after, name, part) {
  const now = after.histograms.get(name);
  if (now === undefined) return null;
  const old = before.histograms.get(name) ?? new Map();
  const buckets = [...now].map(([upper, count]) => ({ upper, count: count - (old.get(upper) ?? 0) }));
  buckets.sort((a, b) => a.upper - b.upper);
  const total = buckets.at(-1).count;
  if (!(total > 0)) return null;
  let lower = { upper: 0, count: 0 };
  for (const bucket of buckets) {
    if (bucket.count >= part * total) {
      if (bucket.upper === Infinity) return lower.upper;
      const within = (part * total - lower.count) / (bucket.count - lower.count);
      return lower.upper + within * (bucket.upper - lower.upper);
    }
    lower = bucket;
  }
  return null;
}
