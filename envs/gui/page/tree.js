// What the agent sees of a page, in one walk over DOM, shadow roots and frames of the same origin: roles, names,
// states, boxes and ids. A frame of another origin is a line that frames.py replaces by a walk in that frame's own
// world. Runs in a world of its own; nothing is written into the page.
(() => {
  const CHANNEL = "__CHANNEL__";
  const {clean, roleOf, nameOf, contentOf, childrenOf, isInline, FROM_CONTENT} = globalThis.agentgymNames;
  const WIDGETS = new Set([
    "button", "checkbox", "combobox", "link", "listbox", "menuitem", "menuitemcheckbox", "menuitemradio", "option",
    "radio", "searchbox", "slider", "spinbutton", "switch", "tab", "textbox", "treeitem", "scrollbar",
  ]);
  const TEXT_ROLES = new Set(["", "paragraph", "rowgroup", "document", "presentation"]);
  const ATOMS = new Set([  // their children are presentational, says WAI-ARIA
    "button", "checkbox", "menuitemcheckbox", "menuitemradio", "option", "radio", "switch", "tab",
  ]);
  const INTERACTIVE = "a[href],button,input,select,textarea,[tabindex],[onclick]";
  const SKIPPED = new Set(["script", "style", "template", "noscript", "head", "meta", "link", "source", "track", "br"]);
  const LONGEST_SLUG = 28;
  const FRAMES = /^(iframe|frame|object)$/;

  let elements = new Map();  // id -> element, of the last walk
  // Where this document is: alone, or in the frame of a document of another origin, which says so.
  let place = {name: "", depth: 0, x: 0, y: 0, left: 0, top: 0, right: Infinity, bottom: Infinity, taken: []};
  let strangers = [];  // frames of other origins, of the last walk
  const frameKeys = new WeakMap();  // such a frame -> the key by which frames.py knows its document

  const isEditable = (element) => element.isContentEditable && !element.parentElement?.isContentEditable;
  const isTextBox = (element) => element.localName === "textarea" || isEditable(element) || (element.localName === "input"
    && !/^(button|submit|reset|image|checkbox|radio|range|color|file|hidden)$/.test(element.type));
  // Elements on which the page's scripts listen for clicks, which determinism.js tells of.
  let heard = new Set();
  const onHeard = (event) => { event.stopImmediatePropagation(); heard.add(event.composedPath()[0]); };
  const listen = (root) => {
    root.addEventListener(`${CHANNEL}-heard`, onHeard, true);
    root.dispatchEvent(new CustomEvent(CHANNEL, {detail: "heard", cancelable: true}));
    root.removeEventListener(`${CHANNEL}-heard`, onHeard, true);
  };
  const isHeard = (element) => heard.has(element) && !/^(html|body|main|form)$/.test(element.localName)
    && !element.querySelector(INTERACTIVE) && ![...element.querySelectorAll("*")].some((inner) => heard.has(inner));
  const isClickable = (element, style, parentCursor) => element.hasAttribute("onclick") || isEditable(element) || isHeard(element)
    || (element.hasAttribute("tabindex") && element.tabIndex >= 0) || element.draggable && element.hasAttribute("draggable")
    || (style.cursor === "pointer" && parentCursor !== "pointer");

  const statesOf = (element, role) => {
    const found = {}, aria = (name) => element.getAttribute(`aria-${name}`);
    if (isTextBox(element)) {
      const value = element.value ?? clean(element.innerText);
      if (value !== "") found.value = element.type === "password" ? "•".repeat(value.length) : value;
      const hint = element.getAttribute("placeholder");
      if (hint) found.placeholder = clean(hint);
    } else if (role === "slider" || role === "spinbutton" || role === "progressbar" || role === "meter") {
      found.value = String(element.value ?? aria("valuetext") ?? aria("valuenow") ?? "");
    }
    if (element.localName === "select") {
      found.value = [...element.selectedOptions].map((option) => clean(option.label)).join(", ");
      found.options = [...element.options].filter((option) => !option.disabled).map((option) => clean(option.label));
    }
    if (element.type === "color") found.value = element.value;
    if (element.type === "file") found.value = [...element.files].map((file) => file.name).join(", ");
    const checked = aria("checked") ?? aria("pressed");
    if (element.type === "checkbox" || element.type === "radio") found.checked = element.checked;
    else if (checked !== null) found.checked = checked === "mixed" ? "mixed" : checked === "true";
    if (aria("selected") === "true") found.selected = true;
    if (aria("current") && aria("current") !== "false") found.current = true;
    if (element.localName === "summary") found.expanded = element.parentElement.open === true;
    else if (aria("expanded") !== null) found.expanded = aria("expanded") === "true";
    if (aria("sort") && aria("sort") !== "none") found.sort = aria("sort");
    if (element.matches(":disabled") || aria("disabled") === "true") found.disabled = true;
    if (element.readOnly === true && isTextBox(element)) found.readonly = true;
    if (element.required || aria("required") === "true") found.required = true;
    if (aria("invalid") === "true") found.invalid = true;
    if (role === "heading") found.level = Number(aria("level") || element.localName.slice(1)) || 2;
    const root = element.getRootNode();
    if (root.activeElement === element && !FRAMES.test(element.localName) && element.localName !== "body") {
      found.focused = true;
    }
    return found;
  };

  // --- the walk
  const walk = (everything) => {
    const nodes = [], found = [];
    const boxOf = (rect, frame) => {
      const left = rect.left + frame.x, top = rect.top + frame.y;
      return [Math.round(left), Math.round(top), Math.round(rect.width), Math.round(rect.height)];
    };
    const isSeen = ([x, y, width, height], frame) => width > 0 && height > 0
      && x < frame.right && y < frame.bottom && x + width > frame.left && y + height > frame.top;
    // Where a person points at: the element, else its label, else what is inside it.
    const boxOfElement = (element, frame) => {
      const own = boxOf(element.getBoundingClientRect(), frame);
      if (own[2] > 0 && own[3] > 0) return own;
      const places = [...(element.labels || [])].map((label) => label.getBoundingClientRect());
      const range = element.ownerDocument.createRange();
      range.selectNodeContents(element);
      const found = [...places, range.getBoundingClientRect()].find((rect) => rect.width > 0 && rect.height > 0);
      return found ? boxOf(found, frame) : own;
    };
    const add = (depth, role, name, states, box, frame, element) => {
      const node = {depth, role, name, states, box, seen: isSeen(box, frame)};
      nodes.push(node);
      if (element) found.push([element, node]);
      return node;
    };
    const addText = (text, depth, box, frame, block) => {
      const last = nodes[nodes.length - 1];
      if (last && last.role === "text" && last.block === block && last.depth === depth) last.raw += text;
      else if (clean(text)) Object.defineProperty(add(depth, "text", "", {}, box, frame), "block", {value: block});
      else return;
      const node = nodes[nodes.length - 1];
      if (node.raw === undefined) Object.defineProperty(node, "raw", {value: text, writable: true});
      node.name = clean(node.raw);
    };
    const visitText = (text, depth, frame, block) => {
      if (!text.data.trim()) { addText(" ", depth, null, frame, block); return; }
      const range = text.ownerDocument.createRange();
      range.selectNodeContents(text);
      addText(text.data, depth, boxOf(range.getBoundingClientRect(), frame), frame, block);
    };
    const visitFrame = (element, depth, frame) => {
      const rect = element.getBoundingClientRect();
      const x = frame.x + rect.left + element.clientLeft, y = frame.y + rect.top + element.clientTop;
      const inside = {
        x, y, left: Math.max(frame.left, x), top: Math.max(frame.top, y),
        right: Math.min(frame.right, x + element.clientWidth), bottom: Math.min(frame.bottom, y + element.clientHeight),
      };
      const inner = documentOf(element);
      if (!inner) {
        const node = add(depth, "frame", nameOf(element, "iframe"), {}, boxOfElement(element, frame), frame, null);
        node.frame = {...inside, key: frameKeys.get(element) || "", number: strangers.push(element) - 1};
      }
      if (!inner?.body) return;
      if (!everything) listen(inner);
      visitChildren(inner.body, depth, inside, "auto", inner.body, true, isVisibleBody(inner));
    };
    const isVisibleBody = (root) => getComputedStyle(root.body).visibility === "visible";
    const clipped = (element, frame) => {  // what a scrolling element shows of its children
      const [x, y, width, height] = boxOf(element.getBoundingClientRect(), frame);
      return {
        ...frame, left: Math.max(frame.left, x), top: Math.max(frame.top, y),
        right: Math.min(frame.right, x + width), bottom: Math.min(frame.bottom, y + height),
      };
    };
    const visit = (element, depth, frame, cursor, block, isTextShown) => {
      if (SKIPPED.has(element.localName) || element.getAttribute("aria-hidden") === "true") return;
      const style = getComputedStyle(element);
      if (style.display === "none" || isShut(element.parentElement, element)) return;
      const isVisible = style.visibility === "visible";
      if (style.overflowX !== "visible" || style.overflowY !== "visible") frame = clipped(element, frame);
      const isFrame = FRAMES.test(element.localName) && Boolean(element.contentWindow);
      const role = isFrame ? "iframe" : roleOf(element), own = isInline(element) ? block : element;
      const isAction = isVisible && (WIDGETS.has(role) || isClickable(element, style, cursor));
      const inSelect = element.localName === "option" || element.localName === "optgroup";
      if (inSelect && element.closest("select")) return;
      if (style.contentVisibility === "hidden") return;
      if (isVisible && standsIn(element)) {
        addControl(element, depth, frame);
        visitChildren(element, depth + 1, frame, style.cursor, own, false, false);
        return;
      }
      let shown = role;
      if (TEXT_ROLES.has(role)) shown = isAction ? (isEditable(element) ? "textbox" : "clickable") : "";
      if (!shown && everything && isVisible && !element.children.length) shown = "generic";
      if (!shown || !isVisible) {
        visitChildren(element, depth, frame, style.cursor, own, isTextShown && !isSaid(element), isVisible);
        return;
      }
      const mayBeLeaf = shown === "clickable" || shown === "generic" || (FROM_CONTENT.has(role) && role !== "row");
      const hasParts = everything && shown === "clickable" && element.children.length > 0;
      const isLeaf = mayBeLeaf && !hasParts && !element.querySelector(ATOMS.has(role) ? INTERACTIVE : `${INTERACTIVE},[role],img,iframe`);
      const isNamed = isAction || !FROM_CONTENT.has(role) || isLeaf;
      let name = "";
      if (shown === "clickable" || shown === "generic") name = nameOf(element, "button");
      else if (isNamed) name = nameOf(element, role);
      const box = boxOfElement(element, frame);
      const hasId = isAction || everything || shown === "listbox";
      add(depth, shown, name, statesOf(element, role), box, frame, hasId ? element : null);
      if (isFrame) { visitFrame(element, depth + 1, frame); return; }
      const says = mayBeLeaf && isNamed;
      if ((says && isLeaf) || isTextBox(element) || element.localName === "select") return;
      visitChildren(element, depth + 1, frame, style.cursor, own, says ? false : isTextShown, isVisible);
    };
    // A closed <details> shows its first summary alone.
    const isShut = (parent, child) => parent?.localName === "details" && !parent.open
      && child !== parent.querySelector(":scope > summary");
    const isDrawn = (element) => element.getClientRects().length > 0 && !element.closest("[aria-hidden='true']")
      && getComputedStyle(element).visibility === "visible";
    // A label's text is its control's name, and need not be said twice.
    const isSaid = (element) => {
      const control = element.localName === "label" && element.control;
      return control && control.type !== "hidden" && isDrawn(control)
        && nameOf(control, roleOf(control)).includes(clean(contentOf(element, new Set([control]))));
    };
    // Where a page hides a box to tick or a file's button, a person sees and clicks its label.
    const standsIn = (element) => element.localName === "label" && element.control
      && /^(checkbox|radio|file)$/.test(element.control.type) && !isDrawn(element.control);
    const addControl = (label, depth, frame) => {
      const control = label.control, role = roleOf(control);
      if (found.some(([one]) => one === control)) return;
      const box = boxOf(label.getBoundingClientRect(), frame);
      const name = nameOf(control, role) || clean(contentOf(label, new Set([control])));
      add(depth, role, name, statesOf(control, role), box, frame, control);
    };
    const visitChildren = (element, depth, frame, cursor, block, isTextShown, isVisible) => {
      for (const child of childrenOf(element)) {
        if (child.nodeType === 3) {
          if (isTextShown && isVisible && !isShut(element, child)) visitText(child, depth, frame, block);
        } else if (child.nodeType === 1) visit(child, depth, frame, cursor, block, isTextShown);
      }
    };
    heard = new Set();
    strangers = [];
    if (!everything) listen(document);  // else all elements have ids already
    if (document.body) {
      const right = Math.min(place.right, place.x + innerWidth), bottom = Math.min(place.bottom, place.y + innerHeight);
      visitChildren(document.body, place.depth, {...place, right, bottom}, "auto", document.body, true, isVisibleBody(document));
    }
    assignIds(found);
    for (const node of nodes) node.name = node.name.trim();
    return nodes;
  };

  // --- ids: the name in a few words; where several share it, what tells them apart; the position only at last
  const slug = (text) => {
    const words = text.toLowerCase().normalize("NFKC").replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "");
    if (words.length <= LONGEST_SLUG) return words;
    const cut = words.slice(0, LONGEST_SLUG), end = cut.lastIndexOf("-");
    return end > LONGEST_SLUG / 2 ? cut.slice(0, end) : cut;
  };
  const parentOf = (element) => element.assignedSlot || element.parentElement || element.getRootNode().host
    || element.ownerDocument.defaultView?.frameElement || null;
  const contextOf = (element) => {
    const own = nameOf(element, roleOf(element));
    for (let at = parentOf(element); at; at = parentOf(at)) {
      const role = roleOf(at);
      let name = "";
      if (role === "row") name = clean([...at.children].map((cell) => cell.textContent).find((text) => clean(text)) || "");
      else if (role === "listitem" || role === "article") name = clean(at.textContent).replace(own, "");
      else if (/^(group|radiogroup|region|dialog|form|navigation|toolbar|tablist|tabpanel|table|list|iframe)$/.test(role)) {
        name = nameOf(at, role);
      }
      if (slug(name) && slug(name) !== slug(own)) return slug(name);
    }
    return "";
  };
  const regroup = (entries, key) => {
    const groups = new Map();
    for (const entry of entries) {
      const id = key(entry);
      groups.set(id, [...(groups.get(id) || []), entry]);
    }
    return groups;
  };
  const assignIds = (found) => {
    elements = new Map();
    const taken = new Set(place.taken);
    const give = (id, [element, node]) => {
      const own = taken.has(id) && slug(place.name) ? `${id}-${slug(place.name)}` : id;
      let unique = own;
      for (let number = 2; elements.has(unique) || taken.has(unique); number++) unique = `${own}-${number}`;
      elements.set(unique, element);
      node.id = unique;
    };
    const said = (element) => (heard.has(element) ? slug(clean(element.textContent)) : "");
    const base = ([element, node]) => slug(node.name) || slug(element.getAttribute("title") || "") || said(element) || node.role;
    const groups = regroup(found, base);
    for (const [id, same] of groups) if (same.length === 1) give(id, same[0]);
    for (const [id, same] of groups) {
      if (same.length === 1) continue;
      const by = new Set(same.map(([, node]) => node.role)).size === same.length
        ? ([, node]) => node.role : ([element]) => contextOf(element);
      for (const entry of same) {
        const context = by(entry);
        give(context ? `${id}-${context}` : id, entry);
      }
    }
  };

  const documentOf = (frame) => {  // null for another origin
    try { return frame.contentDocument; } catch { return null; }
  };

  globalThis.agentgymTree = {
    // Of a document within another one, `at` says where it is and which ids are taken.
    walk: (everything, at) => {
      if (at) place = at;
      return walk(everything);
    },
    see: (everything) => ({
      url: location.href,
      title: clean(document.title || ""),
      nodes: walk(everything),
      view: [innerWidth, innerHeight],
      scroll: [Math.round(scrollX), Math.round(scrollY)],
      extent: [document.documentElement?.scrollWidth || 0, document.documentElement?.scrollHeight || 0],
    }),
    find: (id, everything) => {
      const known = elements.get(id);
      if (known?.isConnected) return known;
      walk(everything);  // drawn anew since
      return elements.get(id) || null;
    },
    ids: () => [...elements.keys()],
    documentOf,
    stranger: (number) => strangers[number],
    nameStranger: (number, key) => { frameKeys.set(strangers[number], key); },
    named: (key) => strangers.find((frame) => frame.isConnected && frameKeys.get(frame) === key),
    isTextBox,
  };
})();
