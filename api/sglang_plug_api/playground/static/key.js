// The API key. It is kept in this variable only: reloading the page forgets it.

import { byId } from "./dom.js";

let key = "";
let asking = null;

/** Returns the header with the key, in UTF-8: a header is bytes, and `fetch` takes a character for each. */
export function authorization() {
  const bytes = String.fromCharCode(...new TextEncoder().encode(key));
  return key ? { authorization: `Bearer ${bytes}` } : {};
}

export const hasKey = () => key !== "";

/** Asks for the key. Calls that ask at the same time wait for one answer; it is `false` if the dialog was closed. */
export function askForKey(message) {
  asking ??= showDialog(message).finally(() => {
    asking = null;
  });
  return asking;
}

function showDialog(message) {
  const dialog = byId("key-dialog");
  const input = byId("key-input");
  byId("key-message").textContent = message;
  input.value = "";
  dialog.showModal();
  input.focus();
  return new Promise((resolve) => {
    const form = dialog.querySelector("form");
    const done = (confirmed) => {
      form.removeEventListener("submit", submit);
      dialog.removeEventListener("close", closed);
      input.value = "";
      if (dialog.open) dialog.close();
      resolve(confirmed);
    };
    const submit = (event) => {
      event.preventDefault();
      key = input.value.trim();
      done(true);
    };
    const closed = () => done(false);
    form.addEventListener("submit", submit);
    dialog.addEventListener("close", closed);
    byId("key-cancel").onclick = () => dialog.close();
  });
}
