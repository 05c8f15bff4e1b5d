// The page of `ckpt-inspect report`, behind shell.js.
const KIND_COLORS = {param: "--k0", buffer: "--k1", optim: "--k2", master: "--k3", other: "--k4"};
const ROW = 30, SHOWN_ROWS = 60;

const say = (text) => { document.getElementById("live").textContent = text; };

// ---- a side's tensors, from the columns ----
function rowsOf(side) {
  const t = side.tensors, tables = t.tables, rows = [];
  let name = "";
  for (let i = 0; i < t.n; ++i) {
    name = name.slice(0, t.shared[i]) + t.suffix[i];
    const [dtype, bits] = tables.dtypes[t.dtype[i]], shape = tables.shapes[t.shape[i]];
    const numel = shape.reduce((a, b) => a * b, 1);
    rows.push({i, name, dtype, shape, numel, bytes: Math.ceil(numel * bits / 8), kind: tables.kinds[t.kind[i]],
               sharding: tables.shardings[t.sharding[i]], files: tables.file_sets[t.files[i]],
               layout: t.layout[i] < 0 ? null : tables.layouts[t.layout[i]], stat: side.stat ? statOf(side.stat.rows[i]) : null});
  }
  return rows;
}
function statOf(row) {
  if (!row) return null;
  const [count, nan, inf, zeros, min, max, mean, std, l2, quantiles, linear, log, norms] = row;
  return {finite: count, nan, inf, zeros, min, max, mean, std, l2, quantiles, linear, log, norms};
}
const A = rowsOf(D.a), B = D.b ? rowsOf(D.b) : null;
const byName = new Map(A.map((row) => [row.name, row]));
const natural = new Intl.Collator("en", {numeric: true});

function findings(list) {
  return list.map((note) => el("div", {class: `finding ${note.severity}`}, el("b", {}, note.code || note.severity), note.message + " ",
      note.tensor && byName.has(note.tensor) ? el("button", {class: "link", onclick: () => open(note.tensor)}, note.tensor)
          : note.tensor ? `(${note.tensor})` : null,
      note.file ? ` [${note.file}]` : null));
}
function legend(names, colorOf) {
  return el("div", {class: "legend"}, names.map((name) => el("span", {style: `--swatch:${color(colorOf(name))}`}, name)));
}
function table(columns, rows, caption) {
  return el("table", {}, el("caption", {class: "unseen"}, caption),
      el("thead", {}, el("tr", {}, columns.map(([name, number]) => el("th", {class: number ? "number" : null, scope: "col"}, name)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, c) => el("td", {class: columns[c][1] ? "number" : c === 0 ? "name" : String(cell).length > 60 ? "long" : null}, cell))))));
}

