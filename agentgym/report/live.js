"use strict";
// The page of a run that goes on: numbers and curves as they come; episodes when they are asked for.
(() => {
  const now = $("now");
  const shown = { version: null };
  const say = (rows) => {
    now.querySelector("dl").replaceChildren(...rows.map(([name, value, isBad]) => {
      const item = make("div");
      item.append(make("dt", "", name), make("dd", isBad ? "bad" : "", value));
      return item;
    }));
  };
  const renew = async () => {
    const text = await (await fetch("curves")).text();
    const page = new DOMParser().parseFromString(text, "text/html");
    for (const name of ["header", "#learning", "#results", "#warm-start"]) {
      const [old, made] = [document.querySelector(name), page.querySelector(name)];
      if (!made) continue;
      const adopted = document.adoptNode(made);
      if (old) dropCharts(old);
      if (old) old.replaceWith(adopted);
      else document.querySelector("main").prepend(adopted);
      drawCharts(adopted);
    }
    $("reload").hidden = false;
  };
  const source = new EventSource("events");
  source.onmessage = (event) => {
    const told = JSON.parse(event.data);
    now.classList.remove("lost");
    say(told.now);
    if (shown.version !== null && shown.version !== told.version) renew();
    shown.version = told.version;
  };
  source.onerror = () => { now.classList.add("lost"); say([["connection", "lost; it is tried again", true]]); };
  $("reload").onclick = () => location.reload();
})();
