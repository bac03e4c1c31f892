// The page's script: copy, choose, sort, search and slide. No framework, no requests.
"use strict";
const $ = (selector, within = document) => within.querySelector(selector);
const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
const embedded = (id) => { const element = document.getElementById(id); return element ? JSON.parse(element.textContent) : null; };
const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};

// --- measures: copy the table ----------------------------------------------------------------------------------
const copyText = async (text) => {
  try { await navigator.clipboard.writeText(text); return true; } catch { /* not allowed here: use the older command */ }
  const area = make("textarea", { "aria-hidden": "true", style: "position:fixed;opacity:0" });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
};
for (const button of $$(".copy")) {
  button.addEventListener("click", async () => {
    const done = await copyText(embedded(button.dataset.copies));
    button.focus();
    $("#copied").textContent = done ? `Copied as ${button.dataset.copies === "csv" ? "CSV" : "LaTeX"}.` : "The browser does not allow copying.";
  });
}

// --- matrices and buffer: show one at a time -------------------------------------------------------------------
for (const radio of $$("input[name=metric]")) {
  radio.addEventListener("change", () => { for (const part of $$("[data-metric]")) part.hidden = part.dataset.metric !== radio.value; });
}
for (const chooser of $$(".chooser")) {
  const show = () => { for (const panel of $$(`[data-panel=${chooser.dataset.panels}]`)) panel.hidden = panel.dataset.name !== chooser.value; };
  chooser.addEventListener("change", show);
  show(); // a browser may restore another choice when the page is reopened
}

// --- curves: highlight some methods, and grey the others --------------------------------------------------------
const boxes = $$("[data-highlight]");
if (boxes.length) {
  const charts = $$("#curves .chart, #objective .chart").filter((chart) => $(".method", chart));
  const highlight = () => {
    const chosen = new Set(boxes.filter((box) => box.checked).map((box) => box.dataset.highlight));
    for (const chart of charts) {
      chart.classList.toggle("choosing", chosen.size > 0); // with none chosen, all are in colour
      for (const part of $$(".method", chart)) part.classList.toggle("chosen", chosen.has(part.dataset.method));
    }
  };
  for (const box of boxes) box.addEventListener("change", highlight);
  for (const chart of charts) {
    chart.addEventListener("click", (event) => {
      const part = event.target.closest(".method"), box = part && boxes.find((one) => one.dataset.highlight === part.dataset.method);
      if (box) { box.checked = !box.checked; highlight(); }
    });
  }
  highlight();
}

