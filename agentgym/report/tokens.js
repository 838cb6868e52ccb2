"use strict";
// The tokens of a turn, coloured by what is known of them.
const RECORDED_WHERE = {
  advantage: "Only training has advantages.",
  logprob: "No engine gave token ids here.",
  entropy: "It is recorded for tokens that were trained, by the pass that trained them.",
  gap: "The trainer's log-probabilities are recorded for tokens that were trained.",
  mask: "Only training has a loss mask.",
};
const tint = (name, strength) => `rgba(var(--${name}), ${(0.55 * Math.max(0, Math.min(1, strength))).toFixed(2)})`;
const FULL_ENTROPY = 2.5; // nats at which the colour is full
const [SMALL_GAP, LARGE_GAP] = [1e-5, 1];

// Each way to colour: its name, the value of a token, the colour of a value, and how a value is told.
const colourings = (scale) => ({
  advantage: {
    label: "advantage",
    value: (turn, at) => (turn.advantages ? turn.advantages[at] : turn.advantage),
    colour: (value) => advantageColour(value, scale),
    told: (value) => `advantage ${signed(value)}`,
    ends: [`≤ −${number(scale)}`, `≥ +${number(scale)}`], css: "",
  },
  logprob: {
    label: "log-probability",
    value: (turn, at) => turn.logprobs?.[at],
    colour: (value) => tint("chance", 1 - Math.exp(value)),
    told: (value) => `p = ${number(Math.exp(value))}, log p = ${number(value)}`,
    ends: ["p = 1", "p near 0"], css: "chance",
  },
  entropy: {
    label: "entropy",
    value: (turn, at) => turn.entropies?.[at],
    colour: (value) => tint("entropy", value / FULL_ENTROPY),
    told: (value) => `entropy ${number(value)} nats`,
    ends: ["0 nats", `≥ ${FULL_ENTROPY} nats`], css: "entropy",
  },
  gap: {
    label: "trainer and engine differ",
    value: (turn, at) => (turn.trainer?.[at] === null || !turn.trainer ? null : Math.abs(turn.trainer[at] - turn.logprobs[at])),
    colour: (value) => tint("gap", Math.log(Math.max(value, SMALL_GAP) / SMALL_GAP) / Math.log(LARGE_GAP / SMALL_GAP)),
    told: (value) => `trainer and engine differ by ${number(value)} (log-probability)`,
    ends: ["≤ 0.00001", "≥ 1"], css: "gap",
  },
  mask: {
    label: "loss mask",
    value: (turn, at) => (Array.isArray(turn.trained) ? turn.trained[at] : turn.trained),
    colour: (value) => (value ? "rgba(var(--pos), .3)" : "transparent"),
    told: (value) => (value ? "trained" : "not trained"),
    ends: null, css: "mask",
  },
  none: { label: "nothing", value: () => null, colour: () => "transparent", told: () => "", ends: [], css: "none" },
});

const isKnown = (value) => value !== null && value !== undefined;

// A turn without text of its tokens is coloured as a whole, by the mean.
const meanOf = (way, turn) => {
  const count = turn.logprobs?.length ?? 1;
  const values = [...Array(count).keys()].map((at) => way.value(turn, at)).filter(isKnown);
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
};

const actionOf = (turn, ways, name) => {
  const pre = make("pre", `action by-${name}`);
  const way = ways[name];
  if (!turn.tokens) {
    if (turn.thinking) pre.append(make("span", "thinking", `${turn.thinking}\n`, "thinking"));
    const value = meanOf(way, turn);
    const span = make("span", "", turn.action || "(empty)", isKnown(value) && name !== "none" ? way.told(value) : null);
    if (isKnown(value)) span.style.backgroundColor = way.colour(value);
    pre.append(span);
    return pre;
  }
  const told = Object.entries(ways).filter(([other]) => other !== "none");
  for (const [at, text] of turn.tokens.entries()) {
    const isThinking = at < turn.num_thinking;
    const facts = told.flatMap(([, other]) => { const value = other.value(turn, at); return isKnown(value) ? [other.told(value)] : []; });
    const value = way.value(turn, at);
    const span = make("span", `${isThinking ? "thinking" : ""} ${name === "mask" && value === 0 ? "masked" : ""}`, text,
      [...(isThinking ? ["thinking"] : []), ...facts].join(", "));
    if (isKnown(value)) span.style.backgroundColor = way.colour(value);
    pre.append(span);
  }
  if (turn.num_tokens > turn.tokens.length) pre.append(make("span", "soft", `\n(${turn.num_tokens - turn.tokens.length} tokens more)`));
  return pre;
};

// What the colours mean, or that there are none in this episode.
const legendOf = (ways, name, turns) => {
  const way = ways[name];
  const legend = make("span", "scale");
  if (name === "none") return legend;
  if (turns.length && !turns.some((turn) => isKnown(meanOf(way, turn)))) {
    legend.append(make("b", "missing", `not recorded in this episode. ${RECORDED_WHERE[name]}`));
  } else if (name === "mask") {
    legend.append(make("i", "swatch"), "trained", make("i", "swatch masked"), "not trained");
  } else {
    legend.append(make("b", "", way.ends[0]), make("i", way.css), make("b", "", way.ends[1]));
  }
  return legend;
};
