// Images that are attached to the next message, as data URLs.

import { byId, element } from "./dom.js";
import { removable } from "./message-view.js";

export class Images {
  #attached = [];

  constructor() {
    byId("attach").hidden = false;
    byId("image-input").addEventListener("change", (event) => this.#read(event.target));
  }

  /** Returns the attached images, and attaches none from now on. */
  take() {
    const taken = this.#attached.map(({ url }) => url);
    this.#attached = [];
    this.#show();
    return taken;
  }

  async #read(input) {
    const files = [...input.files];
    input.value = ""; // so that the same file can be chosen again
    for (const file of files) this.#attached.push({ name: file.name, url: await dataUrl(file) });
    this.#show();
  }

  #show() {
    const previews = this.#attached.map((image) => {
      const picture = element("img", { src: image.url, alt: image.name });
      return removable(picture, image.name, () => {
        this.#attached = this.#attached.filter((other) => other !== image);
        this.#show();
      });
    });
    byId("attached").replaceChildren(...previews);
  }
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