// --- every subject: sort, search, one page at a time --------------------------------------------------------------
const subjectTable = (data) => {
  const WORDS = data.words.length, PAGE = 25;
  const state = { column: WORDS, down: false, page: 0 };
  const text = (row, column) => data.words[column][row[column]];
  const line = new Map(data.rows.map((row) => [row, data.words.map((_, column) => text(row, column)).join(" ").toLowerCase()]));
  const metric = (row, name) => row[WORDS + data.metrics.indexOf(name)];
  const missed = (row) => metric(row, "asd") === null && metric(row, "dsc") < 100;
  const failed = (row) => missed(row) || metric(row, "dsc") < 50;
  const atEnd = (row) => text(row, 3) === data.ends[row[1]];
  // Hide a column with the same word in every row, to save room on a phone; site and subject stay.
  const columns = data.heads.map((_, column) => column).filter((c) => c > 3 || data.words[c].length > 1);
  let shown = [];

  const compare = (a, b) => {
    const c = state.column;
    if (c < WORDS) return text(a, c).localeCompare(text(b, c), undefined, { numeric: true });
    if (a[c] === null || b[c] === null) return (a[c] === null) - (b[c] === null);
    return a[c] - b[c];
  };
  const select = () => {
    const words = $("#search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const end = $("#when").value === "end", only = $("#failed").checked;
    shown = data.rows.filter((row) => (!end || atEnd(row)) && (!only || failed(row)) && words.every((word) => line.get(row).includes(word)));
    shown.sort((a, b) => (state.down ? -compare(a, b) : compare(a, b)));
    draw();
  };
  const number = (value, place) => (value === null ? "–" : value.toFixed(data.digits[place]).replace("-", "−"));
  const draw = () => {
    const pages = Math.max(1, Math.ceil(shown.length / PAGE));
    state.page = Math.min(state.page, pages - 1);
    const rows = shown.slice(state.page * PAGE, (state.page + 1) * PAGE).map((row) => {
      const tr = make("tr", failed(row) ? { class: "failed" } : {});
      for (const c of columns) tr.append(c < WORDS ? make("td", { class: "text" }, text(row, c)) : make("td", {}, number(row[c], c - WORDS)));
      return tr;
    });
    $("#table tbody").replaceChildren(...rows);
    $("#count").textContent = `${shown.length} of ${data.rows.length} rows, ${shown.filter(failed).length} failures`;
    $("#page").textContent = `page ${state.page + 1} of ${pages}`;
    $("#back").disabled = state.page === 0;
    $("#on").disabled = state.page >= pages - 1;
  };
  const heads = columns.map((column) => {
    const button = make("button", { type: "button" }, data.heads[column]);
    const th = make("th", column < WORDS ? { scope: "col", class: "text" } : { scope: "col" }, button);
    button.addEventListener("click", () => {
      state.down = state.column === column ? !state.down : false;
      state.column = column;
      state.page = 0;
      mark();
      select();
    });
    return th;
  });
  const mark = () => heads.forEach((th, place) => {
    const button = th.firstChild, column = columns[place];
    th.removeAttribute("aria-sort");
    button.textContent = data.heads[column];
    if (column !== state.column) return;
    th.setAttribute("aria-sort", state.down ? "descending" : "ascending");
    button.append(state.down ? " ↓" : " ↑");
  });
  $("#table thead tr").replaceChildren(...heads);
  for (const [id, event] of [["search", "input"], ["when", "change"], ["failed", "change"]]) {
    document.getElementById(id).addEventListener(event, () => { state.page = 0; select(); });
  }
  $("#back").addEventListener("click", () => { state.page -= 1; draw(); });
  $("#on").addEventListener("click", () => { state.page += 1; draw(); });
  mark();
  select();
};
const rows = embedded("rows");
if (rows) subjectTable(rows);

// --- pictures: one slider for all methods ---------------------------------------------------------------------------
const SVG = "http://www.w3.org/2000/svg";
const KINDS = ["truth", "end", "after"];
const showGallery = (element, part, number) => {
  const slider = $("input[type=range]", element), output = $("output", element), holder = $(".tiles", element);
  let subject, place, tiles;
  const visible = () => Object.fromEntries($$("[data-contour]", element).map((box) => [box.dataset.contour, box.checked]));
  const draw = () => {
    const n = Number(slider.value), see = visible();
    output.textContent = `${subject.first + n + 1}`;
    for (const tile of tiles) {
      tile.image.src = subject.slices[n];
      for (const kind of KINDS) {
        tile.paths[kind].setAttribute("d", kind === "truth" ? subject.truth[n] : tile.method[kind][n]);
        tile.paths[kind].style.display = see[kind] ? "" : "none";
      }
    }
  };
  const choose = (chosen) => {
    place = chosen;
    subject = part.subjects[chosen];
    slider.max = subject.slices.length - 1;
    slider.value = subject.middle;
    tiles = subject.methods.map((method) => {
      const image = make("img", { alt: `Slice of ${subject.case}, ${method.name}: DSC ${method.dsc[0]} % ${part.after}, ${method.dsc[1]} % ${part.end}` });
      const svg = document.createElementNS(SVG, "svg");
      svg.setAttribute("viewBox", `0 0 ${subject.box[0]} ${subject.box[1]}`);
      svg.setAttribute("preserveAspectRatio", "none");
      svg.setAttribute("aria-hidden", "true");
      const paths = {};
      for (const kind of KINDS) {
        paths[kind] = document.createElementNS(SVG, "path");
        paths[kind].setAttribute("class", kind);
        svg.append(paths[kind]);
      }
      const caption = make("figcaption", {}, make("b", {}, method.name), `DSC ${method.dsc[0].toFixed(1)} % → ${method.dsc[1].toFixed(1)} %`);
      return { method, image, paths, figure: make("figure", { class: "tile" }, make("div", { class: "frame" }, image, svg), caption) };
    });
    holder.replaceChildren(...tiles.map((tile) => tile.figure));
    draw();
  };
  slider.addEventListener("input", draw);
  for (const box of $$("[data-contour]", element)) box.addEventListener("change", draw);
  for (const radio of $$("input[type=radio]", element)) radio.addEventListener("change", () => choose(Number(radio.value)));
  $(".open-viewer", element).addEventListener("click", () => openViewer(number, place));
  choose(0);
  $("input[type=radio]", element).checked = true;
};
const pictures = embedded("gallery");
if (pictures) $$(".gallery").forEach((element, number) => showGallery(element, pictures.parts[number], number));

// --- viewer: unpacked and started when it is first opened -------------------------------------------------------------
let niivueCode = null, scans = null, view = null;
const unpacked = async () => {
  const packed = Uint8Array.from(atob(document.getElementById("niivue").textContent), (c) => c.charCodeAt(0));
  const code = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  const url = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
  await new Promise((done, failed) => {
    const script = make("script", { src: url });
    script.onload = done;
    script.onerror = failed;
    document.head.append(script);
  });
  URL.revokeObjectURL(url);
};
const hasWebGL2 = () => { try { return Boolean(document.createElement("canvas").getContext("webgl2")); } catch { return false; } };
const image = (base64, name, colormap, opacity) => window.niivue.NVImage.loadFromBase64({ base64, name, colormap, opacity, cal_min: colormap === "gray" ? 0 : 0.5, cal_max: colormap === "gray" ? 255 : 1 });
const showMask = async (scan, number) => {
  if (view.volumes.length > 2) view.removeVolume(view.volumes[2]);
  view.addVolume(await image(scan.masks[number].data, "prediction.nii.gz", "prediction", 0.55));
};
const showScan = async (scan) => {
  niivueCode ??= unpacked();
  await niivueCode;
  if (!view) {
    view = new window.niivue.Niivue({ backColor: [0, 0, 0, 1], crosshairColor: [1, 1, 1, 0.6], show3Dcrosshair: false, logLevel: "error", dragAndDropEnabled: false });
    await view.attachToCanvas($("#viewer-canvas"));
    const flat = (r, g, b) => ({ R: [r, r], G: [g, g], B: [b, b], A: [0, 255], I: [0, 255] });
    view.addColormap("truth", flat(86, 180, 233));
    view.addColormap("prediction", flat(255, 127, 14));
    view.setSliceType(view.sliceTypeMultiplanar);
    view.overlayOutlineWidth = 0.35;
  }
  while (view.volumes.length) view.removeVolume(view.volumes[view.volumes.length - 1]);
  view.addVolume(await image(scan.scan, "scan.nii.gz", "gray", 1));
  view.addVolume(await image(scan.truth, "truth.nii.gz", "truth", 0.55));
  await showMask(scan, 0);
};
const openViewer = async (part, subject) => {
  scans ??= embedded("scans");
  const scan = scans[part][subject], status = $("#viewer-status"), picture = $("#viewer-picture");
  $("#viewer-head").textContent = scan.title;
  $("#viewer-mask").replaceChildren(...scan.masks.map((mask, number) => make("option", { value: number }, mask.label)));
  $("#viewer").showModal();
  const fallBack = (why) => {
    picture.src = scan.picture;
    picture.alt = `${scan.title} in three planes, with the true and the predicted contour`;
    picture.hidden = false;
    $("#viewer-canvas").hidden = true;
    $("#viewer-mask").disabled = true;
    status.textContent = why;
  };
  if (!hasWebGL2()) return fallBack("This browser has no WebGL2, so this is a still picture.");
  status.textContent = "Opening…";
  $("#viewer-mask").onchange = (event) => showMask(scan, Number(event.target.value));
  try {
    await showScan(scan);
    status.textContent = "";
  } catch (error) {
    fallBack("The viewer could not start, so this is a still picture.");
  }
};
if ($("#viewer")) $("#viewer-close").addEventListener("click", () => $("#viewer").close());
