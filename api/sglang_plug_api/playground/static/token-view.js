// Tokens coloured by their probability. Pointing at one, or moving to it with the arrow keys, shows the alternatives.

import { element, row } from "./dom.js";

const LEVELS = [0.9, 0.6, 0.3, 0.1, 0];

const percent = (logprob) => `${(100 * Math.exp(logprob)).toFixed(1)} %`;
const level = (logprob) => LEVELS.findIndex((bound) => Math.exp(logprob) >= bound);
const rangeName = (index) => (LEVELS[index] > 0 ? `≥ ${100 * LEVELS[index]} %` : `< ${100 * LEVELS[index - 1]} %`);
const logarithm = (logprob) => (logprob > -0.0005 ? "0.000" : logprob.toFixed(3));
const visible = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣") || "∅";

export class TokenView {
  #tokens = [];
  #active = null;

  constructor() {
    this.text = element("div", { className: "tokens", role: "group", "aria-label": "Tokens; arrow keys show each" });
    this.details = element("div", { className: "token-details", hidden: true, "aria-live": "polite" });
    const legend = element("p", { className: "legend" }, "Probability of a token: ");
    LEVELS.forEach((_, index) => {
      legend.append(element("span", { className: `token level-${index}` }, rangeName(index)), " ");
    });
    this.element = element("div", {}, this.text, legend, this.details);
    this.text.addEventListener("pointerover", (event) => this.#show(event.target));
    this.text.addEventListener("focusin", (event) => this.#show(event.target));
    this.text.addEventListener("click", (event) => this.#show(event.target));
    this.text.addEventListener("keydown", (event) => this.#move(event));
  }

  add(tokens) {
    for (const token of tokens) {
      const span = element("span", { className: `token level-${level(token.logprob)}`, tabIndex: -1 }, token.text);
      span.dataset.index = this.#tokens.length;
      this.#tokens.push(token);
      this.text.append(span);
      if (this.#active === null) this.#activate(span);
    }
  }

  #activate(span) {
    if (this.#active) this.#active.tabIndex = -1;
    this.#active = span;
    span.tabIndex = 0;
  }

  #move(event) {
    const next = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
    const span = next && event.target[next];
    if (!span) return;
    event.preventDefault();
    this.#activate(span);
    span.focus();
  }

  #show(span) {
    const token = this.#tokens[span.dataset?.index];
    if (!token) return;
    const head = element("thead", {}, row(["token", "probability", "logarithm"], "th"));
    const listed = token.alternatives.some((other) => other.text === token.text);
    const all = listed ? token.alternatives : [token, ...token.alternatives];
    const rows = all.map((other) => {
      const made = row([element("code", {}, visible(other.text)), percent(other.logprob), logarithm(other.logprob)]);
      if (other.text === token.text) made.className = "chosen";
      return made;
    });
    const title = element("p", {}, "Chosen: ", element("code", {}, visible(token.text)), `, ${percent(token.logprob)}`);
    this.details.replaceChildren(title, element("table", {}, head, element("tbody", {}, ...rows)));
    this.details.hidden = false;
  }
}
