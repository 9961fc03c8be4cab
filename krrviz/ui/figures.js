// The figures panel: Vega-Lite charts that share one step. Python sends specifications and
// columns; everything that happens between two such messages happens here.

export default function ({ parentElement, data, setStateValue }) {
  const root = parentElement.querySelector(".figures");
  const panel = (root.panel ??= new Panel(root)); // kept over reruns: its views are updated
  panel.report = (step) => data.report && setStateValue("step", step);
  panel.show(data);
  return () => panel.close();
}

// Vega arrives with a component of its own, once a page load.
function library() {
  if (globalThis.krrvizVega) return Promise.resolve(globalThis.krrvizVega);
  return new Promise((resolve, reject) => {
    const lost = () => reject(new Error("the chart library did not arrive; reload the page"));
    const timer = setTimeout(lost, 20000);
    addEventListener("krrviz-vega", () => {
      clearTimeout(timer);
      resolve(globalThis.krrvizVega);
    }, { once: true });
  });
}

const element = (tag, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};

const rowsOf = (columns) => {
  const names = Object.keys(columns);
  const length = names.length ? columns[names[0]].length : 0;
  return Array.from({ length }, (_, i) => Object.fromEntries(names.map((n) => [n, columns[n][i]])));
};

const readable = (value) => {
  if (value === null || value === undefined) return "overflows";
  const short = value !== 0 && (value < 1e-3 || value >= 1e4) ? value.toExponential(1) : value.toPrecision(2);
  return short.replace("e+", "e");
};

class Panel {
  constructor(root) {
    this.root = root;
    this.cells = new Map();
    this.steps = [0];
    this.step = this.base = 0; // what is shown; what the scrubber returns to when a pointer leaves
    this.pinned = false;
    [this.slider, this.output] = [root.querySelector("input"), root.querySelector("label span")];
    [this.playButton, this.pinButton] = [root.querySelector(".play"), root.querySelector(".pin")];
    this.slider.oninput = () => { this.pause(); this.pin(false); this.choose(this.steps[this.slider.value]); };
    this.slider.onchange = () => this.report(this.base);
    this.playButton.onclick = () => (this.timer ? this.pause() : this.play());
    this.pinButton.onclick = () => this.pin(false);
    this.escape = (event) => event.key === "Escape" && this.pin(false);
    addEventListener("keydown", this.escape);
    this.resizes = new ResizeObserver(() => this.resize());
    this.resizes.observe(root);
    root.krrviz = {
      names: () => [...this.cells.keys()],
      rows: (name) => this.cells.get(name).rows(),
      step: () => this.step,
      setStep: (step) => this.choose(step),
    };
  }

  close() {
    this.pause();
    removeEventListener("keydown", this.escape);
    this.resizes.disconnect();
    for (const cell of this.cells.values()) cell.close();
  }

  // Newer data replaces data that still waits, so that a drag never queues up work.
  async show(data) {
    this.next = data;
    if (this.busy) return;
    [this.busy, this.root.dataset.ready] = [true, "false"];
    const problem = this.root.querySelector(".problem");
    try {
      const embed = await library();
      await document.fonts.ready; // axes are laid out by measuring text
      while (this.next) {
        const latest = this.next;
        this.next = null;
        await this.draw(latest, embed);
      }
      problem.hidden = true;
      this.root.dataset.ready = "true";
    } catch (error) {
      console.error(error);
      problem.textContent = `The charts could not be drawn: ${error.message}`;
      problem.hidden = false;
      this.root.dataset.ready = "error";
    } finally {
      this.busy = false;
    }
  }

  async draw(data, embed) {
    const theme = this.theme(data.themes);
    const names = new Set(data.figures.map((figure) => figure.name));
    for (const [name, cell] of this.cells) if (!names.has(name)) { cell.close(); this.cells.delete(name); }
    const rows = { facets: [], wide: [] };
    for (const figure of data.figures) {
      let cell = this.cells.get(figure.name);
      if (!cell) this.cells.set(figure.name, (cell = new Cell(this, figure.name)));
      cell.read(figure);
      rows[cell.meta.row].push(cell.element);
    }
    for (const [row, wanted] of Object.entries(rows)) {
      const grid = this.root.querySelector(`.${row}`);
      if (wanted.some((element, i) => grid.children[i] !== element)) grid.replaceChildren(...wanted);
    }
    this.slide(data);
    await Promise.all([...this.cells.values()].map((cell) => cell.draw(embed, theme)));
    this.markLeftmost();
    this.label();
  }