// ---- the tree of modules, equal siblings with numbers folded ----
function treeOf(rows) {
  const root = {name: "", children: new Map(), row: null};
  for (const row of rows) {
    let node = root;
    for (const part of row.name.split(".")) {
      if (!node.children.has(part)) node.children.set(part, {name: part, children: new Map(), row: null});
      node = node.children.get(part);
    }
    node.row = row;
  }
  return folded(root);
}
function folded(node) {
  const kids = [...node.children.values()].map(folded);
  const out = {name: node.name, rows: node.row ? [node.row] : [], children: []};
  const groups = new Map();
  for (const kid of kids) {
    if (!/^\d+$/.test(kid.name)) { out.children.push(kid); continue; }
    if (!groups.has(kid.form)) groups.set(kid.form, []);
    groups.get(kid.form).push(kid);
  }
  for (const alike of groups.values()) {
    if (alike.length < 3) { out.children.push(...alike); continue; }
    const numbers = alike.map((kid) => Number(kid.name)).sort((a, b) => a - b);
    const dense = numbers.at(-1) - numbers[0] === numbers.length - 1;
    out.children.push(merged(alike, dense ? `[${numbers[0]}-${numbers.at(-1)}]` : `[${numbers.length} of ${numbers[0]}-${numbers.at(-1)}]`));
  }
  out.children.sort((a, b) => natural.compare(a.name, b.name));
  out.form = out.children.map((kid) => `${kid.name}(${kid.form})`).join() +
      out.rows.map((row) => `${row.dtype}${row.shape}`).join();
  return out;
}
function merged(alike, name) {
  return {name, form: alike[0].form, count: alike.length, rows: alike.flatMap((kid) => kid.rows),
          children: alike[0].children.map((kid, c) => merged(alike.map((each) => each.children[c]), kid.name))};
}
function treemap(rows) {
  const holder = el("div"), modes = {kind: (row) => row.kind, dtype: (row) => row.dtype, ranks: (row) => row.sharding || "one piece"};
  let mode = "kind", path = [];
  const tree = treeOf(rows);
  function draw(focus) {
    const node = path.reduce((at, step) => at.children[step], tree);
    const groups = [...new Set(rows.map(modes[mode]))].sort(natural.compare);
    const colorOf = (name) => mode === "kind" ? KIND_COLORS[name] || "--k4" : PALETTE[Math.min(groups.indexOf(name), PALETTE.length - 1)];
    const data = d3.hierarchy(node, (each) => each.children.length ? each.children : null)
        .sum((each) => d3.sum(each.rows, (row) => row.bytes)).sort((a, b) => b.value - a.value);
    d3.treemap().size([1000, 420]).paddingOuter(2).paddingInner(1).paddingTop((each) => each.depth && each.children && each.y1 - each.y0 > 26 ? 15 : 1)
        .round(true)(data);
    const label = (each) => each.ancestors().reverse().slice(1).map((up) => up.data.name).join(".") || "all";
    const boxes = data.descendants().filter((each) => each.depth > 0 && each.x1 - each.x0 > 1.5 && each.y1 - each.y0 > 1.5 &&
        (each.depth === 1 || (each.x1 - each.x0) * (each.y1 - each.y0) > 60)).slice(0, 1500);
    const picture = svg("svg", {viewBox: "0 0 1000 420", width: 1000, role: "group", "aria-label": "Bytes by module"},
        boxes.map((each) => {
          const leaf = !each.children, first = each.leaves()[0].data.rows[0], width = each.x1 - each.x0;
          const text = `${label(each)}: ${bytesText(each.value)}${each.data.count ? `, ${each.data.count} alike` : ""}`;
          const enter = () => {
            if (leaf) return open(each.data.rows[0].name);
            const steps = each.ancestors().reverse().slice(1).map((up, at, all) => (at ? all[at - 1].data : node).children.indexOf(up.data));
            path = [...path, ...steps];
            draw(true);
          };
          return svg("g", {transform: `translate(${each.x0},${each.y0})`},
              svg("rect", {width, height: each.y1 - each.y0, tabindex: each.depth <= 2 ? 0 : null, role: "button", "aria-label": text,
                           fill: leaf && first ? color(colorOf(modes[mode](first))) : "var(--card)", stroke: "var(--page)", onclick: enter,
                           style: "cursor:pointer", onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") event.preventDefault(), enter(); }},
                  svg("title", {}, text)),
              width > 40 && each.y1 - each.y0 > 14 ? svg("text", {x: 4, y: 12, "pointer-events": "none"},
                  each.data.name.slice(0, Math.floor((width - 6) / 6.4))) : null);
        }));
    holder.replaceChildren(
        el("div", {class: "bar"}, el("span", {}, "Colour by "), Object.keys(modes).map((each) =>
            el("button", {"aria-pressed": each === mode, onclick: () => { mode = each; draw(); }}, each)),
            path.length ? el("button", {id: "treemap-up", onclick: () => { path = []; draw(true); }}, "Show all modules") : null),
        legend(groups.slice(0, 12), colorOf), el("figure", {}, picture,
            el("figcaption", {}, "Area is bytes; repeated layers are one box. A box opens its module, a tensor its facts.")));
    if (focus) (holder.querySelector("#treemap-up") || holder.querySelector("button")).focus();
  }
  draw();
  return holder;
}

// ---- files ----
function filesPicture(side) {
  const most = d3.max(side.files, (file) => file[1]) || 1, height = 20 * Math.min(side.files.length, 200) + 4;
  const bad = new Map(side.findings.filter((note) => note.file && note.severity !== "info").map((note) => [note.file, note]));
  const shown = side.files.slice(0, 200);
  return el("figure", {}, svg("svg", {viewBox: `0 0 1000 ${height}`, width: 1000, role: "img", "aria-label": "Bytes of each file"},
      shown.map(([path, bytes, rank], i) => svg("g", {transform: `translate(0,${i * 20})`},
          svg("text", {x: 396, y: 14, "text-anchor": "end"}, path.length > 58 ? "…" + path.slice(-57) : path),
          svg("rect", {x: 402, y: 3, height: 14, width: Math.max(1, 440 * bytes / most),
                       fill: color(bad.has(path) ? "--bad" : rank === null ? "--k4" : PALETTE[rank % PALETTE.length])},
              svg("title", {}, `${path}: ${bytesText(bytes)}${rank === null ? "" : `, rank ${rank}`}`)),
          svg("text", {x: 408 + 440 * bytes / most, y: 14, class: "faint"},
              bytesText(bytes) + (rank === null ? "" : `, rank ${rank}`) + (bad.has(path) ? `: ${bad.get(path).code}` : ""))))),
      el("figcaption", {}, side.files.length > 200 ? `The first 200 of ${countText(side.files.length)} files.` :
          "Files of the checkpoint, coloured by the rank that wrote them; damaged ones are red."));
}

section("overview", "Overview", () => {
  const s = D.a.summary, out = [];
  out.push(facts([
    ["Format", s.dialect || s.format], ["State", s.complete ? "complete, by metadata and sizes" : "damaged or incomplete"],
    ["Files", `${countText(s.files)}, ${bytesText(s.file_bytes)}`], ["Ranks", s.world_size === null ? null : `${s.world_size} (${s.world_size_source})`],
    ["Tensors", `${countText(s.tensors)} in ${countText(s.chunks)} chunks, ${bytesText(s.tensor_bytes)}`], ["Other values", countText(s.values)],
    ["Parameters", `${countText(s.parameters)} tensors, ${countText(s.parameter_numel)} elements; ${s.trainable} trainable, ${s.frozen} frozen`],
    ...s.optimizers.map((o) => ["Optimizer", `${o.kind} at "${o.root}", ${o.dialect}`]),
    ...s.numbers.map((n) => [n.name, `${realText(n.value)} (${n.source})`])]));
  const notes = [...s.problems.map((message) => ({severity: "error", code: "", message})), ...D.a.findings];
  out.push(el("h2", {}, "Findings"), notes.length ? findings(notes.slice(0, 200)) : el("p", {class: "dim"}, "None."));
  if (notes.length > 200) out.push(el("p", {}, `and ${countText(notes.length - 200)} more`));
  if (D.left_out.length) out.push(el("h2", {}, "Left out of this page"), el("ul", {}, D.left_out.map((text) => el("li", {}, text))));
  out.push(el("h2", {}, "Bytes by module"), treemap(A));
  const bytes = (rows) => table([["what"], ["tensors", true], ["elements", true], ["bytes", true]],
      rows.map((row) => [row.key, countText(row.tensors), countText(row.numel), bytesText(row.bytes)]), "bytes");
  out.push(el("div", {class: "charts"}, el("div", {}, el("h2", {}, "By kind"), bytes(s.by_kind)), el("div", {}, el("h2", {}, "By type"), bytes(s.by_dtype))));
  out.push(el("h2", {}, "Files"), filesPicture(D.a));
  if (s.beside.length) out.push(el("h2", {}, "Beside it, of the same training state"),
      table([["path"], ["what"], ["bytes", true]], s.beside.map((each) => [each.path, each.what, bytesText(each.bytes)]), "files beside"));
  return out;
});

// ---- tensors ----
let openTensor = null;  // shows one in the table's section
function open(name) {
  show("tensors");
  openTensor(name);
}
section("tensors", "Tensors", () => {
  const diffs = new Map((D.diff ? D.diff.tensors : []).map((row) => [row[0], row]));
  const columns = [
    {title: "name", of: (row) => row.name, text: (row) => row.name, cls: "name", sort: (a, b) => natural.compare(a.name, b.name)},
    {title: "type", of: (row) => row.dtype, text: (row) => row.dtype},
    {title: "shape", of: (row) => row.numel, text: (row) => row.shape.length ? `[${row.shape.join(", ")}]` : "scalar"},
    {title: "bytes", of: (row) => row.bytes, text: (row) => bytesText(row.bytes), number: true},
    {title: "kind", of: (row) => row.kind, text: (row) => row.kind},
    {title: "pieces", of: (row) => row.sharding, text: (row) => row.sharding || "1"}];
  if (D.a.stat) columns.push(
    {title: "mean", of: (row) => row.stat && row.stat.mean, text: (row) => realText(row.stat && row.stat.mean), number: true},
    {title: "std", of: (row) => row.stat && row.stat.std, text: (row) => realText(row.stat && row.stat.std), number: true},
    {title: "L2", of: (row) => row.stat && row.stat.l2, text: (row) => realText(row.stat && row.stat.l2), number: true},
    {title: "NaN, Inf", of: (row) => row.stat ? row.stat.nan + row.stat.inf : -1, text: (row) => row.stat ? countText(row.stat.nan + row.stat.inf) : "–", number: true});
  if (D.diff) columns.push({title: "change", of: (row) => diffs.has(row.name) ? (finite(diffs.get(row.name)[8]) ? diffs.get(row.name)[8] : Infinity) : 0,
                            text: (row) => diffs.has(row.name) ? (diffs.get(row.name)[1] === "values" ? realText(diffs.get(row.name)[8]) : diffs.get(row.name)[1]) : "equal", number: true});
  let sorted = -1, down = false, rows = A, kind = "", query = "";
  const body = el("tbody"), above = el("tr", {"aria-hidden": true}), below = el("tr", {"aria-hidden": true});
  const shown = el("span", {class: "dim", "aria-live": "polite", id: "shown"});
  const heads = columns.map((column, c) => el("th", {scope: "col", class: column.number ? "number" : null, "aria-sort": "none"},
      el("button", {onclick: () => { down = sorted === c ? !down : Boolean(column.number); sorted = c; filter(); }}, column.title)));
  const grid = el("table", {id: "tensor-table", "aria-label": "Tensors"}, el("thead", {}, el("tr", {}, heads)), body);
  const box = el("div", {class: "scroll", tabindex: "-1", onscroll: () => fill()}, grid);
  const detail = el("div", {id: "detail", tabindex: "-1"});
  let first = -1;
  function fill(force) {
    const from = Math.max(0, Math.min(Math.floor(box.scrollTop / ROW) - 15, rows.length - SHOWN_ROWS));
    if (from === first && !force) return;
    first = from;
    const slice = rows.slice(from, from + SHOWN_ROWS);
    above.replaceChildren(el("td", {colspan: columns.length, style: `height:${from * ROW}px;padding:0;border:0`}));
    below.replaceChildren(el("td", {colspan: columns.length, style: `height:${Math.max(0, rows.length - from - slice.length) * ROW}px;padding:0;border:0`}));
    body.replaceChildren(above, ...slice.map((row, at) => el("tr", {
      tabindex: at === 0 ? 0 : -1, "aria-rowindex": from + at + 2, "data-name": row.name, onclick: () => present(row, true),
      onkeydown: (event) => {
        if (event.key === "Enter") return present(row, true);
        const step = {ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -Infinity, End: Infinity}[event.key];
        if (!step) return;
        event.preventDefault();
        move(Math.max(0, Math.min(rows.length - 1, from + at + step)));
      }}, columns.map((column) => el("td", {class: column.cls || (column.number ? "number" : null), title: column.cls === "name" ? row.name : null},
          column.cls === "name" ? el("bdi", {}, row.name) : column.text(row))))), below);
  }
  function move(at) {
    box.scrollTop = Math.max(0, at * ROW - box.clientHeight / 2);
    fill();
    const target = body.querySelector(`[aria-rowindex="${at + 2}"]`);
    if (target) target.focus();
  }
  function filter() {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    rows = A.filter((row) => (!kind || row.kind === kind) && words.every((word) => row.name.toLowerCase().includes(word)));
    if (sorted >= 0) {
      const column = columns[sorted], order = column.sort || ((a, b) => {
        const x = column.of(a), y = column.of(b);
        return typeof x === "string" || typeof y === "string" ? natural.compare(String(x ?? ""), String(y ?? "")) : (x ?? -Infinity) - (y ?? -Infinity);
      });
      rows = [...rows].sort((a, b) => (down ? -1 : 1) * order(a, b) || a.i - b.i);
    }
    heads.forEach((head, c) => head.setAttribute("aria-sort", c !== sorted ? "none" : down ? "descending" : "ascending"));
    grid.setAttribute("aria-rowcount", rows.length + 1);
    shown.textContent = `${countText(rows.length)} of ${countText(A.length)}, ${bytesText(d3.sum(rows, (row) => row.bytes))}`;
    box.scrollTop = 0;
    fill(true);
  }
  function present(row, focus) {
    detail.replaceChildren(el("div", {class: "detail"}, tensorPage(row, diffs.get(row.name))));
    if (focus) detail.focus(), detail.scrollIntoView({block: "nearest"});
    say(`${row.name} opened`);
  }
  openTensor = (name) => {
    const at = rows.findIndex((row) => row.name === name);
    if (at >= 0) move(at);
    present(byName.get(name), true);
  };
  filter();
  return [el("div", {class: "bar"},
      el("input", {type: "search", id: "search", placeholder: "Search names", "aria-label": "Search names", oninput: (event) => { query = event.target.value; filter(); },
                   onkeydown: (event) => { if (event.key === "ArrowDown" && rows.length) event.preventDefault(), move(0); }}),
      el("select", {id: "kind", "aria-label": "Kind", onchange: (event) => { kind = event.target.value; filter(); }}, el("option", {value: ""}, "every kind"),
          [...new Set(A.map((row) => row.kind))].sort().map((each) => el("option", {value: each}, each))), shown), box, detail];
});

function histogram(title, low, high, counts, logarithmic, zeros) {
  const width = 320, height = 130, x = d3.scaleLinear([low, high], [34, width - 8]), y = d3.scaleLinear([0, d3.max(counts) || 1], [height - 20, 6]);
  const step = (high - low) / counts.length, edge = (value) => logarithmic ? `1e${realText(value)}` : realText(value);
  return el("figure", {}, svg("svg", {viewBox: `0 0 ${width} ${height}`, width, role: "img", "aria-label": `${title}: from ${edge(low)} to ${edge(high)}`},
      counts.map((count, i) => svg("rect", {x: x(low + i * step), width: Math.max(0.5, x(low + step) - x(low) - 0.7), y: y(count), height: height - 20 - y(count), fill: color("--k0")},
          svg("title", {}, `${edge(low + i * step)} to ${edge(low + (i + 1) * step)}: ${countText(count)}`))),
      svg("line", {x1: 34, x2: width - 8, y1: height - 20, y2: height - 20, class: "axis"}),
      [low, (low + high) / 2, high].map((value, i) => svg("text", {x: x(value), y: height - 6, "text-anchor": ["start", "middle", "end"][i], class: "faint"}, edge(value))),
      svg("text", {x: 30, y: 12, "text-anchor": "end", class: "faint"}, d3.format("~s")(d3.max(counts) || 0))),
      el("figcaption", {}, title + (logarithmic ? `; ${countText(zeros)} zeros apart` : "")));
}
function lineChart(title, values) {
  const width = 320, height = 130, known = values.filter(finite);
  const x = d3.scaleLinear([0, Math.max(1, values.length - 1)], [40, width - 8]), y = d3.scaleLinear([0, d3.max(known) || 1], [height - 20, 6]);
  return el("figure", {}, svg("svg", {viewBox: `0 0 ${width} ${height}`, width, role: "img", "aria-label": `${title}: up to ${realText(d3.max(known))}`},
      svg("path", {d: d3.line().defined(finite).x((_, i) => x(i)).y(y)(values), fill: "none", stroke: color("--k0"), "stroke-width": 1.2}),
      svg("line", {x1: 40, x2: width - 8, y1: height - 20, y2: height - 20, class: "axis"}),
      svg("text", {x: 36, y: 12, "text-anchor": "end", class: "faint"}, realText(d3.max(known)))), el("figcaption", {}, title));
}
// Where each stored piece lies, on the first two dims; a flat range as the rows that it covers.
function chunkMap(row) {
  if (!row.layout || row.layout.length < 1 || !row.numel) return null;
  const rank = row.shape.length, high = rank ? row.shape[0] : 1, wide = rank > 1 ? row.shape[1] : 1;
  const h = Math.max(40, Math.min(180, 320 * high / Math.max(1, wide))), x = d3.scaleLinear([0, wide], [1, 319]), y = d3.scaleLinear([0, high], [1, h - 1]);
  const per = row.numel / Math.max(1, high);
  const boxes = row.layout.slice(0, 1024).map(([origin, extents, begin, end, writer], i) => {
    const flat = begin >= 0;
    const top = flat ? begin / per : origin[0] || 0, rows = flat ? Math.max((end - begin) / per, high / h) : rank ? extents[0] : 1;
    const left = flat || rank < 2 ? 0 : origin[1], columns = flat || rank < 2 ? wide : extents[1];
    const text = flat ? `elements ${countText(begin)} to ${countText(end)}` : `[${origin.map((at, d) => `${at}:${at + extents[d]}`).join(", ")}]`;
    return svg("rect", {x: x(left), y: y(top), width: Math.max(1, x(left + columns) - x(left)), height: Math.max(1, y(top + rows) - y(top)),
                        fill: color(PALETTE[(writer ?? i) % PALETTE.length]), stroke: "var(--page)", "fill-opacity": 0.85},
        svg("title", {}, text + (writer === null ? "" : `, rank ${writer}`)));
  });
  return el("figure", {}, svg("svg", {viewBox: `0 0 320 ${h}`, width: 320, role: "img", "aria-label": `${row.layout.length} stored pieces`}, boxes),
      el("figcaption", {}, `${countText(row.layout.length)} stored piece${row.layout.length === 1 ? "" : "s"} on its shape, coloured by rank`));
}
function tensorPage(row, change) {
  const s = row.stat, charts = [chunkMap(row)];
  if (s && s.linear) charts.push(histogram("Values", s.linear[0], s.linear[1], s.linear[2], false));
  if (s && s.log) charts.push(histogram("Magnitudes, log scale", s.log[0], s.log[1], s.log[3], true, s.log[2]));
  if (s && s.norms && s.norms.length) charts.push(lineChart(s.norms.length < row.shape[0] ? `L2 norm of rows, ${s.norms.length} means of neighbours` : "L2 norm of each row", s.norms));
  const files = row.files.map((at) => D.a.files[at] ? D.a.files[at][0] : "?");
  return [el("h3", {}, row.name), facts([
    ["Type", row.dtype], ["Shape", row.shape.length ? `[${row.shape.join(", ")}]` : "scalar"], ["Elements", countText(row.numel)], ["Bytes", bytesText(row.bytes)],
    ["Kind", row.kind], ["Pieces", row.sharding || "one"], ["Files", files.slice(0, 6).join(", ") + (files.length > 6 ? ` and ${files.length - 6} more` : "")],
    ...(s ? [["Finite", countText(s.finite)], ["NaN, Inf", `${countText(s.nan)}, ${countText(s.inf)}`], ["Zeros", countText(s.zeros)], ["Min, max", `${realText(s.min)}, ${realText(s.max)}`],
             ["Mean, std", `${realText(s.mean)}, ${realText(s.std)}`], ["L2 norm", realText(s.l2)],
             ["Quantiles", D.a.stat.quantiles.map((q, i) => `${q * 100} %: ${realText(s.quantiles[i])}`).join(", ")]] : []),
    ...(change ? [["In the other", change[1] === "values" ? `${countText(change[4])} of ${countText(change[5])} differ, at most by ${realText(change[6])}; relative ${realText(change[8])}, cosine ${realText(change[9])}`
                                                           : `${change[1]}: ${change[2]} / ${change[3]}`]] : [])]),
    s ? null : el("p", {class: "dim"}, D.a.stat ? "No numbers: its type has no arithmetic here." : "Values were not read: --stats reads them."), el("div", {class: "charts"}, charts)];
}

// ---- heat maps: layers down, modules across ----
function layerAndModule(name) {
  const parts = name.split("."), at = parts.findIndex((part) => /^\d+$/.test(part));
  return at < 0 ? ["other", name] : [parts.slice(0, at + 1).join("."), parts.slice(at + 1).join(".")];
}
function heatMap(title, cells, valueText, onOpen) {  // cells: [name, value]
  const known = cells.filter(([, value]) => finite(value) && value > 0);
  if (!cells.length) return el("p", {class: "dim"}, "Nothing to show.");
  const places = cells.map(([name, value]) => [...layerAndModule(name), value, name]);
  const count = (key) => { const all = new Map(); for (const place of places) all.set(place[key], (all.get(place[key]) || 0) + 1); return all; };
  const layers = [...count(0).keys()].sort(natural.compare).slice(0, 400), modules = [...count(1).keys()].sort(natural.compare).slice(0, 120);
  const size = Math.max(7, Math.min(22, Math.floor(820 / Math.max(1, modules.length)))), left = 170, top = 120;
  const range = d3.extent(known, ([, value]) => value), scale = d3.scaleSequentialLog(d3.interpolateViridis).domain(range[0] === range[1] ? [range[0] / 2 || 1e-9, range[1] * 2 || 1] : range);
  const row = new Map(layers.map((layer, i) => [layer, i])), column = new Map(modules.map((module, i) => [module, i]));
  const rects = places.filter((place) => row.has(place[0]) && column.has(place[1])).map(([layer, module, value, name]) => svg("rect", {
    x: left + column.get(module) * size, y: top + row.get(layer) * size, width: size - 1, height: size - 1, "data-name": name, tabindex: -1, role: "button",
    "aria-label": `${name}: ${valueText(value)}`, fill: !finite(value) ? "var(--bad)" : value > 0 ? scale(value) : "var(--line)", style: "cursor:pointer",
    onclick: () => onOpen(name), onkeydown: (event) => { if (event.key === "Enter") onOpen(name); }}, svg("title", {}, `${name}: ${valueText(value)}`)));
  if (rects.length) rects[0].setAttribute("tabindex", 0);
  const width = left + modules.length * size + 90, height = top + layers.length * size + 10, every = Math.max(1, Math.ceil(12 / size));
  const clip = (text, most) => text.length > most ? "…" + text.slice(1 - most) : text;
  const picture = svg("svg", {viewBox: `0 0 ${width} ${height}`, width, role: "group", "aria-label": title,
    onkeydown: (event) => {
      const at = rects.indexOf(document.activeElement), step = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: modules.length, ArrowUp: -modules.length}[event.key];
      if (at < 0 || !step || !rects[at + step]) return;
      event.preventDefault();
      rects[at].setAttribute("tabindex", -1), rects[at + step].setAttribute("tabindex", 0), rects[at + step].focus();
    }},
    layers.map((layer, i) => i % every ? null : svg("text", {x: left - 6, y: top + i * size + size * 0.75, "text-anchor": "end"}, clip(layer, 26))),
    modules.map((module, i) => i % every ? null : svg("text", {transform: `translate(${left + i * size + size * 0.7},${top - 6}) rotate(-45)`}, clip(module, 24))), rects);
  return el("figure", {}, picture, el("figcaption", {}, `${title}: from ${valueText(range[0])} (dark) to ${valueText(range[1])} (bright); red is not finite.` +
      (count(0).size > 400 || count(1).size > 120 ? " Not all layers and modules fit." : "")));
}

