// Tabs after the ARIA pattern: arrow keys move between them.

import { byId } from "./dom.js";

/** Shows the tabs of `panels`, objects with the `name` of a panel and `onShow()`, and selects the first. */
export function startTabs(panels) {
  const tabs = panels.map((panel) => byId(`tab-${panel.name}`));
  const list = byId("tabs");
  for (const tab of list.children) tab.hidden = !tabs.includes(tab);

  const select = (index, focus) => {
    panels.forEach((panel, number) => {
      const selected = number === index;
      tabs[number].setAttribute("aria-selected", String(selected));
      tabs[number].tabIndex = selected ? 0 : -1;
      byId(`panel-${panel.name}`).hidden = !selected;
    });
    document.body.dataset.panel = panels[index].name;
    if (focus) tabs[index].focus();
    panels[index].onShow();
  };

  tabs.forEach((tab, index) => {
    tab.addEventListener("click", () => select(index, false));
    tab.addEventListener("keydown", (event) => {
      const steps = { ArrowRight: 1, ArrowLeft: -1 };
      const target = { Home: 0, End: tabs.length - 1 }[event.key] ?? index + (steps[event.key] ?? 0);
      if (target === index) return;
      event.preventDefault();
      select((target + tabs.length) % tabs.length, true);
    });
  });
  select(0, false);
}