  theme(themes) {
    const style = getComputedStyle(this.root);
    const value = (name) => style.getPropertyValue(name).trim();
    const [ink, paper] = [value("--st-text-color"), value("--st-background-color")];
    const mode = luminance(paper) < 0.4 ? "dark" : "light";
    const ramp = themes[mode].range.ramp;
    this.root.style.setProperty("--ramp", `linear-gradient(to right in oklab, ${ramp.join(",")})`);
    // The charts' own ink and paper give way to those of the page, wherever they stand.
    const swap = { [themes[mode].style.now.color]: ink, [themes[mode].background]: paper };
    const config = JSON.parse(JSON.stringify(themes[mode]), (_, v) => swap[v] ?? v);
    return { ...config, font: value("--st-font") || "sans-serif" };
  }

  // The scrubber moves over the steps that the tables hold; at its end it stays at the end.
  slide(data) {
    const steps = new Set();
    for (const cell of this.cells.values())
      for (const step of cell.tables[cell.meta.tables[0]].step ?? []) steps.add(step);
    const atEnd = this.base === this.steps.at(-1);
    this.steps = [...steps].sort((a, b) => a - b);
    if (!this.steps.length) this.steps = [0];
    this.total = data.steps;
    this.slider.max = this.steps.length - 1;
    if (data.step !== null && data.step !== this.asked) this.base = data.step;
    else if (atEnd) this.base = this.steps.at(-1);
    this.asked = data.step;
    this.base = this.step = this.snap(this.base);
  }

  snap(step) {
    return this.steps.reduce((best, s) => (Math.abs(s - step) < Math.abs(best - step) ? s : best));
  }

  choose(step) {
    this.base = this.snap(step);
    return this.to(this.base);
  }

  async to(step) {
    if (step === this.step) return;
    this.step = step;
    this.label();
    await Promise.all([...this.cells.values()].map((cell) => cell.view?.signal("step", step).runAsync()));
  }

  label() {
    this.slider.value = this.steps.indexOf(this.step);
    this.output.textContent = `Step t = ${this.step} of ${this.total}`;
    this.slider.ariaValueText = this.output.textContent;
    for (const cell of this.cells.values()) cell.value(this.step);
  }

  pin(pinned) {
    if (this.pinned === pinned) return;
    this.pinned = pinned;
    this.pinButton.hidden = !pinned;
    if (pinned) { this.pause(); this.base = this.step; this.report(this.base); }
  }

  play() {
    this.pin(false);
    if (this.base === this.steps.at(-1)) this.choose(this.steps[0]);
    // Who asks for less motion gets single steps, not an animation.
    const pause = matchMedia("(prefers-reduced-motion: reduce)").matches ? 1000 : 140;
    this.timer = setInterval(() => {
      const next = this.steps.indexOf(this.base) + 1;
      if (next < this.steps.length) this.choose(this.steps[next]);
      if (next >= this.steps.length - 1) { this.pause(); this.report(this.base); }
    }, pause);
    [this.playButton.textContent, this.playButton.ariaLabel] = ["❚❚", "Pause the steps"];
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    [this.playButton.textContent, this.playButton.ariaLabel] = ["▶", "Play the steps"];
  }

  resize() {
    this.markLeftmost();
    for (const cell of this.cells.values()) cell.fit();
  }

  // Only the first chart of a row of facets spells out the axis they share.
  markLeftmost() {
    for (const cell of this.cells.values())
      cell.signal("leftmost", cell.meta.row === "wide" || cell.element.offsetLeft === 0);
  }
}

