// Roles and accessible names: a subset of WAI-ARIA 1.2, "Accessible Name and Description Computation 1.2" and
// "HTML Accessibility API Mappings 1.0", compared with Chromium's own tree in the tests. Runs in a world of its own,
// which pages neither see nor can change.
(() => {
  const clean = (text) => text.replace(/[\s\u200b\ufeff]+/g, " ").trim();
  const INPUT_ROLES = {
    button: "button", submit: "button", reset: "button", image: "button", file: "button", color: "button",
    checkbox: "checkbox", radio: "radio", range: "slider", number: "spinbutton", search: "searchbox",
  };
  const TAG_ROLES = {
    ADDRESS: "group", ARTICLE: "article", ASIDE: "complementary", BLOCKQUOTE: "blockquote", BUTTON: "button",
    CANVAS: "img", DATALIST: "listbox", DD: "definition", DETAILS: "group", DIALOG: "dialog", DT: "term",
    FIELDSET: "group", FIGURE: "figure", FRAME: "iframe", H1: "heading", H2: "heading", H3: "heading", H4: "heading", H5: "heading",
    H6: "heading", HR: "separator", IFRAME: "iframe", LI: "listitem", MAIN: "main", MENU: "list", METER: "meter",
    NAV: "navigation", OL: "list", OPTGROUP: "group", OPTION: "option", OUTPUT: "status", PROGRESS: "progressbar",
    SUMMARY: "button", TABLE: "table", TD: "cell", TEXTAREA: "textbox", TR: "row", UL: "list",
  };
  const KNOWN = new Set([
    ...Object.values(TAG_ROLES), ...Object.values(INPUT_ROLES), "alert", "alertdialog", "application", "banner",
    "columnheader", "combobox", "contentinfo", "directory", "document", "feed", "form", "grid", "gridcell", "link",
    "log", "marquee", "math", "menu", "menubar", "menuitem", "menuitemcheckbox", "menuitemradio", "note", "radiogroup",
    "region", "rowgroup", "rowheader", "scrollbar", "search", "switch", "tab", "tablist", "tabpanel", "timer",
    "toolbar", "tooltip", "tree", "treegrid", "treeitem", "presentation", "none", "generic",
  ]);
  const FROM_CONTENT = new Set([
    "button", "cell", "checkbox", "columnheader", "gridcell", "heading", "link", "menuitem", "menuitemcheckbox",
    "menuitemradio", "option", "radio", "row", "rowheader", "switch", "tab", "tooltip", "treeitem",
  ]);

  const inputRole = (element) => {
    const role = INPUT_ROLES[element.type];
    return role || (element.list ? "combobox" : "textbox");
  };
  const implicitRole = (element) => {
    const tag = element.tagName.toUpperCase();
    if (tag === "INPUT") return element.type === "hidden" ? "" : inputRole(element);
    if (tag === "A" || tag === "AREA") return element.hasAttribute("href") ? "link" : "";
    if (tag === "SELECT") return element.multiple || element.size > 1 ? "listbox" : "combobox";
    if (tag === "IMG") return element.getAttribute("alt") === "" ? "" : "img";
    if (tag === "SVG") return element.querySelector(":scope > title") ? "img" : "";
    if (tag === "TH") return element.scope === "row" || element.scope === "rowgroup" ? "rowheader" : "columnheader";
    if (tag === "HEADER" || tag === "FOOTER") {
      if (element.closest("article, aside, main, nav, section")) return "";
      return tag === "HEADER" ? "banner" : "contentinfo";
    }
    if (tag === "SECTION" || tag === "FORM") {
      return labelled(element) ? (tag === "FORM" ? "form" : "region") : "";
    }
    return TAG_ROLES[tag] || "";
  };
  const isFocusable = (element) => element.tabIndex >= 0 && !element.disabled;
  const roleOf = (element) => {
    for (const word of (element.getAttribute("role") || "").toLowerCase().split(/\s+/)) {
      if (!KNOWN.has(word)) continue;
      if ((word === "presentation" || word === "none") && isFocusable(element)) continue;
      return word === "presentation" || word === "none" || word === "generic" ? "" : word;
    }
    return implicitRole(element);
  };

  const isHidden = (element) => element.getAttribute("aria-hidden") === "true"
    || getComputedStyle(element).display === "none";
  const isVisible = (element) => getComputedStyle(element).visibility === "visible";
  const childrenOf = (element) => {
    if (element.shadowRoot) return element.shadowRoot.childNodes;
    if (element.localName === "slot") {
      const assigned = element.assignedNodes();
      if (assigned.length) return assigned;
    }
    return element.childNodes;
  };
  const isInline = (element) => /^(inline|contents)/.test(getComputedStyle(element).display) && element.localName !== "br";
  const byIds = (element, attribute) => (element.getAttribute(attribute) || "").split(/\s+/).filter(Boolean)
    .map((id) => element.getRootNode().getElementById(id)).filter(Boolean);
  const labelled = (element) => byIds(element, "aria-labelledby").length || clean(element.getAttribute("aria-label") || "")
    || clean(element.getAttribute("title") || "");

  // The text alternative of what is inside an element, as part of another one's name (step 2F).
  const contentOf = (element, seen, saysText = true) => {
    let text = "";
    for (const child of childrenOf(element)) {
      if (child.nodeType === 3) text += saysText ? child.data : "";
      else if (child.nodeType === 1 && !seen.has(child)) {
        const inner = alternativeOf(child, seen, false);
        text += isInline(child) ? inner : ` ${inner} `;
      }
    }
    return text;
  };
  const valueInName = (element) => {  // a control inside a label gives its value (step 2E)
    const role = roleOf(element);
    if (role === "textbox" || role === "searchbox") return element.value ?? element.textContent;
    if (role === "combobox" && element.selectedOptions) return [...element.selectedOptions].map((o) => o.text).join(" ");
    if (role === "slider" || role === "spinbutton") return element.value ?? element.getAttribute("aria-valuenow") ?? "";
    return null;
  };
  const alternativeOf = (element, seen, isReferenced) => {
    if (seen.has(element) || /^(script|style|template|noscript)$/.test(element.localName)) return "";
    if (!isReferenced && isHidden(element)) return "";
    seen = new Set(seen).add(element);
    if (!isReferenced && !isVisible(element)) return contentOf(element, seen, false);  // what is in it may be visible
    const label = clean(element.getAttribute("aria-label") || "");
    if (label) return label;
    const value = valueInName(element);
    if (value !== null) return value;
    const native = nativeName(element, seen);
    if (native) return native;
    return contentOf(element, seen) || clean(element.getAttribute("title") || "");
  };
  const labelsOf = (element, seen) => clean([...(element.labels || [])]
    .map((label) => contentOf(label, new Set(seen).add(element).add(label))).join(" "));
  const firstChild = (element, names, seen) => {
    const child = [...element.children].find((one) => names.includes(one.localName));
    return child ? clean(contentOf(child, new Set(seen).add(child))) : "";
  };
  const nativeName = (element, seen) => {
    const tag = element.localName, type = element.type;
    const given = (name) => clean(element.getAttribute(name) || "");
    if (tag === "input" && ["button", "submit", "reset"].includes(type)) {
      return labelsOf(element, seen) || clean(element.value) || {submit: "Submit", reset: "Reset"}[type] || "";
    }
    if (tag === "input" && type === "image") {
      return labelsOf(element, seen) || given("alt") || given("value") || given("title") || "Submit";
    }
    if (/^(input|select|textarea|meter|progress|output|button)$/.test(tag)) {
      const labels = labelsOf(element, seen);
      if (labels) return labels;
      if (tag === "input" && type === "file") return "Choose File";
      return tag === "button" ? "" : given("title") || given("placeholder") || given("aria-placeholder");
    }
    if (tag === "img" || tag === "area") return given("alt") || given("title");
    if (tag === "fieldset") return firstChild(element, ["legend"], seen);
    if (tag === "table") return firstChild(element, ["caption"], seen);
    if (tag === "figure") return firstChild(element, ["figcaption"], seen);
    if (tag === "optgroup" || tag === "option") return given("label");
    if (tag === "svg") return clean(element.querySelector(":scope > title")?.textContent || "");
    return "";
  };
  const nameOf = (element, role) => {
    const seen = new Set();
    const references = byIds(element, "aria-labelledby");
    if (references.length) {
      return clean(references.map((one) => (one === element ? element.getAttribute("aria-label") || ""
        : alternativeOf(one, new Set(), true))).join(" "));
    }
    const label = clean(element.getAttribute("aria-label") || "");
    if (label) return label;
    const native = nativeName(element, seen);
    if (native) return native;
    if (FROM_CONTENT.has(role)) {
      const content = clean(contentOf(element, seen.add(element)));
      if (content) return content;
    }
    return clean(element.getAttribute("title") || "");
  };
  globalThis.agentgymNames = {clean, roleOf, nameOf, contentOf, childrenOf, isInline, FROM_CONTENT};
})();
