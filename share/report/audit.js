// The page of `ckpt-inspect audit --html`, behind shell.js: its data is the audit's document.
const A = D.audit;
const MEASURES = {norm: "Norm of the weights", update: "Change since the checkpoint before, against the norm", v_max: "Largest second moment"};

const lineColor = (at) => color(PALETTE[at % PALETTE.length]);
const counted = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;
function stateOf(row) {
  if (row.refused) return ["not understood", "--dim"];
  if (!row.complete) return ["damaged", "--bad"];
  if (row.same_as) return [`as ${row.same_as}`, "--bad"];
  return row.sound ? ["sound", "--good"] : ["unsound", "--bad"];
}
const findingsOf = (name) => A.findings.filter((note) => note.file === name && note.severity !== "info");

const findings = (list) => list.map((note) => el("div", {class: `finding ${note.severity}`, "data-code": note.code}, el("b", {}, note.code),
    note.file ? `${note.file}: ` : null, note.message, note.tensor ? ` (${note.tensor})` : null));
function table(id, columns, rows, caption) {
  return el("table", {id}, el("caption", {class: "unseen"}, caption),
      el("thead", {}, el("tr", {}, columns.map(([name, number]) => el("th", {class: number ? "number" : null, scope: "col"}, name)))),
      el("tbody", {}, rows.map(({cells, ...attributes}) => el("tr", attributes,
          cells.map((cell, c) => el("td", {class: columns[c][1] ? "number" : c === 0 ? "name" : null}, cell))))));
}

section("overview", "Overview", () => {
  const s = A.sampling, worse = A.findings.filter((note) => note.severity !== "info"), rest = A.findings.filter((note) => note.severity === "info");
  return [
    facts([["Verdict", A.ok ? "no error" : counted(A.findings.filter((note) => note.severity === "error").length, "error")],
           ["Resume from", A.newest_sound || "none is sound"], ["Newest whole", A.newest_whole], ["Pointer", A.pointer && `${A.pointer} names ${A.pointer_target}`],
           ["Could go", A.retention.length ? `${counted(A.retention.length, "checkpoint")}, ${bytesText(A.retention_bytes)}` : null],
           ["Read", s && (s.every > 1 ? `${bytesText(s.bytes_read)} of ${bytesText(s.bytes)}: every ${s.every}th block. With 95 % confidence what fills ${(100 * s.seen_share).toFixed(1)} % of a tensor's blocks was seen; norms are within ${(100 * s.norm_error).toFixed(2)} %.`
               : `${bytesText(s.bytes_read)} of tensors`)]]),
    el("h2", {}, "Findings"), worse.length ? findings(worse) : el("p", {class: "dim"}, "None."),
    rest.length ? [el("h2", {}, "Remarks"), findings([...rest, ...A.notes])] : null,
    D.left_out ? el("p", {class: "dim"}, D.left_out) : null];
});