class Cell {
  constructor(panel, name) {
    [this.panel, this.name] = [panel, name];
    this.holder = element("div", { className: "view" });
    this.holder.role = "img";
    this.legend = element("div", { className: "legend" });
    this.button = element("button", { className: "download", type: "button", textContent: "⋯" });
    this.menu = element("div", { className: "menu", popover: "auto" },
      ...["PNG", "SVG", "CSV"].map((kind) => element("button", {
        type: "button", textContent: kind, onclick: () => { this.menu.hidePopover(); this.save(kind); },
      })));
    this.button.popoverTargetElement = this.menu;
    this.menu.onbeforetoggle = () => {
      const { right, bottom } = this.button.getBoundingClientRect();
      Object.assign(this.menu.style, { top: `${bottom}px`, left: `${Math.max(4, right - 72)}px` });
    };
    this.element = element("figure", {}, this.holder, this.legend, this.button, this.menu);
    [this.hidden, this.values] = [new Set(), []];
    this.holder.onpointermove = (event) => this.point(event);
    this.holder.onpointerleave = () => panel.pinned || panel.timer || panel.to(panel.base);
    this.holder.onclick = (event) => {
      if (panel.pinned) panel.pin(false);
      else if (this.pointed(event) !== undefined) panel.pin(true);
    };
  }

  read({ spec, tables, alt }) {
    [this.spec, this.tables, this.alt, this.meta] = [spec, tables, alt, spec.usermeta];
    this.button.ariaLabel = `Download ${spec.title}`;
    this.curves = null;
  }

  close() {
    this.view?.finalize();
    this.element.remove();
  }

  // A view is built when its structure or the theme changes; otherwise only its data moves.
  async draw(embed, theme) {
    const { params, ...fixed } = this.spec;
    const values = Object.fromEntries(params.map(({ name, value }) => [name, value]));
    Object.assign(values, { step: this.panel.step, hidden: [...this.hidden] });
    delete values.leftmost;
    const structure = JSON.stringify([fixed, params.map(({ name }) => name), theme]);
    if (structure !== this.structure) {
      this.view?.finalize();
      this.structure = structure;
      this.embed = (holder, width, height, legend) => embed(holder, {
        ...this.spec, width, height, datasets: this.datasets(),
        autosize: { type: "fit", contains: "padding" },
        padding: { left: 2, top: 4, right: 6, bottom: 2 },
        config: { ...theme, legend: { ...theme.legend, disable: !legend } },
      }, {
        mode: "vega-lite", actions: false, defaultStyle: false, hover: false, renderer: "canvas",
        tooltip: (_, event, item, value) => this.tip(event, value),
      });
      const { clientWidth: width, clientHeight: height } = this.holder;
      this.size = `${width} ${height}`;
      ({ view: this.view } = await this.embed(this.holder, width, height, false));
      this.drawLegend();
    } else {
      for (const [name, rows] of Object.entries(this.datasets())) this.view.data(name, rows);
    }
    this.set(this.view, values);
    await this.view.runAsync();
    this.holder.ariaLabel = this.alt;
    this.fit();
  }

  datasets() {
    return Object.fromEntries(Object.entries(this.tables).map(([name, t]) => [name, rowsOf(t)]));
  }

  set(view, values) {
    for (const { name } of this.spec.params) if (name in values) view.signal(name, values[name]);
  }

  signal(name, value) {
    if (this.view && this.spec.params.some((param) => param.name === name))
      this.view.signal(name, value).runAsync();
  }

  fit() {
    const [width, height] = [this.holder.clientWidth, this.holder.clientHeight];
    if (!this.view || !width || `${width} ${height}` === this.size) return;
    this.size = `${width} ${height}`; // the view's own width becomes that of the plot inside
    this.view.width(width).height(height).runAsync();
  }

  rows() {
    const names = this.meta.tables;
    return names.flatMap((table) => this.view.data(table).map((row) => ({
      ...(names.length > 1 && { table }), ...row,
    })));
  }

  // Legend entries are buttons: they say how a line looks, its value now, and hide it.
  drawLegend() {
    this.values = [];
    this.element.classList.toggle("strip", !this.meta.value); // without values it needs no column
    this.legend.replaceChildren(...(this.meta.legend ?? []).map(({ key, title, color, dash, width, shape }) => {
      const line = width ? `<path d="M0,6H28" stroke="${color}" stroke-width="${width}" stroke-dasharray="${dash ?? ""}"/>` : "";
      const mark = shape ? `<path d="${shape}" transform="translate(${width ? 14 : 6},6) scale(5)" fill="${color}"/>` : "";
      const button = element("button", { type: "button", innerHTML: `<svg width="${width ? 28 : 12}" height="12" aria-hidden="true">${line}${mark}</svg>` });
      const value = element("span", { className: "value" });
      button.append(title, value);
      this.values.push({ key, value });
      button.ariaPressed = String(!this.hidden.has(key));
      button.onclick = () => {
        if (!this.hidden.delete(key)) this.hidden.add(key);
        button.ariaPressed = String(!this.hidden.has(key));
        this.signal("hidden", [...this.hidden]);
      };
      return button;
    }));
  }

