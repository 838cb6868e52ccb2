// What actions need of a page: time for its scripts, a point of an element to press, a value set as a person sets it.
(() => {
  const CHANNEL = "__CHANNEL__";
  const {find, ids, walk, see, isTextBox, documentOf, stranger, nameStranger, named} = globalThis.agentgymTree;
  const {clean, roleOf, nameOf} = globalThis.agentgymNames;

  const turn = () => new Promise((done) => {
    const {port1, port2} = new MessageChannel();
    port1.onmessage = () => { port1.close(); done(); };
    port2.postMessage(0);
  });
  const documents = (root = document) => {
    const found = [root];
    for (const frame of root.querySelectorAll("iframe, frame, object")) {
      const inner = documentOf(frame);  // one of another origin is reached by its own context
      if (inner) found.push(...documents(inner));
    }
    return found;
  };
  const runOne = (root, detail) => !root.dispatchEvent(new CustomEvent(CHANNEL, {detail, cancelable: true}));
  const MOST_STEPS = 100;  // no timer runs past the end of a grant, so that frames keep step
  const grant = async (ms) => {
    let isBusy = false;
    for (const root of documents()) {
      let detail = ms;
      while (runOne(root, detail)) { detail = -1; isBusy = true; await turn(); }
    }
    return isBusy;
  };
  const advance = async (ms) => {
    if (!await grant(0)) await turn();
    // where no timer is due in any frame, one step is enough
    const isDue = ms > 0 && documents().some((root) => runOne(root, `due:${ms}`));
    const step = isDue ? Math.max(ms / MOST_STEPS, 1) : ms;
    for (let spent = step; 0 < spent && spent <= ms; spent += step) await grant(step);
    for (const animation of document.getAnimations()) {
      try { animation.finish(); } catch { animation.pause(); /* endless */ }
    }
  };
  const hasStored = async () => document.cookie !== "" || localStorage.length + sessionStorage.length > 0
    || (await indexedDB.databases()).length + (await caches.keys()).length > 0;
  const frames = (count) => new Promise((done) => {
    const step = (left) => (left ? requestAnimationFrame(() => step(left - 1)) : done());
    setTimeout(done, 200);  // a tab in the background draws none
    step(count);
  });

  // The style of what a resting mouse is over follows what moves there with a frame, whenever that comes: it is awaited.
  let mouse = null;
  globalThis.addEventListener("mousemove", ({clientX, clientY, screenX, screenY, buttons}) => {
    if (screenX || screenY || buttons) mouse = {clientX, clientY};  // else it is the window system's, see determinism.js
  }, true);
  const isHovered = () => {
    const over = mouse && document.elementFromPoint(mouse.clientX, mouse.clientY);
    return !over || [...document.querySelectorAll(":hover")].pop() === over;
  };
  const hovers = async () => { for (let left = 10; left && !isHovered(); left--) await frames(1); };

  // --- pointing
  const offsetOf = (element) => {
    let x = 0, y = 0, win = element.ownerDocument.defaultView;
    while (win && win.frameElement) {
      const rect = win.frameElement.getBoundingClientRect();
      x += rect.left + win.frameElement.clientLeft;
      y += rect.top + win.frameElement.clientTop;
      win = win.frameElement.ownerDocument.defaultView;
    }
    return {x, y};
  };
  const hit = (root, x, y) => {
    let found = root.elementFromPoint(x, y);
    while (found?.shadowRoot) {
      const inner = found.shadowRoot.elementFromPoint(x, y);
      if (!inner || inner === found) break;
      found = inner;
    }
    return found;
  };
  const isWithin = (inner, outer) => {
    for (let at = inner; at; at = at.parentNode || at.host) if (at === outer) return true;
    return [...(outer.labels || [])].some((label) => label.contains(inner));
  };
  const GRID = [0.5, 0.25, 0.75, 0.1, 0.9, 0.03, 0.97];
  // Where a person presses: on the element, else on its label, else on what is drawn inside it.
  const placesOf = (element) => {
    const range = element.ownerDocument.createRange();
    range.selectNodeContents(element);
    const labels = [...(element.labels || [])].flatMap((label) => [...label.getClientRects()]);
    return [...element.getClientRects(), ...labels, ...range.getClientRects()];
  };
  const isDrawn = (element) => [...element.getClientRects()].some((rect) => rect.width >= 1 && rect.height >= 1);
  const point = (element, scrolls) => {
    const shown = [element, ...(element.labels || []), ...element.querySelectorAll("*")].find(isDrawn) || element;
    if (scrolls) shown.scrollIntoView({block: "center", inline: "nearest", behavior: "instant"});  // in all documents around
    const shift = offsetOf(element);
    let cover = null;
    for (const rect of placesOf(element)) {
      if (rect.width < 1 || rect.height < 1) continue;
      for (const down of GRID) {
        for (const along of GRID) {
          const x = rect.left + rect.width * along, y = rect.top + rect.height * down;
          const top = hit(element.ownerDocument, x, y);
          if (top && isWithin(top, element)) return {x: x + shift.x, y: y + shift.y};
          cover = cover || top;
        }
      }
    }
    if (!cover) return {problem: "not_visible"};
    return {problem: "covered", cover: nameOf(cover, roleOf(cover)) || clean(cover.textContent || "").slice(0, 80)};
  };

  // Scrolls whatever scrolls around a frame of another origin until a point of its document is on the screen.
  const bring = (frame, x, y) => {
    const at = () => { const rect = frame.getBoundingClientRect(); return {x: rect.left + frame.clientLeft + x, y: rect.top + frame.clientTop + y}; };
    const around = (element) => element.assignedSlot || element.parentElement || element.getRootNode().host;
    for (let outer = around(frame); outer; outer = around(outer)) {
      const root = outer.ownerDocument.scrollingElement || outer.ownerDocument.documentElement;
      const win = outer.ownerDocument.defaultView, rect = outer.getBoundingClientRect();
      const view = outer === root ? {left: 0, top: 0, right: win.innerWidth, bottom: win.innerHeight} : rect;
      if (outer !== root && getComputedStyle(outer).overflow === "visible") continue;
      const now = at();
      if (now.x < view.left || now.x >= view.right || now.y < view.top || now.y >= view.bottom) {
        const left = now.x - (view.left + view.right) / 2, top = now.y - (view.top + view.bottom) / 2;
        outer.scrollBy({left, top, behavior: "instant"});
      }
    }
    const next = frame.ownerDocument.defaultView.frameElement;
    if (next) bring(next, at().x, at().y);
  };
  // The point of this window at which a point of the document in a frame is.
  const through = (key, x, y, scrolls) => {
    const frame = named(key);
    if (!frame) return {problem: "not_visible"};
    if (scrolls) bring(frame, x, y);
    const rect = frame.getBoundingClientRect(), shift = offsetOf(frame);
    const here = {x: rect.left + frame.clientLeft + x, y: rect.top + frame.clientTop + y};
    const top = hit(frame.ownerDocument, here.x, here.y);
    if (top === frame) return {x: here.x + shift.x, y: here.y + shift.y};
    if (!top) return {problem: "not_visible"};
    return {problem: "covered", cover: nameOf(top, roleOf(top)) || clean(top.textContent || "").slice(0, 80)};
  };

  const sees = (id, everything) => {
    const element = find(id, everything);
    return element ? [element, null] : [null, {problem: "unknown", ids: ids()}];
  };
  const tell = (element, ...names) => {
    for (const name of names) {
      element.dispatchEvent(name === "input" ? new InputEvent(name, {bubbles: true, composed: true})
        : new Event(name, {bubbles: true}));
    }
  };
  const isTextField = (element) => element.localName === "input" || element.localName === "textarea";
  // A value in the form that a field keeps it, tried in a field of its own; null if it cannot hold it.
  const canonical = (element, text) => {
    if (element.localName !== "input" || !PICKED.test(element.type)) return text;
    if (text === "" && element.type !== "color" && element.type !== "range") return text;
    const trial = element.ownerDocument.createElement("input"), given = text.trim();
    trial.type = element.type;
    for (const name of ["min", "max", "step"]) if (element.hasAttribute(name)) trial.setAttribute(name, element[name]);
    if (element.type === "color") {
      const short = /^#([0-9a-f])([0-9a-f])([0-9a-f])$/i.exec(given);
      const whole = short ? `#${short.slice(1).map((one) => one + one).join("")}` : given;
      return /^#[0-9a-f]{6}$/i.test(whole) ? whole.toLowerCase() : null;
    }
    trial.value = given;
    if (element.type === "number" || element.type === "range") {
      const isNumber = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(given);
      if (!isNumber) return null;
      if (element.type === "number") return given.replace(/^\+/, "");
      return Number(trial.value) === Number(given) ? trial.value : null;
    }
    return trial.value || null;
  };
  const PICKED = /^(date|time|month|week|datetime-local|range|color|number)$/;
  const rangeOf = (element) => {
    if (element.type !== "range") return "";
    const step = element.step && element.step !== "any" ? ` in steps of ${element.step}` : "";
    return ` from ${element.min || 0} to ${element.max || 100}${step}`;
  };
  const isDisabled = (element) => element.matches(":disabled") || element.getAttribute("aria-disabled") === "true";

  const hands = {
    advance, frames,
    is_reached: () => { try { return Boolean(frameElement); } catch { return false; } },  // by the frame around it
    look: async (ms, everything) => { await advance(ms); await hovers(); return see(everything); },
    walk, stranger, through, nameStranger,
    keep: () => { runOne(document, "keep"); },
    // Between two episodes on one document: whether it has stored nothing; what the last one left selected is let go.
    tidy: async () => {
      mouse = null;
      const root = document.documentElement;
      root.tabIndex = -1;  // else Tab goes on from where the focus was last
      root.focus();
      root.blur();
      root.removeAttribute("tabindex");
      getSelection().removeAllRanges();
      scrollTo(0, 0);
      return runOne(document, "rewind:0") && !(await hasStored());  // document.open() takes all listeners away
    },
    rewind: (seed) => { runOne(document, `rewind:${seed}`); },
    point: (id, everything) => {
      const [element, problem] = sees(id, everything);
      if (problem) return problem;
      return isDisabled(element) ? {problem: "disabled"} : {...point(element, true), isFile: element.type === "file"};
    },
    pointHere: (id, everything) => {
      const [element, problem] = sees(id, everything);
      return problem || point(element, false);
    },
    press: (id, everything) => {  // through what covers it
      const [element, problem] = sees(id, everything);
      if (element?.click) element.click();
      else element?.dispatchEvent(new MouseEvent("click", {bubbles: true, cancelable: true, composed: true}));  // SVG
      return problem || {};
    },
    // A text box is made ready for typing: focused, with all that is in it selected, or with the cursor at its end.
    // A value that the box cannot hold is refused before anything changes.
    focusText: (id, everything, replaces, text) => {
      const [element, problem] = sees(id, everything);
      if (problem) return problem;
      if (isDisabled(element)) return {problem: "disabled"};
      if (!isTextBox(element) && element.type !== "range" && element.type !== "color") return {problem: "no_text"};
      if (element.readOnly) return {problem: "readonly"};
      const value = replaces ? canonical(element, text) : text;
      if (value === null) return {problem: "no_value", type: element.type, range: rangeOf(element)};
      element.scrollIntoView({block: "center", inline: "nearest", behavior: "instant"});
      element.focus();
      if (!replaces) {
        const selection = element.ownerDocument.getSelection();
        if (isTextField(element)) selection.modify("move", "forward", "documentboundary");
        else { selection.selectAllChildren(element); selection.collapseToEnd(); }
        return {};
      }
      const isTyped = !/^(date|time|month|week|datetime-local|range|color)$/.test(element.type || "");
      if (element.select) element.select();
      else element.ownerDocument.getSelection().selectAllChildren(element);
      return {isTyped, isEmpty: (element.value ?? element.textContent) === "", value};
    },
    setValue: (id, everything, value) => {  // dates, times, ranges, colours: what has a picker
      const [element, problem] = sees(id, everything);
      if (problem) return problem;
      Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(element, value);
      tell(element, "input", "change");
      return {};
    },
    valueOf: (id, everything) => {
      const [element, problem] = sees(id, everything);
      if (problem) return {};  // its page has been drawn anew
      return element.type === "password" ? {} : {value: element.value ?? element.innerText};
    },
    // Files for a file field, as its chooser would give them.
    giveFiles: (id, everything, files) => {
      let [element, problem] = sees(id, everything);
      if (problem) return problem;
      if (element.type !== "file") element = element.control || element.querySelector("input[type=file]") || element;
      if (element.type !== "file") return {problem: "no_files"};
      if (isDisabled(element)) return {problem: "disabled"};
      if (files.length > 1 && !element.multiple) return {problem: "one_file"};
      const given = new DataTransfer();
      for (const {name, type, base64} of files) {
        given.items.add(new File([Uint8Array.from(atob(base64), (one) => one.charCodeAt(0))], name, {type}));
      }
      element.files = given.files;
      tell(element, "input", "change");
      return {};
    },
    choose: (id, everything, wanted) => {
      const [element, problem] = sees(id, everything);
      if (problem) return problem;
      if (element.localName !== "select") return {problem: "no_select"};
      if (isDisabled(element)) return {problem: "disabled"};
      const options = [...element.options].filter((option) => !option.disabled);
      const fold = (text) => clean(text).toLowerCase();
      const chosen = wanted.map((label) => options.find((one) => clean(one.label) === label)
        || options.find((one) => fold(one.label) === fold(label)) || options.find((one) => one.value === label));
      if (chosen.includes(undefined) || (!element.multiple && chosen.length !== 1)) {
        return {problem: "no_option", options: options.map((one) => clean(one.label)), isMultiple: element.multiple};
      }
      element.focus();
      for (const option of element.options) option.selected = chosen.includes(option);
      tell(element, "input", "change");
      return {};
    },
    checked: (id, everything) => {
      const [element, problem] = sees(id, everything);
      if (problem) return problem;
      const role = roleOf(element);
      if (!/^(checkbox|radio|switch|menuitemcheckbox|menuitemradio)$/.test(role)
        && !element.hasAttribute("aria-pressed") && !element.hasAttribute("aria-checked")) return {problem: "no_check"};
      const aria = element.getAttribute("aria-checked") ?? element.getAttribute("aria-pressed");
      return {checked: element.checked ?? aria === "true", role};
    },
    scroll: (id, everything, dx, dy) => {
      const [element, problem] = id ? sees(id, everything) : [document.scrollingElement || document.body, null];
      if (problem) return problem;
      let at = element;
      const moves = (one) => {
        const before = [one.scrollLeft, one.scrollTop];
        one.scrollBy({left: dx, top: dy, behavior: "instant"});
        return before[0] !== one.scrollLeft || before[1] !== one.scrollTop;
      };
      while (at && !moves(at)) at = at.parentElement;
      return {moved: Boolean(at)};
    },
    // Address and markup of this document and of those of the same origin inside it.
    source: () => documents().map((root) => {
      const copy = root.documentElement.cloneNode(true);
      for (const gone of copy.querySelectorAll("script, style, link, meta, noscript, template")) gone.remove();
      return [root.URL, copy.outerHTML.replace(/\s+/g, " ")];
    }),
  };
  globalThis.agentgym = async (name, ...given) => hands[name](...given);
})();
