// What the pages of `ckpt-inspect report` and `audit --html` are both made of: elements, words for numbers, sections as tabs. A page's own script
// stands behind this in one function. Asks nothing of any network. Names and values come from checkpoints that nobody trusts: they reach the
// page as text nodes alone.
const D = JSON.parse(document.getElementById("data").textContent);
const main = document.getElementById("main");
const PALETTE = ["--k0", "--k2", "--k1", "--k3", "--k5", "--k6", "--k7", "--k4"];

// ---- elements ----
const SVG = "http://www.w3.org/2000/svg";
function put(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key.startsWith("aria-") && typeof value === "boolean") node.setAttribute(key, value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  for (const child of [children].flat(9)) if (child !== null && child !== undefined) node.append(child);
  return node;
}
const el = (name, attributes, ...children) => put(document.createElement(name), attributes, children);
const svg = (name, attributes, ...children) => put(document.createElementNS(SVG, name), attributes, children);
const color = (name) => `var(${name})`;

// ---- words for numbers ----
function bytesText(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) n /= 1024, ++unit;
  return `${unit === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)} ${units[unit]}`;
}
const countText = (n) => n.toLocaleString("en");
function realText(x) {
  if (x === null || x === undefined) return "–";
  if (typeof x === "string") return x;
  return x === 0 ? "0" : Number(x.toPrecision(4)).toString();
}
const finite = (x) => typeof x === "number" && Number.isFinite(x);

// ---- sections and tabs ----
const sections = [];
function section(id, title, build) { sections.push({id, title, build, built: false}); }
function show(id, focus) {
  for (const each of sections) {
    const active = each.id === id;
    each.node.hidden = !active;
    each.tab.setAttribute("aria-selected", active);
    each.tab.tabIndex = active ? 0 : -1;
    if (active) {
      build(each);
      if (focus) each.tab.focus();
    }
  }
}
function build(each) {
  if (each.built) return;
  each.built = true;
  each.node.append(...each.build().flat(9).filter((node) => node));
}
// The page, with its titles, open at the section of that id or at its first.
function start({title, subtitle, tab_title, opens}) {
  document.getElementById("title").textContent = title;
  document.getElementById("subtitle").textContent = `${subtitle}. Made by Tessera ${D.version}.`;
  document.title = tab_title;
  const tabs = document.getElementById("tabs");
  sections.forEach((each, at) => {
    each.node = el("section", {id: each.id, role: "tabpanel", "aria-labelledby": `tab-${each.id}`});
    each.tab = el("button", {
      role: "tab", id: `tab-${each.id}`, "aria-controls": each.id, onclick: () => show(each.id),
      onkeydown: (event) => {
        const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
        if (step) show(sections[(at + step + sections.length) % sections.length].id, true);
      }}, each.title);
    tabs.append(each.tab);
    main.append(each.node);
  });
  show((sections.find((each) => each.id === opens) || sections[0]).id);
  addEventListener("beforeprint", () => sections.forEach(build));
}

function facts(pairs) {
  return el("dl", {class: "facts"}, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
      .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}
