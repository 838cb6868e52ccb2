"use strict";
// Parts of an episode that need nothing but its data: times, gates, pictures, and all of it as JSON.
const milliseconds = (s) => (s >= 1 ? `${number(s)} s` : `${number(s * 1000)} ms`);

// Seconds by what they were spent on. Waiting is for a place in the engine, where the engine tells it.
const timeOf = (turns) => {
  const sum = (at) => turns.reduce((total, { seconds }) => total + (seconds[at] ?? 0), 0);
  const isTold = turns.some(({ seconds }) => isKnown(seconds[3]));
  return [["model", sum(1) - sum(3)], ["environment", sum(2)], ["waiting", isTold ? sum(3) : null], ["rendering", sum(0)]];
};
const timeLine = (turns) => {
  const [[, ofModel]] = timeOf(turns);
  const spent = timeOf(turns).filter(([, value]) => value || (value === null && ofModel)); // scripts have no model
  const whole = spent.reduce((total, [, value]) => total + (value ?? 0), 0);
  if (!whole) return [];
  const line = make("div", "spent", `${milliseconds(whole)}: `);
  const bar = make("span", "bar");
  const names = timeOf(turns).map(([name]) => name);
  spent.forEach(([name, value]) => {
    const at = names.indexOf(name); // the colour of a part is always the same
    line.append(make("span", value ? `part part-${at}` : "part", `${name} ${value === null ? "not told" : milliseconds(value)}`,
      value === null ? "this engine does not tell how long requests wait; the time is in that of the model" : null));
    const part = make("i", `part-${at}`);
    part.style.width = `${(100 * (value ?? 0)) / whole}%`;
    bar.append(part);
  });
  line.append(bar);
  return [line];
};

// The gates of gated rewards in this episode, and whether the record agrees.
const gatesOf = (member) => {
  const lines = member.gates.map(({ roles, total, needed, clears, gated }) => {
    const line = make("div", "gate");
    line.append(make("span", `chip ${clears ? "good" : "bad"}`, clears ? "gate open" : "gate closed"),
      `${roles.join(" + ")} is ${number(total)}, needed ${needed}: ${gated.join(", ")} ${clears ? "count" : "do not count"}`);
    return line;
  });
  const recorded = member.turns.find((turn) => "gate_open" in turn);
  if (lines.length && recorded && recorded.gate_open !== member.gates.every(({ clears }) => clears)) {
    lines.push(make("div", "soft", `The record has the gate ${recorded.gate_open ? "open" : "closed"}: another shaper changed rewards before it.`));
  }
  return lines;
};

const pictureOf = (image) => {
  if (image.type === "missing") return make("span", "reply error", `the picture ${image.data} is missing or was changed`);
  const picture = make("img");
  if (/^image\/(png|webp)$/.test(image.type) && /^[A-Za-z0-9+/=]+$/.test(image.data)) {
    picture.src = `data:${image.type};base64,${image.data}`;
  }
  return picture;
};

// A picture with the boxes on which calls acted.
const actedOn = (image, boxes, title = null) => {
  const view = make("div", "acted", null, title);
  view.append(pictureOf(image));
  const percent = (value, of) => `${(100 * value) / of}%`;
  for (const box of image.type === "missing" ? [] : boxes) {
    const spot = make("i");
    spot.style.left = percent(box[0], image.size[0]);
    spot.style.top = percent(box[1], image.size[1]);
    spot.style.width = percent(box[2], image.size[0]);
    spot.style.height = percent(box[3], image.size[1]);
    view.append(spot);
  }
  return view;
};

// All that the page knows of an episode, written out when it is asked for.
const rawOf = (member) => {
  const raw = make("details", "raw");
  raw.append(make("summary", "", "raw JSON"));
  raw.ontoggle = () => {
    if (!raw.open || raw.querySelector("pre")) return;
    const text = make("pre", "reply", JSON.stringify(member, null, 1));
    const copy = make("button", "chip", "copy");
    copy.onclick = async (event) => {
      event.stopPropagation();
      try { await navigator.clipboard.writeText(text.textContent); copy.textContent = "copied"; }
      catch { // a page from a file may not write to the clipboard by that name
        getSelection().selectAllChildren(text);
        copy.textContent = document.execCommand("copy") ? "copied" : "selected: copy it by the keyboard";
      }
    };
    raw.append(copy, text);
  };
  return raw;
};

// What models of other roles did, which are not trained: sub-agents call by call, and other players of a game.
const otherRoles = (member, ways, way, repliesOf) => member.frozen.map(({ agent, role, turns }) => {
  const box = make("details");
  box.append(make("summary", "", `${agent}, played by the role ${role}, not trained: ${plural(turns.length, "turn")}`));
  box.ontoggle = () => {
    if (!box.open || box.querySelector(".turn")) return;
    turns.forEach((turn, index) => {
      const part = make("div", "turn");
      part.append(make("b", "", `turn ${index + 1}`), actionOf(turn, ways, way), ...repliesOf(turn));
      box.append(part);
    });
  };
  return box;
});

// Other attempts of a policy that makes several, turn by turn.
const otherAttempts = (member, ways, way) => member.attempts.map((other, at) => {
  const box = make("details");
  const [css, mark, outcome] = outcomeMark(other.success);
  const place = at + 1 < member.attempt ? at + 1 : at + 2;
  const head = make("summary", "", `attempt ${place}, which does not count: ${plural(other.turns.length, "turn")}, ${other.status.replaceAll("_", " ")} `);
  head.append(make("b", css, `${mark} ${outcome}`));
  box.append(head);
  box.ontoggle = () => {
    if (!box.open || box.querySelector(".turn")) return;
    box.append(make("pre", "reply opening", other.opening));
    other.turns.forEach((turn, index) => {
      const part = make("div", "turn");
      part.append(make("b", "", turn.kind === "summary" ? "summary for the next attempt" : `turn ${index + 1}`), actionOf(turn, ways, way),
        ...turn.replies.map((reply) => make("pre", reply.error ? "reply error" : "reply", reply.text)));
      box.append(part);
    });
  };
  return box;
});
