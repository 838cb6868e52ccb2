(() => {
  const { columns, groups } = JSON.parse($("credit").textContent);
  if (!groups.length) return;
  const ZERO = 1e-8;
  let group = null;
  let cells = []; // [column][member][turn], what is drawn
  let at = { column: 0, member: 0, turn: 0 };

  const creditOf = (member, turn, column = at.column) => group.members[member].turns[turn].credit[column];
  const tintOf = (credit, column = at.column) => advantageColour(credit ? credit.a : 0, columns[column].scale);
  const isPhantom = (credit) => group.is_lost && credit !== null && Math.abs(credit.a) > ZERO;
  const wonOf = (g) => {
    const known = g.members.filter((m) => m.success !== null);
    return `${known.filter((m) => m.success).length} of ${known.length} succeed`;
  };

  // ------------------------------------------------------------------------------------------------- peers
  // Turns of the group that were taken in the same state, as the column's estimator tells states apart.
  const stateOf = (member, turn, column) => {
    const credit = creditOf(member, turn, column);
    if (!credit) return null;
    return columns[column].compares_states ? credit.k : `state ${group.members[member].turns[turn].state}`;
  };
  const sameState = (member, turn, column) => {
    const state = stateOf(member, turn, column);
    if (state === null) return [];
    return group.members.flatMap((m, other) => m.turns.flatMap((_, otherTurn) => (
      stateOf(other, otherTurn, column) === state ? [{ member: other, turn: otherTurn }] : [])));
  };

  // ------------------------------------------------------------------------------------------------ panels
  const cellOf = (column, member, turn) => {
    const shown = group.members[member].turns[turn];
    const credit = creditOf(member, turn, column);
    const cell = make("button", "cell");
    cell.tabIndex = -1;
    cell.setAttribute("aria-label", `episode ${member + 1}, turn ${turn + 1}`);
    cell.style.backgroundImage = `linear-gradient(${tintOf(credit, column)}, ${tintOf(credit, column)})`;
    if (!shown.valid) cell.classList.add("invalid");
    if (credit === null) cell.classList.add("none");
    if (credit && credit.w === 0) cell.classList.add("left-out");
    if (isPhantom(credit)) {
      cell.classList.add("phantom");
      cell.style.backgroundColor = tintOf(credit, column);
    }
    cell.onmouseenter = (event) => {
      const said = credit === null ? "not credited" : `${columns[column].name} ${signed(credit.a)}`;
      showTip(event, `episode ${member + 1}, turn ${turn + 1}: ${said}${isPhantom(credit) ? ", phantom" : ""}\n${shown.action.slice(0, 200)}`);
      markSame(member, turn, column);
    };
    cell.onmouseleave = () => { hideTip(); markSame(at.member, at.turn, at.column); };
    cell.onclick = () => select({ column, member, turn });
    return cell;
  };

  const markSame = (member, turn, column) => {
    cells.forEach((lanes) => lanes.forEach((lane) => lane.forEach((cell) => cell.classList.remove("same"))));
    for (const peer of sameState(member, turn, column)) {
      cells.forEach((lanes) => lanes[peer.member][peer.turn].classList.add("same"));
    }
  };

  const panelOf = (column, index, longest) => {
    const panel = make("section", "card panel");
    const title = make("h3", "", column.name);
    title.append(make("span", "", column.scale ? `full colour at ±${number(column.scale)}` : "no credit"));
    panel.append(title);
    cells[index] = group.members.map((m, member) => {
      const lane = make("div", "lane");
      const [css, mark, outcome] = outcomeMark(m.success);
      const strip = make("span", "cells");
      strip.style.gridTemplateColumns = `repeat(${longest}, minmax(3px, 16px))`;
      const drawn = m.turns.map((_, turn) => cellOf(index, member, turn));
      strip.append(...drawn);
      const facts = `${outcome}, return ${number(m.return)}, ${plural(m.turns.length, "turn")}, ${m.status.replaceAll("_", " ")}`;
      lane.append(make("span", "soft", String(member + 1), `episode ${member + 1}`), make("b", css, mark, facts), strip);
      panel.append(lane);
      return drawn;
    });
    return panel;
  };

  // ---------------------------------------------------------------------------------------- why, in one turn
  const peersOf = () => {
    return sameState(at.member, at.turn, at.column).map(({ member, turn }) => {
      const credit = creditOf(member, turn);
      const m = group.members[member];
      return {
        episode: member + 1, turn: turn + 1, success: m.success, action: m.turns[turn].action, toGo: credit.g,
        advantage: credit.a, tint: tintOf(credit), isHere: member === at.member && turn === at.turn,
        pick: () => select({ ...at, member, turn }),
      };
    });
  };

  const episodesOf = () => group.members.flatMap((m, member) => {
    const credit = m.turns.length ? creditOf(member, 0) : null;
    if (credit === null) return [];
    return [{
      episode: member + 1, turn: null, success: m.success, action: `${m.status.replaceAll("_", " ")} after ${plural(m.turns.length, "turn")}`,
      toGo: m.return, advantage: credit.a, tint: tintOf(credit), isHere: member === at.member,
      pick: () => select({ ...at, member, turn: Math.min(at.turn, m.turns.length - 1) }),
    }];
  });

  const whyOf = () => {
    const side = make("div");
    const column = columns[at.column];
    const credit = creditOf(at.member, at.turn);
    const tabs = make("div", "tabs");
    columns.forEach((other, index) => {
      const given = creditOf(at.member, at.turn, index);
      const tab = make("button", "", `${other.name} ${given ? signed(given.a) : "–"}`);
      tab.style.backgroundColor = tintOf(given, index);
      tab.setAttribute("aria-pressed", index === at.column);
      tab.onclick = () => select({ ...at, column: index });
      tabs.append(tab);
    });
    side.append(tabs);
    if (credit === null) {
      side.append(make("p", "none", "This turn has no credit here: it was left out of the record, or the infrastructure failed."));
      return side;
    }
    const about = make("div", "about");
    const chip = (text, css = "", title = null) => about.append(make("span", `chip ${css}`, text, title));
    if (isPhantom(credit)) chip("phantom", "bad", "credited, and no member of this group succeeded");
    if (credit.w === 0) chip("left out of the loss", "bad");
    if (credit.shut) chip("gate closed");
    const raw = group.members[at.member].turns[at.turn].parts.reduce((sum, part) => sum + part[2], 0);
    if ("r" in credit) chip(`shaped reward ${signed(credit.r)}`, "", `the environment's was ${signed(raw)}`);
    if (about.children.length) side.append(make("h4", "", "what shaped it"), about);
    side.append(make("h4", "", `${column.name} gives ${signed(credit.a)}; to go ${number(credit.g)}`));
    if (column.compares_states) {
      const peers = peersOf();
      side.append(make("h4", "", peers.length > 1 ? `the ${peers.length} turns of this group in the same state` : "no other turn of this group was taken in this state"));
      side.append(peerTable(peers, { toGo: "to go" }));
    } else {
      side.append(make("h4", "", "the episodes of the group; states are not compared"));
      side.append(peerTable(episodesOf(), { toGo: "return" }));
    }
    return side;
  };

  const turnOf = () => {
    const member = group.members[at.member];
    const turn = member.turns[at.turn];
    const side = make("div");
    const about = make("div", "about");
    const chip = (text, css = "", title = null) => about.append(make("span", `chip ${css}`, text, title));
    const [css, , outcome] = outcomeMark(member.success);
    chip(`${outcome}, return ${number(member.return)}`, css);
    for (const [name, role, value] of turn.parts) chip(`${name} ${signed(value)}`, value > 0 ? "good" : value < 0 ? "bad" : "", role);
    if (!turn.valid) chip("invalid action", "bad");
    const said = at.turn ? member.turns[at.turn - 1].reply : member.opening;
    side.append(about, make("h4", "", "it saw"), make("pre", "reply", said || "(nothing)"),
      make("h4", "", "it did"), make("pre", "action", turn.action || "(empty)"),
      make("h4", "", "and then"), make("pre", "reply", turn.reply || "(nothing)"));
    return side;
  };

  // --------------------------------------------------------------------------------------------- selection
  const select = (next, { remember = true } = {}) => {
    cells[at.column]?.[at.member]?.[at.turn] && cells.forEach((lanes) => lanes[at.member][at.turn].classList.remove("here"));
    at = next;
    cells.forEach((lanes) => lanes[at.member][at.turn].classList.add("here"));
    [...$("panels").children].forEach((panel, index) => panel.classList.toggle("open", index === at.column));
    markSame(at.member, at.turn, at.column);
    const sides = make("div", "sides");
    sides.append(turnOf(), whyOf());
    $("episode").replaceChildren(make("h3", "", `step ${group.step}, ${group.task}: episode ${at.member + 1}, turn ${at.turn + 1}`), sides);
    const frame = $("episode").querySelector(".peers");
    if (frame) frame.scrollTop = (frame.querySelector("tr.here")?.offsetTop ?? 0) - frame.clientHeight / 2;
    if (remember) history.replaceState(null, "", `#${groups.indexOf(group) + 1}/${encodeURIComponent(columns[at.column].name)}/${at.member + 1}/${at.turn + 1}`);
  };

  // The turn where the columns differ most, of those that something in the same state can be said about.
  const tellingTurn = () => {
    const column = Math.max(0, columns.findIndex((c, index) => index && c.compares_states));
    let best = { column: 0, member: group.members.findIndex((m) => m.turns.length), turn: 0 };
    let most = -1;
    group.members.forEach((m, member) => m.turns.forEach((turn, index) => {
      const scaled = turn.credit.map((credit, column) => (credit ? credit.a / (columns[column].scale || 1) : 0));
      const isShared = sameState(member, index, column).length > 1;
      const difference = (Math.max(...scaled) - Math.min(...scaled)) * (isShared ? 1 : 0.1);
      if (difference > most) [best, most] = [{ column, member, turn: index }, difference];
    }));
    return best;
  };

  const open = (index, selected = null) => {
    group = groups[index];
    cells = [];
    const longest = Math.max(...group.members.map((m) => m.turns.length));
    const width = Math.min(640, Math.max(248, 68 + 8 * longest)); // so that a long episode fits beside its neighbours
    $("panels").style.gridTemplateColumns = `repeat(auto-fit, minmax(min(100%, ${width}px), 1fr))`;
    $("panels").replaceChildren(...columns.map((column, index) => panelOf(column, index, longest)));
    for (const button of $("groups").children) button.classList.toggle("open", +button.dataset.index === index);
    select(selected ?? tellingTurn(), { remember: selected !== null || location.hash !== "" });
  };

  const list = (step) => {
    const shown = groups.map((g, index) => [g, index]).filter(([g]) => step === "" || g.step === +step);
    $("groups").replaceChildren(...shown.map(([g, index]) => {
      const button = make("button", "pick");
      button.dataset.index = index;
      const facts = `${wonOf(g)} · differ by ${number(g.difference)}`;
      button.append(make("b", "", `step ${g.step} · ${g.task}`), make("span", "", facts,
        `mean over turns of the range of advantages, in standard deviations${g.dropped ? `; not trained: ${g.dropped.replaceAll("_", " ")}` : ""}`));
      button.onclick = () => open(index);
      return button;
    }));
    return shown[0][1];
  };

  // A place in the page as a link: #group/estimator/episode/turn, all but the estimator counted from 1.
  const fromHash = () => {
    const [place, name, member, turn] = location.hash.slice(1).split("/").map(decodeURIComponent);
    const index = +place - 1;
    const row = groups[index]?.members[+member - 1];
    const column = columns.findIndex((c) => c.name === name);
    if (!row || column < 0 || !row.turns[+turn - 1]) return groups[index] ? [index, null] : null;
    return [index, { column, member: +member - 1, turn: +turn - 1 }];
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "SELECT") return;
    const members = group.members;
    const clamp = (value, count) => Math.max(0, Math.min(value, count - 1));
    const episode = (by) => {
      let member = at.member + by;
      while (members[member] && !members[member].turns.length) member += by;
      if (members[member]) select({ ...at, member, turn: clamp(at.turn, members[member].turns.length) });
    };
    const turn = (by) => select({ ...at, turn: clamp(at.turn + by, members[at.member].turns.length) });
    const actions = { j: () => turn(1), k: () => turn(-1), n: () => episode(1), p: () => episode(-1),
      e: () => select({ ...at, column: (at.column + 1) % columns.length }) };
    if (actions[event.key]) { actions[event.key](); event.preventDefault(); }
  });

  const steps = [...new Set(groups.map((g) => g.step))].sort((a, b) => a - b);
  $("step").append(...["", ...steps].map((step) => {
    const option = make("option", "", step === "" ? `all steps (${groups.length} groups)` : `step ${step} (${groups.filter((g) => g.step === step).length})`);
    option.value = step;
    return option;
  }));
  $("step").onchange = (event) => open(list(event.target.value));
  list("");
  open(...(fromHash() ?? [0, null]));
  window.addEventListener("hashchange", () => { const place = fromHash(); if (place) open(...place); });
})();