section("checkpoints", "Checkpoints", () => {
  const detail = el("div", {id: "detail", tabindex: "-1"});
  function present(row) {
    const [state] = stateOf(row), own = findingsOf(row.name);
    detail.replaceChildren(el("div", {class: "detail"}, el("h3", {}, row.name), facts([
      ["State", state], ["Problem", row.problem], ["Format", row.format], ["Ranks", row.world_size], ["Bytes", bytesText(row.bytes)], ["Tensors", row.tensors],
      ["Step", realText(row.step)], ["Stored step", row.stored_step_source && `${realText(row.stored_step)} (${row.stored_step_source})`],
      ["Optimizer's step", realText(row.optimizer_step)], ["Content", row.root], ["Path", row.path]]), findings(own)));
    detail.focus();
  }
  const rows = A.checkpoints.map((row, at) => {
    const [state, tint] = stateOf(row);
    return {cells: [row.name + (row.latest ? ` ← ${A.pointer}` : ""), realText(row.step), realText(row.stored_step), realText(row.optimizer_step), row.format, bytesText(row.bytes),
                    el("span", {style: `color:var(${tint})`}, state), String(findingsOf(row.name).length)],
            tabindex: at === 0 ? 0 : -1, "data-name": row.name, onclick: () => present(row), onkeydown: (event) => {
              if (event.key === "Enter") return present(row);
              const step = {ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling"}[event.key];
              const next = step && event.currentTarget[step];
              if (next) event.preventDefault(), next.focus();
            }};
  });
  return [el("div", {class: "scroll"}, table("checkpoint-table", [["checkpoint"], ["step", true], ["stored", true], ["optimizer", true], ["format"], ["bytes", true], ["state"], ["findings", true]],
      rows, "Checkpoints")), detail,
    A.retention.length ? [el("h2", {}, "What could go"), table("retention-table", [["checkpoint"], ["bytes", true], ["why"]],
        A.retention.map((row) => ({cells: [row.name, bytesText(row.bytes), row.reason]})), "What could go")] : null];
});

// ---- lines of layers ----
function lines(series, measure, logarithmic, chosen) {
  const at = A.checkpoints.map((row, i) => ({i, row})).filter(({row}) => row.series === series);
  const x = (i) => finite(A.checkpoints[i].step) ? A.checkpoints[i].step : i;
  const layers = A.layers.filter((layer) => layer.series === series && (chosen === "" || layer.name === chosen));
  const shown = (v) => finite(v) && (!logarithmic || v > 0);
  const values = layers.flatMap((layer) => at.map(({i}) => layer[measure][i]).filter(shown));
  if (!values.length) return el("p", {class: "dim"}, "No checkpoint of this series has it.");
  const steps = at.map(({i}) => x(i)), W = 1000, H = 380, left = 70, bottom = 34;
  const sx = d3.scaleLinear().domain(d3.extent(steps)).range([left, W - 16]);
  const sy = (logarithmic ? d3.scaleLog() : d3.scaleLinear()).domain(d3.extent(values)).nice().range([H - bottom, 12]);
  const path = d3.line().defined(([, v]) => shown(v)).x(([s]) => sx(s)).y(([, v]) => sy(v));
  const bad = at.filter(({row}) => !row.sound);
  return el("figure", {}, svg("svg", {viewBox: `0 0 ${W} ${H}`, width: W, role: "img", "aria-label": `${MEASURES[measure]} over steps, ${layers.length} layers`},
      bad.map(({i, row}) => svg("line", {x1: sx(x(i)), x2: sx(x(i)), y1: 12, y2: H - bottom, stroke: "var(--bad)", "stroke-dasharray": "3 3"}, svg("title", {}, `${row.name}: ${stateOf(row)[0]}`))),
      sy.ticks(6).slice(0, 12).map((v) => svg("g", {}, svg("line", {class: "axis", x1: left, x2: W - 16, y1: sy(v), y2: sy(v)}), svg("text", {class: "faint", x: left - 6, y: sy(v) + 4, "text-anchor": "end"}, realText(v)))),
      sx.ticks(8).map((s) => svg("text", {class: "faint", x: sx(s), y: H - 12, "text-anchor": "middle"}, realText(s))),
      layers.map((layer, l) => {
        const points = at.map(({i}) => [x(i), layer[measure][i]]);
        return svg("g", {"data-layer": layer.name}, svg("title", {}, layer.name),
            svg("path", {d: path(points), fill: "none", stroke: lineColor(l), "stroke-width": 1.6}),
            points.filter(([, v]) => shown(v)).map(([s, v]) => svg("circle", {cx: sx(s), cy: sy(v), r: 2.6, fill: lineColor(l), "data-value": v}, svg("title", {}, `${layer.name}, step ${realText(s)}: ${realText(v)}`))));
      })),
    el("figcaption", {}, `${MEASURES[measure]}. Dashed: a checkpoint with an error.`));
}
if (A.layers.length) section("lines", "Layers over steps", () => {
  const all = [...new Set(A.layers.map((layer) => layer.series))];
  let series = all[0], measure = "norm", logarithmic = false, chosen = "";
  const holder = el("div", {id: "picture"}), bar = el("div", {class: "bar"});
  const names = () => A.layers.filter((layer) => layer.series === series);
  function draw() {
    bar.replaceChildren(
        ...Object.keys(MEASURES).map((each) => el("button", {id: `measure-${each}`, "aria-pressed": String(each === measure), onclick: () => { measure = each; draw(); bar.querySelector(`#measure-${each}`).focus(); }}, each)),
        el("button", {id: "log", "aria-pressed": String(logarithmic), onclick: () => { logarithmic = !logarithmic; draw(); bar.querySelector("#log").focus(); }}, "logarithmic"),
        el("label", {}, "layer ", el("select", {id: "layer", onchange: (event) => { chosen = event.target.value; draw(); bar.querySelector("#layer").focus(); }},
            el("option", {value: ""}, "all"), names().map((layer) => el("option", {value: layer.name, selected: layer.name === chosen}, layer.name)))),
        ...(all.length > 1 ? [el("label", {}, "series ", el("select", {id: "series", onchange: (event) => { series = event.target.value; chosen = ""; draw(); }},
            all.map((each) => el("option", {value: each, selected: each === series}, each))))] : []));
    const rows = names().filter((layer) => chosen === "" || layer.name === chosen).map((layer, l) => {
      const values = layer[measure].filter((v) => v !== null);
      return {cells: [el("span", {}, el("span", {"aria-hidden": true, style: `color:${lineColor(l)}`}, "■ "), layer.name), realText(values[0]), realText(values.at(-1)),
                      realText(d3.max(values.filter(finite)))], "data-layer": layer.name};
    });
    holder.replaceChildren(lines(series, measure, logarithmic, chosen), table("layer-table", [["layer"], ["first", true], ["last", true], ["most", true]], rows, MEASURES[measure]));
  }
  draw();
  return [bar, holder];
});

start({
  title: A.path,
  subtitle: `${counted(A.checkpoints.length, "checkpoint")}, audited ${A.deep ? "with" : "without"} their values`,
  tab_title: `${A.path} – audit`,
});
