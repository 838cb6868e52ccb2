// Draws the page that /task.json asks for, and posts what was done to /submit.
const main = document.getElementById("main");

const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
};
const submit = async (result) => {
  const answer = await fetch("/submit", {method: "POST", body: JSON.stringify(result)});
  main.replaceChildren(make("p", {role: "status"}, await answer.text()));
};
const choices = (options) => options.map((text) => make("option", {}, text));

const draw = {
  form: ({fields}) => {
    const form = make("form", {onsubmit: (event) => {
      event.preventDefault();
      const result = {};
      for (const {label, kind} of fields) {
        if (kind === "checks") result[label] = [...form.querySelectorAll("input:checked")]
          .filter((box) => box.name === label).map((box) => box.value);
        else result[label] = new FormData(form).get(label) || "";
      }
      submit(result);
    }});
    const group = (label, type, options) => make("fieldset", {}, make("legend", {}, label), ...options.map((option) =>
      make("label", {}, make("input", {type, name: label, value: option}), ` ${option}`)));
    for (const {label, kind, options} of fields) {
      if (kind === "radio") form.append(group(label, "radio", options));
      else if (kind === "checks") form.append(group(label, "checkbox", options));
      else if (kind === "select") form.append(make("label", {}, `${label} `, make("select", {name: label}, ...choices(options))));
      else if (kind === "long") form.append(make("label", {}, `${label} `, make("textarea", {name: label})));
      else form.append(make("label", {}, `${label} `, make("input", {name: label, type: kind, autocomplete: "off"})));
    }
    form.append(make("button", {}, "Send"));
    return [make("h1", {}, "Registration"), form];
  },

  table: ({columns, rows}) => {
    const body = make("tbody"), order = {at: -1, up: true};
    const refill = () => body.replaceChildren(...rows.map((row) => make("tr", {},
      ...row.map((value) => make("td", {}, String(value))),
      make("td", {}, make("button", {onclick: () => submit({removed: row[0]})}, "Remove")))));
    const sort = (at, heads) => {
      order.up = order.at === at ? !order.up : true;
      order.at = at;
      rows.sort((a, b) => (a[at] < b[at] ? -1 : 1) * (order.up ? 1 : -1));
      heads.forEach((head, number) => head.setAttribute("aria-sort",
        number !== at ? "none" : order.up ? "ascending" : "descending"));
      refill();
    };
    const heads = columns.map((name) => make("th", {scope: "col", "aria-sort": "none"}));
    heads.forEach((head, at) => head.append(make("button", {onclick: () => sort(at, heads)}, columns[at])));
    refill();
    return [make("h1", {}, "Staff"), make("table", {}, make("caption", {}, "Staff"),
      make("thead", {}, make("tr", {}, ...heads, make("th", {}, ""))), body)];
  },

  calendar: () => {
    const today = new Date();
    let year = today.getUTCFullYear(), month = today.getUTCMonth(), chosen = "";
    const title = make("h2", {"aria-live": "polite"}), days = make("div", {class: "days", role: "group", "aria-label": "Days"});
    const said = make("p", {role: "status"});
    const show = () => {
      const first = new Date(Date.UTC(year, month, 1));
      title.textContent = first.toLocaleString("en-US", {month: "long", year: "numeric", timeZone: "UTC"});
      const count = new Date(Date.UTC(year, month + 1, 0)).getUTCDate();
      days.replaceChildren(...Array.from({length: count}, (_, at) => {
        const date = new Date(Date.UTC(year, month, at + 1)).toISOString().slice(0, 10);
        return make("button", {"aria-pressed": String(date === chosen), onclick: () => { chosen = date; show(); }},
          String(at + 1));
      }));
      said.textContent = chosen ? `Chosen: ${chosen}` : "No day is chosen.";
    };
    const turn = (by) => {
      const next = new Date(Date.UTC(year, month + by, 1));
      [year, month] = [next.getUTCFullYear(), next.getUTCMonth()];
      show();
    };
    show();
    return [make("h1", {}, "Room"), make("button", {onclick: () => turn(-1)}, "Previous month"), title,
      make("button", {onclick: () => turn(1)}, "Next month"), days, said,
      make("button", {onclick: () => submit({date: chosen})}, "Book")];
  },

  board: ({columns}) => {
    let dragged = null;
    const lists = Object.entries(columns).map(([name, cards]) => {
      const list = make("div", {class: "column", role: "region", "aria-label": name, tabindex: "0",
        ondragover: (event) => event.preventDefault(),
        ondrop: (event) => { event.preventDefault(); if (dragged) list.append(dragged); }});
      list.append(make("h2", {}, name), ...cards.map((card) => {
        const shown = make("div", {class: "card", draggable: "true", ondragstart: () => { dragged = shown; }}, card);
        return shown;
      }));
      return list;
    });
    const save = () => submit(Object.fromEntries(lists.map((list) => [list.getAttribute("aria-label"),
      [...list.querySelectorAll(".card")].map((card) => card.textContent).sort()])));
    return [make("h1", {}, "Board"), make("div", {class: "columns"}, ...lists), make("button", {onclick: save}, "Save")];
  },

  list: ({items}) => {
    const PAGE = 20;
    const list = make("ul", {class: "long", role: "listbox", "aria-label": "Parts", tabindex: "0"});
    const more = () => {
      const from = list.children.length;
      list.append(...items.slice(from, from + PAGE).map((item) =>
        make("li", {role: "option", onclick: () => submit({ordered: item})}, item)));
    };
    list.addEventListener("scroll", () => {
      if (list.scrollTop + list.clientHeight > list.scrollHeight - 40) setTimeout(more, 150);
    });
    more();
    return [make("h1", {}, "Stock"), make("p", {}, "The list grows when it is scrolled."), list];
  },

  frame: ({code}) => {
    const shown = make("p", {role: "status"});
    window.addEventListener("message", (event) => submit({code: event.data.code}));
    return [make("h1", {}, "Gate"), make("button", {onclick: () => { shown.textContent = `The code is ${code}.`; }},
      "Show code"), shown, make("iframe", {src: "/inner.html", title: "Door"})];
  },

  settings: ({switches, themes}) => {
    customElements.define("app-switch", class extends HTMLElement {
      connectedCallback() {
        const name = this.getAttribute("name");
        const knob = make("button", {role: "switch", "aria-checked": String(this.hasAttribute("active")), onclick: () => {
          this.toggleAttribute("active");
          knob.setAttribute("aria-checked", String(this.hasAttribute("active")));
        }}, name);
        this.attachShadow({mode: "open"}).append(knob);
      }
    });
    customElements.define("app-panel", class extends HTMLElement {
      connectedCallback() { this.attachShadow({mode: "open"}).append(make("slot")); }
    });
    const knobs = Object.entries(switches).map(([name, on]) => make("app-switch", {name, active: on}));
    const theme = make("select", {}, ...choices(themes));
    const save = () => submit({theme: theme.value,
      switches: Object.fromEntries(knobs.map((knob) => [knob.getAttribute("name"), knob.hasAttribute("active")]))});
    return [make("h1", {}, "Settings"), make("app-panel", {},
      ...knobs.map((knob) => make("div", {class: "field"}, knob)), make("label", {}, "Theme ", theme)),
      make("button", {onclick: save}, "Save")];
  },
};

const {page, data} = await (await fetch("/task.json")).json();
main.replaceChildren(...draw[page](data));
