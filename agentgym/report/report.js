(() => {
  // ------------------------------------------------------------------------------------------------ charts
  for (const svg of document.querySelectorAll("svg[data-hover]")) {
    const points = JSON.parse(svg.dataset.hover);
    if (!points.length) continue;
    const cross = document.createElementNS(svg.namespaceURI, "line");
    cross.setAttribute("class", "cross");
    cross.setAttribute("y1", svg.dataset.top);
    cross.setAttribute("y2", svg.dataset.bottom);
    svg.addEventListener("mousemove", (event) => {
      const box = svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
      const near = points.reduce((best, p) => (Math.abs(p[0] - x) < Math.abs(best[0] - x) ? p : best));
      cross.setAttribute("x1", near[0]);
      cross.setAttribute("x2", near[0]);
      svg.append(cross);
      showTip(event, near[1]);
    });
    svg.addEventListener("mouseleave", () => { cross.remove(); hideTip(); });
  }

  // ---------------------------------------------------------------------------------------------- episodes
  const traces = JSON.parse($("traces").textContent);
  if (!traces.sections.length) return;
  const colour = (advantage) => advantageColour(advantage, traces.scale);
  const hasCredit = traces.sections.some((s) => s.groups.some((g) => g.members.some((m) =>
    m.turns.some((t) => "advantage" in t))));
  if (hasCredit) {
    $("scale").append("advantage", make("b", "soft", `≤ −${number(traces.scale)}`), make("i"),
      make("b", "soft", `≥ +${number(traces.scale)}`));
  }

  const hasTokens = traces.sections.some((s) => s.groups.some((g) => g.members.some((m) => m.turns.some((t) => t.tokens))));
  let byChance = !hasCredit && hasTokens;
  if (hasCredit && hasTokens) {
    const button = make("button", "", "colour tokens by probability", "the less probable a token was, the stronger its colour");
    button.setAttribute("aria-pressed", "true");
    button.onclick = () => {
      byChance = !byChance;
      button.textContent = `colour tokens by ${byChance ? "advantage" : "probability"}`;
      const [row, at] = [open, here];
      open = null;
      show(row, at);
    };
    $("scale").append(button);
  }

  let section = traces.sections[0];
  let rows = []; // the members that are shown: {group, member, element}
  let open = null;
  let here = 0;
  const hidden = { status: new Set(), outcome: new Set() };
  const outcomeOf = (m) => outcomeMark(m.success)[2];
  let wanted = "";

  // All text of an episode, once it is searched for the first time.
  const texts = new Map();
  const textOf = (member) => {
    if (!texts.has(member)) {
      texts.set(member, [
        member.task, member.data, member.opening, member.error, member.seed,
        ...member.turns.flatMap((t) => [t.action, t.thinking, t.played, t.hint, t.key, ...t.replies.map((r) => r.text), ...t.malformed]),
      ].filter(Boolean).join("\n").toLowerCase());
    }
    return texts.get(member);
  };
  const isShown = (member) => !hidden.status.has(member.status) && !hidden.outcome.has(outcomeOf(member))
    && (!wanted || textOf(member).includes(wanted));

  const toggles = (kind, values) => {
    $(kind).replaceChildren(...values.map((value) => {
      const button = make("button", "", value.replaceAll("_", " "));
      button.setAttribute("aria-pressed", !hidden[kind].has(value));
      button.onclick = () => {
        if (!hidden[kind].delete(value)) hidden[kind].add(value);
        button.setAttribute("aria-pressed", !hidden[kind].has(value));
        showGroups();
      };
      return button;
    }));
  };

  const markSame = (group, key) => {
    for (const cell of $("groups").querySelectorAll("i.same")) cell.classList.remove("same");
    if (key === null) return;
    for (const row of rows.filter((r) => r.group === group)) {
      row.member.turns.forEach((turn, at) => {
        if (turn.key === key && row.cells[at]) row.cells[at].classList.add("same");
      });
    }
  };

  const stripOf = (row) => {
    const isPlain = !row.member.turns.some((turn) => "advantage" in turn);
    const strip = make("span", `strip ${row.member.turns.length > 20 ? "many" : ""} ${isPlain ? "plain" : ""}`);
    row.cells = row.member.turns.map((turn, at) => {
      const cell = make("i", turn.valid ? "" : "invalid");
      if ("advantage" in turn) cell.style.backgroundImage = `linear-gradient(${colour(turn.advantage)}, ${colour(turn.advantage)})`;
      cell.onmouseenter = (event) => {
        const credit = "advantage" in turn ? `, advantage ${signed(turn.advantage)}` : "";
        showTip(event, `turn ${at + 1}${credit}\n${turn.action.slice(0, 200)}`);
        if (!section.is_eval) markSame(row.group, turn.key);
      };
      cell.onmouseleave = () => { hideTip(); markSame(row.group, null); };
      cell.onclick = (event) => { event.stopPropagation(); show(row, at); };
      return cell;
    });
    strip.append(...row.cells);
    if (row.member.status !== "completed") strip.append(make("span", "", row.member.status.replaceAll("_", " ")));
    return strip;
  };

  const rowOf = (group, member, at) => {
    const row = { group, member, cells: [] };
    const element = make("button", `member ${section.is_eval ? "task" : member.player ? "match" : ""}`);
    const name = section.is_eval ? member.task : member.player ? `${at + 1} P${member.player}` : String(at + 1);
    const [css, sign, outcome] = outcomeMark(member.success);
    element.append(
      make("span", "soft", name, section.is_eval ? member.task : member.player ? `player ${member.player}` : "member"),
      make("b", css, sign, outcome),
      make("span", "num", number(member.return), "return"),
      make("span", "num", `${member.turns.length} t`, `${member.turns.length} turns`),
      stripOf(row));
    element.onclick = () => show(row, 0);
    row.element = element;
    return row;
  };

  const showGroups = () => {
    rows = [];
    const cards = section.groups.map((group) => {
      const shown = group.members.filter(isShown);
      if (!shown.length) return null;
      const card = make("div", "group card");
      const title = make("h3", "", group.title);
      const known = group.members.filter((m) => m.success !== null);
      title.append(make("span", "", `${known.filter((m) => m.success).length} of ${known.length} succeed`));
      if (group.dropped) title.append(make("span", "bad", `left out: ${group.dropped.replaceAll("_", " ")}`));
      card.append(title);
      for (const member of shown) {
        const row = rowOf(group, member, group.members.indexOf(member));
        rows.push(row);
        card.append(row.element);
      }
      return card;
    });
    $("groups").replaceChildren(...cards.filter(Boolean));
    if (rows.length) show(rows[0], 0, false);
    else {
      $("groups").append(make("p", "none", "No episode is left by these filters."));
      $("episode").replaceChildren();
    }
  };

  const actionOf = (turn) => {
    const pre = make("pre", "action");
    const tint = colour(turn.advantage);
    if (!turn.tokens) {
      if (turn.thinking) pre.append(make("span", "thinking", `${turn.thinking}\n`, "thinking"));
      const span = make("span", "", turn.action || "(empty)");
      span.style.backgroundColor = tint;
      pre.append(span);
      return pre;
    }
    for (const [at, [text, logprob]] of turn.tokens.entries()) {
      const isThinking = at < turn.num_thinking;
      const chance = `${isThinking ? "thinking, " : ""}p = ${number(Math.exp(logprob))}, log p = ${number(logprob)}`;
      const credit = "advantage" in turn ? `, advantage ${signed(turn.advantage)}` : "";
      const span = make("span", isThinking ? "thinking" : "", text, chance + credit);
      span.style.backgroundColor = byChance ? `rgba(var(--chance), ${(0.8 * (1 - Math.exp(logprob))).toFixed(2)})` : tint;
      pre.append(span);
    }
    return pre;
  };

  // The turns that the credit of this one was compared with: its group's, in the same state.
  const peersOf = (group, turn) => group.members.flatMap((member, index) => member.turns.flatMap((other, at) => {
    if (other.anchor !== turn.anchor) return [];
    const row = rows.find((r) => r.member === member);
    return [{
      episode: index + 1, turn: at + 1, success: member.success, action: other.action, toGo: other.to_go,
      advantage: other.advantage, tint: colour(other.advantage), isHere: other === turn,
      pick: (event) => { event.stopPropagation(); if (row) show(row, at); },
    }];
  }));

  // The middle goes: keys of one task tend to begin alike.
  const shortened = (key) => (key.length > 30 ? `${key.slice(0, 10)}…${key.slice(-19)}` : key);
  const milliseconds = (s) => (s >= 1 ? `${number(s)} s` : `${number(s * 1000)} ms`);
  const aboutOf = (turn, at, row) => {
    const about = make("div", "about");
    about.append(make("b", "", `turn ${at + 1}`));
    const chip = (text, css = "", title = null) => about.append(make("span", `chip ${css}`, text, title));
    if ("advantage" in turn) {
      const credit = make("span", "chip", `advantage ${signed(turn.advantage)}`);
      credit.style.backgroundColor = colour(turn.advantage);
      about.append(credit);
      chip(`return to go ${number(turn.to_go)}`, "", `rewards from this turn on; shaped reward ${number(turn.shaped)}`);
      if (!turn.gate_open) chip("gate closed", "", "step rewards do not count, since the outcome is below the gate");
      if (turn.anchor >= 0) {
        const anchor = make("button", "chip", `anchor ${turn.anchor} × ${turn.anchor_size}`,
          "turns of this group in the same state; click to see them");
        anchor.onclick = (event) => {
          event.stopPropagation();
          markSame(row.group, turn.key);
          const box = anchor.closest(".turn");
          const shown = box.querySelector(".peers");
          if (shown) shown.remove();
          else about.after(peerTable(peersOf(row.group, turn)));
        };
        about.append(anchor);
      }
    }
    for (const [name, role, value] of turn.parts) chip(`${name} ${signed(value)}`, value > 0 ? "good" : value < 0 ? "bad" : "", role);
    if (!turn.valid) chip("invalid", "bad", "the call could not be read, or the environment refused it");
    if (turn.void) chip("void", "bad", "no call and no answer");
    for (const reason of turn.malformed) chip("malformed", "bad", reason);
    if (row.member.player) chip(`player ${row.member.player}`, "", "each player has an episode of its own");
    if (at < row.member.branch_turn) chip(`copy of episode ${row.member.parent}`, "soft", "the episode branched off later");
    if (turn.hint) chip("hint", "", `shown at the end of the prompt, and not trained: ${turn.hint}`);
    if (turn.agent) chip(turn.agent, "", "a sub-agent, which the main agent asked");
    if (turn.anew) chip("context begins anew");
    if (turn.played !== null) chip("replaced", "bad", `done in its place: ${turn.played}`);
    if (turn.kind === "summary") chip("summary", "", "the context was full: what the policy kept of it");
    if (turn.key !== null) chip(shortened(turn.key), "soft", `state: ${turn.key}`);
    const [render, generate, env] = turn.seconds;
    const thought = turn.num_thinking ? `${turn.num_thinking} of them thinking, ` : "";
    const tokens = turn.num_tokens ? `${turn.num_tokens} tokens, ${thought}` : "";
    const version = turn.version === null ? "" : `; policy version ${turn.version}`;
    about.append(make("span", "time", `${tokens}${milliseconds(render + generate + env)}`,
      `rendering ${milliseconds(render)}, sampling ${milliseconds(generate)}, environment ${milliseconds(env)}${version}`));
    return about;
  };

  const repliesOf = (turn) => [
    ...(turn.played === null ? [] : [make("pre", "reply", turn.played, "done in place of the action above")]),
    ...turn.replies.flatMap((reply) => {
      const pre = make("pre", reply.error ? "reply error" : "reply", reply.text, [reply.role, reply.name, reply.error].filter(Boolean).join(", "));
      return [pre, ...reply.images.map(pictureOf)];
    }),
  ];

  const pictureOf = (image) => {
    const picture = make("img");
    if (/^image\/(png|webp)$/.test(image.type) && /^[A-Za-z0-9+/=]+$/.test(image.data)) {
      picture.src = `data:${image.type};base64,${image.data}`;
    }
    return picture;
  };

  // What the agent saw before each turn, with what it then acted on.
  const filmOf = (member) => {
    const last = (replies) => replies.flatMap((reply) => reply.images).at(-1) ?? null;
    const opening = member.opening_images.at(-1) ?? null;
    const screens = [opening, ...member.turns.map((turn) => last(turn.replies))];
    if (!screens.some(Boolean)) return [];
    const film = make("div", "film");
    screens.forEach((screen, at) => {
      const turn = member.turns[at];
      if (!screen) return;
      const frame = make("figure", turn ? "" : "end");
      const view = make("div");
      view.append(pictureOf(screen));
      for (const { box } of turn ? turn.replies.filter((reply) => reply.box) : []) {
        const spot = make("i");
        const percent = (value, of) => `${(100 * value) / of}%`;
        spot.style.left = percent(box[0], screen.size[0]);
        spot.style.top = percent(box[1], screen.size[1]);
        spot.style.width = percent(box[2], screen.size[0]);
        spot.style.height = percent(box[3], screen.size[1]);
        view.append(spot);
      }
      const caption = make("figcaption", "", turn ? turn.action : "at the end", turn ? turn.action : null);
      if (turn) {
        caption.prepend(make("b", "", `${at + 1} `));
        frame.dataset.turn = at;
        frame.onclick = () => mark(at);
      }
      frame.append(view, caption);
      film.append(frame);
    });
    return [film];
  };

  // In the evaluation of the other run at the same moment, the episode of the same task.
  const twinOf = (member) => {
    if (!section.is_eval || section.of === undefined) return null;
    const moment = (s) => (s.of ? s.label.slice(s.of.length + 2) : s.label);
    const other = traces.sections.find((s) => s.is_eval && s.of !== section.of && moment(s) === moment(section));
    const found = other && other.groups.flatMap((g) => g.members).find((m) => m.task === member.task && m.data === member.data);
    return found ? { section: other, member: found } : null;
  };

  const promptOf = (turn) => {
    if (turn.prompt === null) return [];
    const prompt = make("details");
    prompt.append(make("summary", "", "the new prompt"), make("pre", "reply", turn.prompt));
    return [prompt];
  };

  const show = (row, at, scroll = true) => {
    const { member } = row;
    if (open !== row) {
      const moved = open !== null; // on loading, the page stays where it is
      if (open) open.element.classList.remove("open");
      open = row;
      row.element.classList.add("open");
      const page = $("episode");
      page.className = "card";
      const outcome = make("span", member.success ? "good" : member.success === null ? "soft" : "bad", ` ${outcomeOf(member)}`);
      const head = make("h3", "", `${member.task}`);
      head.append(outcome);
      const facts = `return ${number(member.return)}, ${member.turns.length} turns, ${member.status.replaceAll("_", " ")}, seed ${member.seed}`;
      const origin = [
        member.retries ? `${member.retries} retries` : "",
        member.parent === null ? "" : `branched from episode ${member.parent} at turn ${member.branch_turn + 1}`,
        member.replayed === null ? "" : `trained again, first in step ${member.replayed}`,
      ];
      page.replaceChildren(head, make("div", "soft", [facts, ...origin].filter(Boolean).join(", ")));
      const twin = twinOf(member);
      if (twin) {
        const button = make("button", "chip", `the same task in ${twin.section.label}`);
        button.onclick = () => {
          const at = traces.sections.indexOf(twin.section);
          $("section").value = at;
          pick(at);
          const found = rows.find((r) => r.member === twin.member);
          if (found) show(found, 0);
        };
        page.append(button);
      }
      if (member.error) page.append(make("pre", "reply error", member.error));
      if (member.data !== "{}") {
        const data = make("details");
        data.append(make("summary", "", "task data"), make("pre", "", member.data));
        page.append(data);
      }
      page.append(...filmOf(member));
      if (member.opening !== null) page.append(make("pre", "reply opening", member.opening, "the first observation"));
      member.turns.forEach((turn, index) => {
        const box = make("div", "turn");
        box.append(aboutOf(turn, index, row), ...promptOf(turn), actionOf(turn), ...repliesOf(turn));
        box.onclick = () => mark(index, false);
        page.append(box);
      });
      page.scrollTop = 0;
      if (moved) row.element.scrollIntoView({ block: "nearest" });
    }
    mark(at, scroll && at > 0);
  };

  const mark = (at, scroll = true) => {
    const turns = [...$("episode").querySelectorAll(".turn")];
    if (!turns.length) return;
    here = Math.max(0, Math.min(at, turns.length - 1));
    turns.forEach((turn, index) => turn.classList.toggle("here", index === here));
    const frames = [...$("episode").querySelectorAll(".film figure")];
    frames.forEach((frame) => frame.classList.toggle("here", frame.dataset.turn === String(here)));
    const film = frames[0]?.parentElement;
    const shown = frames.find((frame) => frame.classList.contains("here"));
    if (shown) film.scrollTo({ left: shown.offsetLeft - film.offsetLeft - 60 });
    if (scroll) $("episode").scrollTo({ top: turns[here].offsetTop - $("episode").offsetTop - 60 });
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || ["SELECT", "INPUT"].includes(event.target.tagName)) return;
    const go = (by) => { const next = rows[rows.indexOf(open) + by]; if (next) show(next, 0); };
    const actions = { j: () => mark(here + 1), k: () => mark(here - 1), n: () => go(1), p: () => go(-1) };
    if (actions[event.key]) { actions[event.key](); event.preventDefault(); }
  });

  const pick = (index) => {
    section = traces.sections[index];
    const members = section.groups.flatMap((g) => g.members);
    toggles("status", [...new Set(members.map((m) => m.status))].sort());
    toggles("outcome", [...new Set(members.map(outcomeOf))].sort());
    open = null;
    showGroups();
  };
  const options = traces.sections.map((s, at) => {
    const option = make("option", "", `${s.label} (${s.note})`);
    option.value = at;
    return option;
  });
  $("section").append(...options);
  $("section").onchange = (event) => pick(+event.target.value);

  const numFound = (s) => s.groups.flatMap((g) => g.members).filter((m) => textOf(m).includes(wanted)).length;
  const search = (text) => {
    wanted = text.trim().toLowerCase();
    options.forEach((option, at) => {
      const s = traces.sections[at];
      option.textContent = `${s.label} (${wanted ? plural(numFound(s), "match").replace("matchs", "matches") : s.note})`;
    });
    const here = traces.sections.indexOf(section);
    const first = traces.sections.findIndex((s) => wanted && numFound(s));
    if (wanted && !numFound(section) && first >= 0) {
      $("section").value = first;
      pick(first);
    } else {
      $("section").value = here;
      showGroups();
    }
  };
  let typing = null;
  $("search").oninput = (event) => {
    clearTimeout(typing);
    typing = setTimeout(() => search(event.target.value), 150);
  };
  const last = traces.sections.map((s) => s.is_eval).lastIndexOf(false);
  $("section").value = Math.max(0, last);
  pick(Math.max(0, last));
})();
