(() => {
  drawCharts(document);

  // ---------------------------------------------------------------------------------------------- episodes
  const traces = JSON.parse($("traces").textContent);
  if (!traces.sections.length) return;
  const colour = (advantage) => advantageColour(advantage, traces.scale);
  const { has_credit: hasCredit, has_tokens: hasTokens } = traces;

  // The turns of episodes lie in compressed blocks, which are unpacked when one of their episodes is looked at.
  const packed = [...document.querySelectorAll("script.block")].map((script) => script.textContent);
  const membersOf = (s) => s.groups.flatMap((group) => group.members);
  const unpack = async (number) => {
    const bytes = Uint8Array.from(atob(packed[number]), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  };
  const MAX_BLOCKS = 24; // kept at a time
  const unpacked = new Map();
  const blockOf = (number) => {
    const found = unpacked.get(number) ?? unpack(number);
    unpacked.delete(number);
    unpacked.set(number, found); // the last one used is the last one to go
    if (unpacked.size > MAX_BLOCKS) unpacked.delete(unpacked.keys().next().value);
    return found;
  };
  const load = async (member) => {
    const { at: [number, place] } = member;
    return { ...member, ...(await blockOf(number))[place] };
  };

  // What colours the tokens: chosen once for the page; a link names it where it is not the usual.
  const ways = colourings(traces.scale);
  const USUAL = hasCredit ? "advantage" : "logprob";
  let way = USUAL;
  const choice = $("colour");
  choice.append(...Object.entries(ways).map(([name, { label }]) => {
    const option = make("option", "", label);
    option.value = name;
    return option;
  }));
  choice.value = USUAL;
  $("colours").hidden = !hasCredit && !hasTokens;
  const colourBy = (name) => {
    way = name;
    choice.value = name;
    full = null;
    if (open) show(open, here);
  };
  choice.onchange = () => colourBy(choice.value);

  let section = traces.sections[0];
  let rows = []; // the members that are shown: {group, member, element}
  let open = null;
  let full = null; // the open row's episode with its turns
  let here = 0;
  const hidden = { status: new Set(), outcome: new Set() };
  const outcomeOf = (m) => outcomeMark(m.success)[2];
  let wanted = "";

  // All text of the episodes of a block, once something is searched for.
  const texts = new Map(); // by member
  const byBlock = new Map();
  for (const member of traces.sections.flatMap(membersOf)) {
    if (!byBlock.has(member.at[0])) byBlock.set(member.at[0], []);
    byBlock.get(member.at[0]).push(member);
  }
  const readAll = async () => {
    for (const [number, members] of byBlock) {
      if (texts.has(members[0])) continue;
      const rest = await unpack(number);
      for (const member of members) {
        const { data, opening, error, turns } = rest[member.at[1]];
        texts.set(member, [
          member.task, data, opening, error, member.seed,
          ...turns.flatMap((t) => [t.action, t.thinking, t.played, t.hint, t.key, ...t.replies.map((reply) => reply.text), ...t.malformed]),
        ].filter(Boolean).join("\n").toLowerCase());
      }
    }
  };
  const textOf = (member) => texts.get(member) ?? "";
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
    for (const row of rows.filter((other) => other.group === group && other.element)) {
      row.member.cells.forEach(([, , other], at) => { if (other === key) row.cells[at].classList.add("same"); });
    }
  };

  const stripOf = (row) => {
    const { cells, status } = row.member;
    const isPlain = !cells.some(([advantage]) => advantage !== null);
    const strip = make("span", `strip ${cells.length > 20 ? "many" : ""} ${isPlain ? "plain" : ""}`);
    row.cells = cells.map(([advantage, isValid, key], at) => {
      const cell = make("i", isValid ? "" : "invalid");
      if (advantage !== null) cell.style.backgroundImage = `linear-gradient(${colour(advantage)}, ${colour(advantage)})`;
      let isOver = false;
      cell.onmouseenter = async (event) => {
        isOver = true;
        if (!section.is_eval) markSame(row.group, key);
        const { turns } = await load(row.member);
        const credit = advantage === null ? "" : `, advantage ${signed(advantage)}`;
        if (isOver) showTip(event, `turn ${at + 1}${credit}\n${turns[at].action.slice(0, 200)}`);
      };
      cell.onmouseleave = () => { isOver = false; hideTip(); markSame(row.group, null); };
      cell.onclick = (event) => { event.stopPropagation(); show(row, at); };
      return cell;
    });
    strip.append(...row.cells);
    if (status !== "completed") strip.append(make("span", "", status.replaceAll("_", " ")));
    return strip;
  };

  // The button of a row in the list.
  const drawRow = (row) => {
    const { group, member } = row;
    const at = group.members.indexOf(member);
    const element = make("button", `member ${section.is_eval ? "task" : member.player ? "match" : ""}`);
    const name = member.trial ? `trial ${member.trial}` : section.is_eval ? member.task : member.player ? `${at + 1} P${member.player}` : String(at + 1);
    const [css, sign, outcome] = outcomeMark(member.success);
    element.append(
      make("span", "soft", name, section.is_eval ? member.task : member.player ? `player ${member.player}` : "member"),
      make("b", css, sign, outcome),
      make("span", "num", number(member.return), "return"),
      make("span", "num", `${member.cells.length} t`, `${member.cells.length} turns`),
      stripOf(row));
    element.onclick = () => show(row, 0);
    row.element = element;
    return element;
  };

  const cardOf = (group) => {
    const card = make("div", "group card");
    const title = make("h3", "", group.title);
    const known = group.members.filter((m) => m.success !== null);
    title.append(make("span", "", `${known.filter((m) => m.success).length} of ${known.length} succeed`));
    if (group.dropped) title.append(make("span", "bad", `left out: ${group.dropped.replaceAll("_", " ")}`));
    card.append(title);
    return card;
  };

  // Rows are drawn as the list is scrolled: thousands at once would take seconds.
  const ROWS_AT_ONCE = 120;
  let numDrawn = 0;
  let lastCard = null;
  const more = make("button", "more");
  const draw = (until) => {
    const end = Math.min(rows.length, until);
    for (; numDrawn < end; numDrawn += 1) {
      const row = rows[numDrawn];
      if (lastCard?.group !== row.group) {
        lastCard = { group: row.group, element: cardOf(row.group) };
        $("groups").insertBefore(lastCard.element, more);
      }
      lastCard.element.append(drawRow(row));
    }
    more.hidden = numDrawn >= rows.length;
    more.textContent = `${rows.length - numDrawn} more`;
  };
  more.onclick = () => draw(numDrawn + ROWS_AT_ONCE);
  new IntersectionObserver((seen) => { if (seen.some((one) => one.isIntersecting)) more.onclick(); }).observe(more);
  const drawn = (row) => { draw(rows.indexOf(row) + 1); return row.element; };

  const ORDERS = {
    low: (a, b) => (a.return ?? Infinity) - (b.return ?? Infinity),
    high: (a, b) => (b.return ?? -Infinity) - (a.return ?? -Infinity),
    long: (a, b) => b.cells.length - a.cells.length,
  };
  const showGroups = (isFirst = false) => {
    const order = ORDERS[$("sort").value];
    rows = section.groups.flatMap((group) => {
      const shown = group.members.filter(isShown);
      return (order ? shown.toSorted(order) : shown).map((member) => ({ group, member, cells: [], element: null }));
    });
    [numDrawn, lastCard] = [0, null];
    $("groups").replaceChildren(more);
    $("groups").scrollTop = 0;
    draw(ROWS_AT_ONCE);
    if (rows.length) show(rows[0], 0, false, isFirst);
    else {
      open = null;
      $("groups").append(make("p", "none", "No episode is left by these filters."));
      $("episode").replaceChildren();
    }
  };

  // The turns that the credit of this one was compared with: its group's, in the same state.
  const peersOf = async (group, turn) => {
    const members = await Promise.all(group.members.map(load));
    return members.flatMap((member, index) => member.turns.flatMap((other, at) => {
      if (turn.anchor >= 0 ? other.anchor !== turn.anchor : other.key !== turn.key) return [];
      const row = rows.find((r) => r.member === group.members[index]);
      return [{
        episode: index + 1, turn: at + 1, success: member.success, action: other.action, toGo: other.to_go,
        advantage: other.advantage, tint: colour(other.advantage), isHere: other === turn,
        pick: (event) => { event.stopPropagation(); if (row) show(row, at); },
      }];
    }));
  };

  // The middle goes: keys of one task tend to begin alike.
  const shortened = (key) => (key.length > 30 ? `${key.slice(0, 10)}…${key.slice(-19)}` : key);
  const aboutOf = (turn, at, row) => {
    const about = make("div", "about");
    about.append(make("b", "", `turn ${at + 1}`));
    const chip = (text, css = "", title = null) => about.append(make("span", `chip ${css}`, text, title));
    if ("advantage" in turn) {
      const credit = make("span", "chip", `advantage ${signed(turn.advantage)}`);
      credit.style.backgroundColor = colour(turn.advantage);
      about.append(credit);
      chip(`return to go ${number(turn.to_go)}`, "", `rewards from this turn on; shaped reward ${number(turn.shaped)}`);
      if (!turn.gate_open) chip("gate closed", "", "a gate of the episode held rewards back; its head says which");
      const numSame = turn.anchor >= 0 ? turn.anchor_size : sameState(row.group, row.member.cells[at][2]);
      if (numSame > 1 || turn.anchor >= 0) {
        const text = turn.anchor >= 0 ? `anchor ${turn.anchor} × ${numSame}` : `same state × ${numSame}`;
        const anchor = make("button", "chip", text, "turns of this group in the same state; click to see what they did");
        anchor.setAttribute("aria-expanded", "false");
        anchor.onclick = async (event) => {
          event.stopPropagation();
          markSame(row.group, row.member.cells[at][2]);
          const box = anchor.closest(".turn");
          const shown = box.querySelector(".peers");
          anchor.setAttribute("aria-expanded", String(!shown));
          if (shown) shown.remove();
          else about.after(peerTable(await peersOf(row.group, turn)));
        };
        about.append(anchor);
      }
    }
    turn.parts.forEach(([name, role, value], part) => {
      const isHeld = turn.counted !== null && !turn.counted[part];
      const css = isHeld ? "held" : value > 0 ? "good" : value < 0 ? "bad" : "";
      chip(`${name} ${signed(value)}`, css, `${role}${isHeld ? "; held back by a gate: it did not count" : turn.counted === null ? "" : "; counted"}`);
    });
    if (!turn.valid) chip("invalid", "bad", "the call could not be read, or the environment refused it");
    if (turn.void) chip("void", "bad", "no call and no answer");
    for (const reason of turn.malformed) chip("malformed", "bad", reason);
    if (row.member.player) chip(`player ${row.member.player}`, "", "each player has an episode of its own");
    if (at < full.branch_turn) chip(`copy of episode ${full.parent}`, "soft", "the episode branched off later");
    if (turn.faulty) chip("first wrong turn", "", "as the judge found it");
    if (turn.hint) chip("hint", "", `shown at the end of the prompt, and not trained: ${turn.hint}`);
    if (turn.agent) chip(turn.agent, "", "a sub-agent, which the main agent asked");
    if (turn.role) chip(`role ${turn.role}`, "", "sampled by the model of this role, and trained as its own");
    if (turn.anew) chip("context begins anew");
    if (turn.played !== null) chip("replaced", "bad", `done in its place: ${turn.played}`);
    if (turn.kind === "summary") chip("summary", "", "the context was full: what the policy kept of it");
    if (turn.key !== null) chip(shortened(turn.key), "soft", `state: ${turn.key}`);
    if (turn.gap) chip(`gap ${number(turn.gap[0])}`, turn.gap[1] > 0.1 ? "bad" : "soft", `log-probabilities of trainer and engine differ by ${number(turn.gap[0])} on average, by ${number(turn.gap[1])} at most`);
    const thought = turn.num_thinking ? `${turn.num_thinking} of them thinking, ` : "";
    const tokens = turn.num_tokens ? `${turn.num_tokens} tokens, ${thought}` : "";
    const version = turn.version === null ? "" : `; policy version ${turn.version}`;
    const spent = timeOf([turn]).filter(([name, value]) => value > 0 && name !== "rendering").map(([name, value]) => `${name} ${milliseconds(value)}`);
    about.append(make("span", "time", `${tokens}${spent.join(", ")}`,
      `${timeOf([turn]).map(([name, value]) => `${name} ${value === null ? "not told" : milliseconds(value)}`).join(", ")}${version}`));
    return about;
  };

  const sameState = (group, key) => (key === null ? 0 : group.members.reduce((sum, m) => sum + m.cells.filter(([, , other]) => other === key).length, 0));

  const repliesOf = (turn, pictures = new Map()) => [
    ...(turn.played === null ? [] : [make("pre", "reply", turn.played, "done in place of the action above")]),
    ...turn.replies.flatMap((reply) => {
      const pre = make("pre", reply.error ? "reply error" : "reply", reply.text, [reply.role, reply.name, reply.error].filter(Boolean).join(", "));
      const acted = reply.box && pictures.get(reply.picture);
      return [pre, ...(acted ? [actedOn(acted, [reply.box], `picture ${reply.picture}, and where this call acted`)] : []), ...reply.images.map(pictureOf)];
    }),
  ];

  // The pictures of an episode by their numbers, in the order in which the agent saw them.
  const picturesOf = (member) => new Map(
    [...member.opening_images, ...member.turns.flatMap((turn) => turn.replies.flatMap((reply) => reply.images))]
      .map((image) => [image.number, image]));

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
      const here = turn ? turn.replies.filter((reply) => reply.box && reply.picture === screen.number) : [];
      const view = actedOn(screen, here.map((reply) => reply.box));
      const caption = make("figcaption", "", turn ? turn.action : "at the end", turn ? turn.action : null);
      if (turn) {
        caption.prepend(make("b", "", `${at + 1} `));
        if ("advantage" in turn) {
          const credit = make("span", "chip", signed(turn.advantage), "the turn's advantage");
          credit.style.backgroundColor = colour(turn.advantage);
          caption.prepend(credit);
        }
        frame.dataset.turn = at;
        frame.onclick = () => mark(at);
      }
      frame.append(view, caption);
      film.append(frame);
    });
    return [film];
  };

  // The episodes of the same task in other evaluations: of other policies, moments and runs, in the same trial if it has one.
  const twinsOf = (member) => (section.is_eval ? traces.sections : []).flatMap((other) => {
    if (!other.is_eval || other === section) return [];
    const found = membersOf(other).filter((m) => m.task === member.task && m.hash === member.hash);
    return found.length ? [{ section: other, member: found.find((m) => m.trial === member.trial) ?? found[0] }] : [];
  });

  // The label of the evaluation that is shown beside, kept from episode to episode.
  let beside = "";
  const alone = () => {
    const mine = $("episode").querySelector(".mine");
    if (mine) $("episode").replaceChildren(...mine.childNodes);
    $("episode").classList.remove("two");
  };
  const showBeside = async (twin) => {
    const of = open;
    const other = await load(twin.member);
    if (open !== of || beside !== twin.section.label) return; // another one was chosen meanwhile
    alone();
    const column = make("section", "beside");
    const [css, , outcome] = outcomeMark(other.success);
    const head = make("h3", "", twin.section.label);
    head.append(make("span", css, ` ${outcome}`));
    const button = make("button", "chip", "open it");
    button.onclick = () => { pick(traces.sections.indexOf(twin.section)); const found = rows.find((r) => r.member === twin.member); if (found) show(found, 0); };
    const trial = twin.member.trial ? `trial ${twin.member.trial}, ` : "";
    column.append(head, make("div", "soft", `${trial}return ${number(other.return)}, ${plural(other.turns.length, "turn")}, ${other.status.replaceAll("_", " ")}`), button);
    if (other.error) column.append(make("pre", "reply error", other.error));
    if (other.opening !== null) column.append(make("pre", "reply opening", other.opening, "the first observation"));
    other.turns.forEach((turn, index) => {
      const box = make("div", "other-turn");
      box.append(make("b", "", `turn ${index + 1}`), actionOf(turn, ways, way), ...repliesOf(turn));
      column.append(box);
    });
    const mine = make("div", "mine");
    mine.append(...$("episode").childNodes);
    $("episode").append(mine, column);
    $("episode").classList.add("two");
  };
  const besideOf = (member) => {
    const twins = twinsOf(member);
    if (!twins.length) return [];
    const select = make("select");
    select.setAttribute("aria-label", "the same task beside this one");
    select.append(make("option", "", "the same task beside"), ...twins.map((twin) => make("option", "", twin.section.label)));
    select.options[0].value = "";
    const choose = () => {
      const twin = twins.find((one) => one.section.label === beside);
      if (twin) showBeside(twin); else alone();
    };
    select.onchange = () => { beside = select.value; select.blur(); choose(); }; // without the focus, keys are the page's again
    select.value = twins.some((one) => one.section.label === beside) ? beside : "";
    return [select];
  };

  const promptOf = (turn) => {
    if (turn.prompt === null) return [];
    const prompt = make("details");
    prompt.append(make("summary", "", "the new prompt"), make("pre", "reply", turn.prompt));
    return [prompt];
  };

  // The address names the section, the episode by its seed, and the turn: a link leads to what is shown.
  const addressOf = () => {
    const same = membersOf(section).filter((m) => m.seed === open.member.seed);
    const place = same.length > 1 ? `.${same.indexOf(open.member) + 1}` : "";
    return `#${encodeURIComponent(section.label)}/${open.member.seed}${place}/${here + 1}${way === USUAL ? "" : `/${way}`}`;
  };

  const headOf = (row, member) => {
    const outcome = make("span", member.success ? "good" : member.success === null ? "soft" : "bad", ` ${outcomeOf(member)}`);
    const head = make("h3", "", member.trial ? `${member.task}, trial ${member.trial}` : `${member.task}`);
    head.append(outcome);
    const facts = `return ${number(member.return)}, ${plural(member.turns.length, "turn")}, ${member.status.replaceAll("_", " ")}, seed ${member.seed}`;
    const origin = [
      member.retries ? `${member.retries} retries` : "",
      member.parent === null ? "" : `branched from episode ${member.parent} at turn ${member.branch_turn + 1}`,
      isKnown(member.cost) ? `cost ${number(member.cost)}` : "",
      member.attempts.length ? `attempt ${member.attempt} of ${member.attempts.length + 1}, which counts` : "",
      member.replayed === null ? "" : `trained again, first in step ${member.replayed}`,
      member.demonstrated ? "the oracle's demonstration" : "",
    ];
    const parts = [head, make("div", "soft", [facts, ...origin].filter(Boolean).join(", "))];
    parts.push(...besideOf(row.member), ...timeLine(member.turns), ...gatesOf(member));
    if (member.error) parts.push(make("pre", "reply error", member.error));
    if (member.data !== "{}") {
      const data = make("details");
      data.append(make("summary", "", "task data"), make("pre", "", member.data));
      parts.push(data);
    }
    return parts;
  };

  const show = async (row, at, scroll = true, isFirst = false) => {
    const isNew = open !== row;
    if (isNew) {
      if (open?.element) open.element.classList.remove("open");
      [open, full] = [row, null];
      drawn(row).classList.add("open");
      if (!isFirst) row.element.scrollIntoView({ block: "nearest" }); // on loading, the page stays where it is
    }
    if (!full) {
      const member = await load(row.member);
      if (open !== row) return; // another one was opened meanwhile
      full = member;
      const page = $("episode");
      page.className = "card";
      page.replaceChildren(...headOf(row, member), ...filmOf(member));
      if (member.opening !== null) page.append(make("pre", "reply opening", member.opening, "the first observation"));
      const pictures = picturesOf(member);
      member.turns.forEach((turn, index) => {
        const box = make("div", "turn");
        box.append(aboutOf(turn, index, row), ...promptOf(turn), actionOf(turn, ways, way), ...repliesOf(turn, pictures));
        box.onclick = () => mark(index, false);
        page.append(box);
      });
      page.append(...otherRoles(member, ways, way, repliesOf), ...otherAttempts(member, ways, way), rawOf(member));
      $("scale").replaceChildren(legendOf(ways, way, member.turns));
      const twin = twinsOf(row.member).find((one) => one.section.label === beside);
      if (twin) await showBeside(twin);
      page.scrollTop = 0;
    }
    mark(at, scroll && at > 0);
    if (!isFirst) history.replaceState(null, "", addressOf());
  };

  const mark = (at, scroll = true) => {
    const turns = [...$("episode").querySelectorAll(".turn")];
    if (!turns.length) return;
    here = Math.max(0, Math.min(at, turns.length - 1));
    if (location.hash) history.replaceState(null, "", addressOf());
    turns.forEach((turn, index) => turn.classList.toggle("here", index === here));
    const frames = [...$("episode").querySelectorAll(".film figure")];
    frames.forEach((frame) => frame.classList.toggle("here", frame.dataset.turn === String(here)));
    const film = frames[0]?.parentElement;
    const shown = frames.find((frame) => frame.classList.contains("here"));
    if (shown) film.scrollTo({ left: shown.offsetLeft - film.offsetLeft - 60 });
    if (scroll) $("episode").scrollTo({ top: turns[here].offsetTop - $("episode").offsetTop - 60 });
  };

  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && event.target === $("search")) { $("search").blur(); return; }
    if (event.ctrlKey || event.metaKey || event.altKey || ["SELECT", "INPUT"].includes(event.target.tagName) || $("help").open) return;
    const go = (by) => { const next = rows[rows.indexOf(open) + by]; if (next) show(next, 0); };
    const actions = { j: () => mark(here + 1), k: () => mark(here - 1), n: () => go(1), p: () => go(-1),
      c: () => { const names = Object.keys(ways); colourBy(names[(names.indexOf(way) + 1) % names.length]); },
      "/": () => { $("search").focus(); $("search").select(); }, "?": () => $("help").showModal() };
    if (actions[event.key]) { actions[event.key](); event.preventDefault(); }
  });

  const pick = (index, isFirst = false) => {
    section = traces.sections[index];
    $("section").value = index;
    const members = membersOf(section);
    toggles("status", [...new Set(members.map((m) => m.status))].sort());
    toggles("outcome", [...new Set(members.map(outcomeOf))].sort());
    open = null;
    showGroups(isFirst);
  };
  const options = traces.sections.map((s, at) => {
    const option = make("option", "", `${s.label} (${s.note})`);
    option.value = at;
    return option;
  });
  $("section").append(...options);
  $("section").onchange = (event) => pick(+event.target.value);
  $("sort").onchange = () => { open = null; showGroups(); };

  const numFound = (s) => membersOf(s).filter((m) => textOf(m).includes(wanted)).length;
  const search = async (text) => {
    const asked = text.trim().toLowerCase();
    if (asked) await readAll();
    if (asked !== $("search").value.trim().toLowerCase()) return; // more was typed meanwhile
    wanted = asked;
    options.forEach((option, at) => {
      const s = traces.sections[at];
      option.textContent = `${s.label} (${wanted ? plural(numFound(s), "match").replace("matchs", "matches") : s.note})`;
    });
    const first = traces.sections.findIndex((s) => wanted && numFound(s));
    if (wanted && !numFound(section) && first >= 0) pick(first);
    else { open = null; showGroups(); }
    $("search").dataset.shown = wanted;
  };
  let typing = null;
  $("search").oninput = (event) => {
    clearTimeout(typing);
    typing = setTimeout(() => search(event.target.value), 150);
  };

  const follow = () => {
    const [label, episode, turn, colour] = location.hash.slice(1).split("/");
    const index = traces.sections.findIndex((s) => encodeURIComponent(s.label) === label);
    if (index < 0) return false;
    const named = ways[colour] ? colour : USUAL;
    if (named !== way) colourBy(named);
    const [seed, place] = (episode ?? "").split(".");
    const member = membersOf(traces.sections[index]).filter((m) => m.seed === seed)[(+place || 1) - 1];
    if (traces.sections[index] !== section || !rows.length) pick(index);
    const row = rows.find((r) => r.member === member);
    if (row) show(row, (+turn || 1) - 1);
    return true;
  };
  window.addEventListener("hashchange", follow);
  $("help-button").onclick = () => $("help").showModal();
  const last = traces.sections.map((s) => !s.is_eval && !s.of).lastIndexOf(true); // of this run, not of the one beside it
  section = null;
  if (!follow()) pick(Math.max(0, last), true);
})();
