"use strict";
// What the scripts of all pages share.
const $ = (id) => document.getElementById(id);

// Everything that comes from a run goes into a page as text, never as markup.
const make = (tag, css = "", text = null, title = null) => {
  const made = document.createElement(tag);
  if (css) made.className = css;
  if (text !== null) made.textContent = text;
  if (title !== null) made.title = title;
  return made;
};
const number = (value) => {
  if (value === null || value === undefined) return "–";
  const rounded = +value.toPrecision(3);
  return (rounded && Math.abs(rounded) < 1e-3 ? rounded.toExponential() : String(rounded)).replace(/^-/, "−");
};
const signed = (value) => (value > 0 ? "+" : "") + number(value);
const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

const showTip = (event, text) => {
  const tip = $("tip");
  tip.textContent = text;
  tip.hidden = false;
  const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
  const above = event.clientY - tip.offsetHeight - 10;
  tip.style.left = `${left}px`;
  tip.style.top = `${above < 4 ? event.clientY + 18 : above}px`;
};
const hideTip = () => { $("tip").hidden = true; };

// Blue for more than expected, orange for less, nothing for no credit; full strength at the scale.
const advantageColour = (advantage, scale) => {
  if (!advantage) return "transparent";
  const strength = Math.min(1, Math.abs(advantage) / scale) * 0.5 + 0.06;
  return `rgba(var(--${advantage > 0 ? "pos" : "neg"}), ${strength.toFixed(2)})`;
};
const outcomeMark = (success) => (success === null ? ["soft", "–", "unknown"] : success ? ["good", "✓", "success"] : ["bad", "✗", "no success"]);

// Turns with what followed them, the best first. A peer is {episode, turn, success, action, toGo, advantage, tint,
// isHere, pick}.
const peerTable = (peers, { toGo = "to go", mean = true } = {}) => {
  const table = make("table");
  const hasTurns = peers.some((p) => p.turn !== null);
  const head = make("tr");
  head.append(make("th", "", "episode"), ...(hasTurns ? [make("th", "", "turn")] : []),
    make("th", "wide", hasTurns ? "action" : "ended as"),
    make("th", "", toGo, hasTurns ? "discounted return from this turn on" : "return of the whole episode"), make("td"),
    make("th", "", "advantage"));
  table.append(head);
  const values = peers.map((p) => p.toGo);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const average = values.reduce((sum, value) => sum + value, 0) / values.length;
  const place = (value) => `${high > low ? (100 * (value - low)) / (high - low) : 50}%`;
  for (const peer of [...peers].sort((a, b) => b.toGo - a.toGo)) {
    const row = make("tr", peer.isHere ? "here" : "");
    const [css, mark, outcome] = outcomeMark(peer.success);
    const episode = make("td", "num", `${peer.episode} `);
    episode.append(make("b", css, mark, outcome));
    const range = make("td", "range");
    const bar = make("span");
    const [middle, dot] = [make("u", "", null, `mean ${number(average)}`), make("i")];
    middle.style.left = place(average);
    dot.style.left = place(peer.toGo);
    bar.append(middle, dot);
    range.append(bar);
    const credit = make("td", "num", peer.advantage === null ? "–" : signed(peer.advantage));
    credit.style.backgroundColor = peer.tint;
    row.append(episode, ...(hasTurns ? [make("td", "num", String(peer.turn))] : []),
      make("td", "wide", peer.action || "(empty)", peer.action), make("td", "num", number(peer.toGo)), range, credit);
    row.onclick = peer.pick;
    table.append(row);
  }
  if (mean && peers.length > 1) {
    const row = make("tr", "mean");
    const label = make("td", "", "mean");
    label.colSpan = 2 + hasTurns;
    row.append(label, make("td", "num", number(average)), make("td"), make("td"));
    table.append(row);
  }
  const frame = make("div", "peers");
  frame.append(table);
  return frame;
};