if (D.a.optim && D.a.optim.optimizers.length) section("optimizer", "Optimizer", () => {
  const out = [];
  for (const o of D.a.optim.optimizers) {
    out.push(el("h2", {}, `${o.kind} at "${o.root}"`), el("p", {class: "dim"}, `${o.dialect}; ${countText(o.parameters)} parameters. ${o.update_note || ""}`));
    if (o.updates.length) {
      const grown = o.updates.some((row) => row[7] !== null);
      const measures = [["update / weight", 1], ["|m|", 4], ["largest v", 5], ["update", 2]].concat(grown ? [["growth", 7]] : []);
      const holder = el("div");
      const nameOf = (fqn) => A.find((row) => row.kind !== "optim" && (row.name === fqn || row.name.endsWith("." + fqn)))?.name || fqn;
      const draw = (which) => holder.replaceChildren(el("div", {class: "bar"}, measures.map(([title], i) => el("button", {"aria-pressed": i === which, onclick: () => draw(i)}, title))),
          heatMap(measures[which][0], o.updates.map((row) => [row[0], row[measures[which][1]]]), realText, (name) => byName.has(nameOf(name)) && open(nameOf(name))));
      draw(0);
      out.push(holder, el("h3", {}, "Largest updates"), table([["parameter"], ["update / weight", true], ["update", true], ["weight", true], ["|m|", true], ["largest v", true], ["lr", true]].concat(grown ? [["growth of v", true]] : []),
          o.updates.slice(0, 50).map((row) => [byName.has(nameOf(row[0])) ? el("button", {class: "link", onclick: () => open(nameOf(row[0]))}, row[0]) : row[0],
              ...row.slice(1, grown ? 8 : 7).map(realText)]), "largest updates"));
    } else out.push(el("p", {class: "dim"}, D.a.stat ? "No ranking." : "Values were not read: --stats ranks the updates."));
    out.push(el("h3", {}, "Groups"), table([["group", true], ["members", true], ["options"]], o.groups.map((group) => [String(group.index), countText(group.members),
        Object.entries(group.options).map(([key, value]) => `${key} ${JSON.stringify(value)}`).join(", ").slice(0, 400)]), "groups"),
      el("h3", {}, "State"), table([["leaves"], ["step", true], ["parameters", true]], o.leaf_sets.map((set) => [set.leaves || "none", realText(set.step), countText(set.count)]), "state"));
  }
  out.push(el("h2", {}, "Findings"), D.a.optim.findings.length ? findings(D.a.optim.findings.slice(0, 300)) : el("p", {class: "dim"}, "None."));
  return out;
});

