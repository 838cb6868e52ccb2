// Runs first in every document, in the page's own world: the clock, timers and random numbers that the page sees.
// The clock stands still but for what the environment grants after each action, and timers run in the order in which
// they are due, at once. So what a page shows is a function of the actions, not of how long a policy or a busy machine
// takes. CHANNEL, SEED and EPOCH_MS are filled in by determinism.py.
(() => {
  const CHANNEL = "__CHANNEL__", SEED = __SEED__, EPOCH_MS = __EPOCH_MS__;
  const READ_MS = 0.005;  // what looking at the clock costs: `while (Date.now() < end);` must come to an end
  const FRAME_MS = 1000 / 60, MOST_RUNS = 1000;
  const NESTED = 5, NESTED_MS = 4;  // HTML: a timer set by a timer set by a timer ... waits at least so long

  // --- the clock
  let now = 0, lastId = 0, level = 0;
  const due = new Map();  // id -> {at, order, run, every}
  const read = () => (now += READ_MS);
  const RealDate = Date, report = globalThis.reportError.bind(globalThis);
  const SimDate = function Date(...given) {
    if (!new.target) return new RealDate(EPOCH_MS + read()).toString();
    return Reflect.construct(RealDate, given.length ? given : [EPOCH_MS + read()], new.target);
  };
  SimDate.prototype = RealDate.prototype;
  Object.setPrototypeOf(SimDate, RealDate);
  SimDate.now = () => Math.floor(EPOCH_MS + read());
  RealDate.prototype.constructor = SimDate;
  Object.defineProperty(globalThis, "Date", {value: SimDate, writable: true, configurable: true});
  Performance.prototype.now = function now() { return read(); };
  Object.defineProperty(Performance.prototype, "timeOrigin", {get: () => EPOCH_MS, configurable: true});
  Object.defineProperty(Event.prototype, "timeStamp", {get: () => now, configurable: true});

  // --- timers
  const later = (work, wait, every, given) => {
    const id = ++lastId;
    if (level >= NESTED) wait = Math.max(wait, NESTED_MS);
    const run = typeof work === "function" ? () => work.apply(globalThis, given) : () => (0, eval)(String(work));
    due.set(id, {at: now + wait, order: id, run, every, level: level + 1});
    return id;
  };
  const delay = (ms) => Math.max(0, Number(ms) || 0);
  const drop = (id) => { due.delete(Number(id)); };
  globalThis.setTimeout = function setTimeout(work, ms, ...given) { return later(work, delay(ms), 0, given); };
  globalThis.setInterval = function setInterval(work, ms, ...given) {
    return later(work, Math.max(1, delay(ms)), Math.max(1, delay(ms)), given);
  };
  globalThis.clearTimeout = function clearTimeout(id) { drop(id); };
  globalThis.clearInterval = function clearInterval(id) { drop(id); };
  globalThis.requestAnimationFrame = function requestAnimationFrame(work) {
    return later(() => work(now), FRAME_MS - (now % FRAME_MS), 0, []);
  };
  globalThis.cancelAnimationFrame = function cancelAnimationFrame(id) { drop(id); };
  globalThis.requestIdleCallback = function requestIdleCallback(work) {
    return later(() => work({didTimeout: false, timeRemaining: () => 10}), 1, 0, []);
  };
  globalThis.cancelIdleCallback = function cancelIdleCallback(id) { drop(id); };

  const next = () => {
    let first = null;
    for (const entry of due) {
      if (!first || entry[1].at < first[1].at || (entry[1].at === first[1].at && entry[1].order < first[1].order)) {
        first = entry;
      }
    }
    return first;
  };
  // The environment asks from its own world: detail is the time to run to, in ms since the document began. One timer
  // is run per event, so that promises settle in between; the event is cancelled while there is more to run.
  // A text asks for something else: "keep" remembers clock, timers and random numbers, "rewind:SEED" brings them back,
  // and "due:MS" is cancelled if a timer is due within so many ms.
  let horizon = 0, num_runs = 0, kept = null;
  const keep = () => { kept = {now, lastId, drawn: state - SEED, due: [...due].map(([id, timer]) => [id, {...timer}])}; };
  const rewind = (seed) => {
    ({now, lastId} = kept);
    state = (seed + kept.drawn) >>> 0;
    level = num_windows = 0;
    mouse = over = null;
    due.clear();
    for (const [id, timer] of kept.due) due.set(id, {...timer});
  };
  document.addEventListener(CHANNEL, (event) => {
    event.stopImmediatePropagation();
    if (event.detail === "heard") { tellHeard(); return; }
    if (typeof event.detail === "string") {
      if (event.detail.startsWith("due:")) {
        const first = next();
        if (first && first[1].at <= now + Number(event.detail.slice("due:".length))) event.preventDefault();
        return;
      }
      event.preventDefault();
      if (event.detail === "keep") keep(); else rewind(Number(event.detail.slice("rewind:".length)));
      return;
    }
    if (event.detail >= 0) { horizon = now + event.detail; num_runs = 0; }
    const first = next();
    if (!first || first[1].at > horizon || ++num_runs > MOST_RUNS) {
      now = Math.max(now, horizon);
      rehover();
      return;
    }
    const [id, timer] = first;
    now = Math.max(now, timer.at);
    if (timer.every) { timer.at += timer.every; timer.order = ++lastId; } else due.delete(id);
    level = timer.level;
    try { timer.run(); } catch (error) { report(error); }
    level = 0;
    event.preventDefault();
  }, true);

  // --- what moves under a mouse that rests: Chromium tells it with one of its next frames, whenever that comes, so that
  // is kept from the page, which is told whenever its clock has moved on
  let mouse = null, over = null;
  // The window system's own mouse rests at the corner. Chromium tells a new page so some time after it has loaded.
  const isNobodys = (event) => event.isTrusted && !event.buttons && !event.screenX && !event.screenY;
  for (const kind of ["move", "over", "out", "enter", "leave"]) {
    for (const device of ["pointer", "mouse"]) {
      globalThis.addEventListener(device + kind, (event) => {
        if (isNobodys(event)) event.stopImmediatePropagation();
        if (!event.isTrusted || !mouse || kind === "move") return;
        if (event.clientX === mouse.clientX && event.clientY === mouse.clientY) event.stopImmediatePropagation();
        else if (kind === "out" && !event.relatedTarget) mouse = null;  // it has left the document
      }, true);
    }
  }
  globalThis.addEventListener("mousemove", (event) => {
    if (!event.isTrusted || isNobodys(event)) return;
    mouse = {clientX: event.clientX, clientY: event.clientY};
    over = event.composedPath()[0];
  }, true);
  const elementAt = document.elementFromPoint.bind(document);
  const around = (element) => {
    const found = [];
    for (let at = element; at; at = at.parentElement) found.push(at);
    return found;
  };
  const rehover = () => {
    const before = over, after = mouse && elementAt(mouse.clientX, mouse.clientY);
    if (!mouse || before === after || before?.getRootNode() instanceof ShadowRoot) return;
    over = after;
    const left = around(before?.isConnected ? before : null), entered = around(after);
    for (const [device, Kind] of [["pointer", PointerEvent], ["mouse", MouseEvent]]) {
      const tell = (element, kind, relatedTarget, bubbles) => element?.dispatchEvent(new Kind(device + kind, {
        ...mouse, relatedTarget, bubbles, cancelable: bubbles, composed: bubbles, view: globalThis,
      }));
      tell(left[0], "out", after, true);
      for (const element of left) if (!entered.includes(element)) tell(element, "leave", after, false);
      tell(entered[0], "over", before, true);
      for (const element of entered.reverse()) if (!left.includes(element)) tell(element, "enter", before, false);
      entered.reverse();
    }
  };

  // --- windows: one for each click or key of the agent; not every Chromium has a blocker of its own
  let num_windows = 0;
  for (const kind of ["pointerdown", "keydown"]) {
    globalThis.addEventListener(kind, (event) => { if (event.isTrusted) num_windows = 1; }, true);
  }
  const realOpen = globalThis.open;
  globalThis.open = function open(...given) {
    if (num_windows < 1) return null;
    num_windows -= 1;
    return realOpen.apply(globalThis, given);
  };

  // --- elements on which scripts listen for clicks, so that the agent can be told of them
  const PRESSES = new Set(["click", "dblclick", "mousedown", "mouseup", "pointerdown", "pointerup", "touchstart"]);
  const MOST_KINDS = 20;  // a framework's root listens to every kind of event, and is nothing to click
  const listeners = new WeakMap(), noted = new Set();
  const delegates = new Map();  // document, window or shadow root -> its functions that hear presses anywhere
  const note = (element, kind, key, isAdded) => {
    if (element === document || element === globalThis || element instanceof ShadowRoot) {
      if (!PRESSES.has(kind)) return;
      if (!delegates.has(element)) delegates.set(element, new Set());
      if (isAdded) delegates.get(element).add(key); else delegates.get(element).delete(key);
      return;
    }
    if (!(element instanceof Element)) return;
    if (!listeners.has(element)) listeners.set(element, new Map());
    const kinds = listeners.get(element);
    if (!kinds.has(kind)) kinds.set(kind, new Set());
    if (isAdded) kinds.get(kind).add(key); else kinds.get(kind).delete(key);
    if (isAdded && PRESSES.has(kind) && !kinds.ref) { kinds.ref = new WeakRef(element); noted.add(kinds.ref); }
  };
  const {addEventListener: realAdd, removeEventListener: realRemove} = EventTarget.prototype;
  EventTarget.prototype.addEventListener = function addEventListener(kind, work, ...given) {
    if (work) note(this, String(kind), work, true);
    return realAdd.call(this, kind, work, ...given);
  };
  EventTarget.prototype.removeEventListener = function removeEventListener(kind, work, ...given) {
    note(this, String(kind), work, false);
    return realRemove.call(this, kind, work, ...given);
  };
  for (const holder of [HTMLElement.prototype, SVGElement.prototype, Document.prototype, globalThis]) {
    for (const kind of PRESSES) {
      const name = `on${kind}`, real = Object.getOwnPropertyDescriptor(holder, name);
      if (!real?.set || !real.configurable) continue;
      Object.defineProperty(holder, name, {...real, set(work) {
        note(this ?? globalThis, kind, name, typeof work === "function");
        real.set.call(this ?? globalThis, work);
      }});
    }
  }
  // A listener of a container or of the document may act for elements inside it, which have none of their own. Frameworks
  // keep what these do in a property of the element, jQuery keeps selectors, and other listeners name what they look for.
  const ATTRIBUTES = "[jsaction],[phx-click],[on\\:click],[onClick\\$],[data-bs-toggle],[data-bs-dismiss]";
  const NAMED = /\.(?:closest|matches|webkitMatchesSelector)\(\s*(["'`])(.+?)\1|classList\.contains\(\s*(["'`])([\w-]+)\3|\bdataset\.(\w+)/g;
  const selectorsIn = (work) => {
    const source = Function.prototype.toString.call(typeof work === "function" ? work : work.handleEvent || (() => {}));
    return [...source.slice(0, 20_000).matchAll(NAMED)].map(([, , selector, , name, key]) => selector || (name ? `.${name}`
      : `[data-${key.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}]`));
  };
  const isMarked = (element) => Object.keys(element).some((key) => {
    if (key.startsWith("$$") || key.startsWith("__")) {  // Solid, Svelte
      if (PRESSES.has(key.slice(2)) && element[key]) return true;
    }
    if (!key.startsWith("__reactProps$") || !element[key]) return false;
    return Object.keys(element[key]).some((name) => name.startsWith("on") && PRESSES.has(name.slice(2).toLowerCase()));
  });
  const actedFor = () => {
    const found = new Set();
    const add = (root, selector) => {
      try { for (const one of (root.querySelectorAll ? root : document).querySelectorAll(selector)) found.add(one); }
      catch { /* no selector after all */ }
    };
    const roots = new Map([...delegates].filter(([, works]) => works.size));
    for (const ref of noted) {
      const element = ref.deref(), kinds = element?.isConnected && listeners.get(element);
      if (kinds) roots.set(element, new Set([...kinds].flatMap(([kind, keys]) => (PRESSES.has(kind) ? [...keys] : []))));
    }
    for (const [root, works] of roots) {
      for (const work of works) {
        const heard = typeof work === "string" ? root[work] : work;  // the name of an attribute, such as onclick
        for (const selector of heard ? selectorsIn(heard) : []) add(root, selector);
      }
      for (const key of Object.keys(root)) {
        const events = /^jQuery\d/.test(key) && root[key]?.events;
        for (const kind of events ? PRESSES : []) for (const {selector} of events[kind] || []) if (selector) add(root, selector);
      }
    }
    if (roots.size) {
      add(document, ATTRIBUTES);
      for (const element of document.querySelectorAll("body *")) if (isMarked(element)) found.add(element);
    }
    return found;
  };
  const tellHeard = () => {
    for (const element of actedFor()) element.dispatchEvent(new CustomEvent(`${CHANNEL}-heard`, {composed: true}));
    for (const ref of noted) {
      const element = ref.deref(), kinds = element && listeners.get(element);
      if (!kinds) { noted.delete(ref); continue; }
      const used = [...kinds].filter(([, keys]) => keys.size).map(([kind]) => kind);
      if (!element.isConnected || used.length > MOST_KINDS || !used.some((kind) => PRESSES.has(kind))) continue;
      element.dispatchEvent(new CustomEvent(`${CHANNEL}-heard`, {composed: true}));
    }
  };

  // --- random numbers: mulberry32, public domain, by Tommy Ettinger
  let state = SEED >>> 0;
  const random32 = () => {
    state = (state + 0x6D2B79F5) >>> 0;
    let x = state;
    x = Math.imul(x ^ (x >>> 15), x | 1);
    x ^= x + Math.imul(x ^ (x >>> 7), x | 61);
    return (x ^ (x >>> 14)) >>> 0;
  };
  Math.random = function random() { return random32() / 4294967296; };
  Crypto.prototype.getRandomValues = function getRandomValues(array) {
    const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
    for (let at = 0; at < bytes.length; at++) bytes[at] = random32() & 255;
    return array;
  };
  Crypto.prototype.randomUUID = function randomUUID() {
    const bytes = this.getRandomValues(new Uint8Array(16));
    bytes[6] = (bytes[6] & 15) | 64;
    bytes[8] = (bytes[8] & 63) | 128;
    const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
    return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
  };
})();
