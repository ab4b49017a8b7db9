// Finds where a text stops being JSON; what `JSON.parse` says of the position differs between browsers.

const TOKEN =
  /\s*(?:([{}[\],:])|("(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[\da-fA-F]{4}))*")|(-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null))/y;

class Reader {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.next();
  }

  next() {
    TOKEN.lastIndex = this.at;
    const match = TOKEN.exec(this.text);
    this.token = match && (match[1] ?? (match[2] === undefined ? "value" : "string"));
    this.start = match ? TOKEN.lastIndex - match[0].trimStart().length : this.at + /^\s*/.exec(this.text.slice(this.at))[0].length;
    this.at = match ? TOKEN.lastIndex : this.at;
  }

  /** Goes on if the next token is one of `expected`; otherwise the text is wrong at its start. */
  take(...expected) {
    if (!expected.includes(this.token)) throw new RangeError("no JSON");
    const taken = this.token;
    this.next();
    return taken;
  }

  value() {
    const first = this.take("{", "[", "string", "value");
    if (first === "{") this.list("}", () => this.member());
    if (first === "[") this.list("]", () => this.value());
  }

  member() {
    this.take("string");
    this.take(":");
    this.value();
  }

  list(end, item) {
    if (this.token === end) return void this.next();
    do item();
    while (this.take(",", end) === ",");
  }
}

/** Returns the index at which `text`, which is not JSON, goes wrong. */
export function faultIndex(text) {
  const reader = new Reader(text);
  try {
    reader.value();
  } catch (error) {
    if (!(error instanceof RangeError)) throw error; // also raised for very deep nesting
  }
  return reader.start;
}