if (D.diff) section("compare", "Compare", () => {
  const d = D.diff, changed = d.tensors.filter((row) => row[1] === "values"), others = d.tensors.filter((row) => row[1] !== "values");
  const out = [el("p", {}, d.equal ? "Equal: the same names, types, shapes, elements and values." :
      `${countText(d.tensors.length)} of ${countText(d.tensors_compared + others.length)} tensors differ; ${countText(d.tensors_equal)} are equal. ${countText(d.values.length)} values differ.`),
    facts([["First", D.a.title], ["Second", D.b.title], ["Bytes compared", bytesText(d.bytes)], ["Not compared", d.not_compared ? `${d.not_compared} values hold objects that could not be followed to the end` : null]])];
  if (changed.length) {
    const logs = changed.map((row) => row[8]).filter((value) => finite(value) && value > 0).map(Math.log10);
    out.push(el("h2", {}, "Relative change, layers by modules"), heatMap("relative change", changed.map((row) => [row[0], row[8]]), realText, open));
    if (logs.length) {
      const low = Math.floor(d3.min(logs)), high = Math.max(low + 1, Math.ceil(d3.max(logs))), bins = d3.bin().domain([low, high]).thresholds(d3.range(low, high, (high - low) / 32))(logs);
      out.push(histogram("Tensors by relative change, log scale", low, high, bins.map((bin) => bin.length), true, 0));
    }
    out.push(el("h2", {}, "Ranked"), table([["tensor"], ["relative", true], ["elements", true], ["largest", true], ["L2", true], ["cosine", true]],
        [...changed].sort((a, b) => (finite(b[8]) ? b[8] : Infinity) - (finite(a[8]) ? a[8] : Infinity)).slice(0, 200).map((row) => [byName.has(row[0]) ? el("button", {class: "link", onclick: () => open(row[0])}, row[0]) : row[0],
            realText(row[8]), `${countText(row[4])} of ${countText(row[5])}`, realText(row[6]), realText(row[7]), realText(row[9])]), "ranked changes"));
  }
  if (others.length) out.push(el("h2", {}, "Names, types and shapes"), table([["tensor"], ["what"], ["first"], ["second"]], others.slice(0, 500).map((row) => [row[0], row[1], row[2], row[3]]), "structure"));
  if (d.values.length) out.push(el("h2", {}, "Values"), table([["value"], ["what"], ["first"], ["second"]],
      d.values.slice(0, 500).map((row) => [row[0], row[1], row[2].slice(0, 200), row[3].slice(0, 200)]), "values"));
  return out;
});

start({
  title: D.b ? `${D.a.title} and ${D.b.title}` : D.a.title,
  subtitle: `${D.a.summary.format}, ${countText(A.length)} tensors, ${bytesText(D.a.summary.tensor_bytes)}`,
  tab_title: `${D.a.title} – checkpoint report`,
  opens: D.opens,
});