  value(step) {
    if (!this.meta.value) return;
    const { method, step: at, [this.meta.value]: field } = this.tables[this.meta.tables[0]];
    for (const { key, value } of this.values) {
      const row = at.findIndex((s, i) => s === step && method[i] === key);
      value.textContent = row < 0 ? "" : readable(field[row]);
    }
  }

  // The step of the curve under the pointer: the nearest one at the pointer's x, within 14 px.
  pointed(event) {
    const { x: xName, y: yName } = this.meta.hover ?? {};
    if (!this.view || !xName) return undefined;
    const box = this.holder.getBoundingClientRect();
    const [left, top] = this.view.origin();
    const [px, py] = [event.clientX - box.left - left, event.clientY - box.top - top];
    const x = this.view.scale("x");
    if (px < x.range()[0] - 8 || px > x.range()[1] + 8 || py < 0) return undefined;
    if (!yName) return this.panel.snap(x.invert(px));
    const y = this.view.scale("y");
    if (!this.curves) {
      this.curves = new Map();
      const columns = this.tables[this.meta.tables[0]];
      columns.step.forEach((step, i) => {
        if (!this.curves.has(step)) this.curves.set(step, []);
        this.curves.get(step).push([columns[xName][i], columns[yName][i]]);
      });
    }
    let [best, nearest] = [14, undefined];
    for (const [step, points] of this.curves) {
      const right = points.findIndex(([value]) => x(value) >= px);
      const [a, b] = [points[Math.max(0, right - 1)], points.at(right)];
      const [xa, xb] = [x(a[0]), x(b[0])];
      const share = xb > xa ? Math.min(1, Math.max(0, (px - xa) / (xb - xa))) : 0;
      const [ya, yb] = [a, b].map(([, value]) => y(Math.min(Math.max(value ?? 1e300, 1e-300), 1e300)));
      const distance = Math.abs(ya + share * (yb - ya) - py);
      if (distance < best) [best, nearest] = [distance, step];
    }
    return nearest;
  }

  point(event) {
    if (this.panel.pinned || this.panel.timer || event.pointerType === "touch") return;
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.panel.to(this.pointed(event) ?? this.panel.base));
  }

  tip(event, value) {
    const tip = this.panel.root.querySelector(".tip");
    tip.hidden = !value;
    if (!value) return;
    tip.textContent = Object.entries(value).map(([name, text]) => `${name}: ${text}`).join("\n");
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.min(event.clientX + 12, innerWidth - width - 4)}px`;
    tip.style.top = `${Math.max(4, event.clientY - height - 10)}px`;
  }

  // A saved picture stands alone: of one size wherever it was made, and with its own legend.
  async save(kind) {
    const name = `${this.name}.${kind.toLowerCase()}`;
    if (kind === "CSV") return download(name, `data:text/csv;charset=utf-8,${encodeURIComponent(table(this.rows()))}`);
    const { view } = await this.embed(element("div"), 640, 400, true);
    this.set(view, Object.fromEntries(this.spec.params.map(({ name }) => [name, this.view.signal(name)])));
    if ("leftmost" in view.getState().signals) view.signal("leftmost", true);
    download(name, await view.toImageURL(kind.toLowerCase(), 2));
    view.finalize();
  }
}

function table(rows) {
  const names = [...new Set(rows.flatMap(Object.keys))];
  const cell = (value) => (/[",\n]/.test(value ?? "") ? `"${value.replaceAll('"', '""')}"` : value ?? "");
  return [names, ...rows.map((row) => names.map((name) => row[name]))].map((r) => r.map(cell).join(",")).join("\n");
}

const download = (name, href) => element("a", { download: name, href }).click();

// Relative luminance of any CSS colour, by painting it.
function luminance(color) {
  const context = document.createElement("canvas").getContext("2d");
  context.fillStyle = color;
  context.fillRect(0, 0, 1, 1);
  const [r, g, b] = context.getImageData(0, 0, 1, 1).data;
  return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
}
