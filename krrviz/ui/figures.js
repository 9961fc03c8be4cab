// The figures panel: Vega-Lite charts that share one step. Python sends specifications and
// columns; all that happens between two such messages happens here.

export default function ({ parentElement, data, setStateValue, setTriggerValue }) {
  const root = parentElement.querySelector(".figures");
  const panel = (root.panel ??= new Panel(root)); // kept over reruns: its views are updated
  panel.report = () => data.led || setStateValue("step", panel.base);
  panel.pick = (cell) => data.picks && setTriggerValue("picked", cell);
  panel.held.ask = (asked) => setTriggerValue("held", asked);
  panel.show(data);
  return () => panel.close();
}

// Vega's embedder arrives with a component of its own, once a page load.
function library() {
  if (globalThis.krrvizVega) return globalThis.krrvizVega;
  return new Promise((resolve, reject) => {
    const late = () => reject(new Error("the chart library did not arrive; reload the page"));
    setTimeout(late, 20000); // without effect once resolved
    addEventListener("krrviz-vega", () => resolve(globalThis.krrvizVega), { once: true });
  });
}

class Panel {
  constructor(root) {
    this.root = root;
    this.cells = new Map();
    this.steps = [0];
    this.step = this.base = 0; // the step shown; the one to return to when a pointer leaves
    this.pinned = false;
    this.slider = root.querySelector("input");
    this.slider.oninput = () => {
      this.rest();
      this.choose(this.steps[this.slider.value]);
    };
    this.slider.onchange = () => this.report();
    this.held = new Held(root.querySelector(".held"));
    this.button = root.querySelector(".play");
    this.button.onclick = () => {
      if (!this.timer) return this.play();
      this.rest();
      this.report();
    };
    this.escape = (event) => event.key === "Escape" && this.pin(false);
    addEventListener("keydown", this.escape);
    this.follow = ({ detail }) => this.led && this.choose(detail); // maps with moments lead
    addEventListener("krrviz-step", this.follow);
    this.resizes = new ResizeObserver(() => {
      this.markLeftmost();
      for (const cell of this.cells.values()) cell.fit();
    });
    root.krrviz = {
      names: () => [...this.cells.keys()],
      rows: (name) => this.cells.get(name).rows(),
      step: () => this.step,
      setStep: (step) => this.choose(step),
    };
  }

  close() {
    this.rest();
    this.held.close();
    removeEventListener("keydown", this.escape);
    removeEventListener("krrviz-step", this.follow);
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
        this.held.drawn(latest.held);
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
    const names = new Set(data.figures.map((figure) => figure.name));
    for (const [name, cell] of this.cells) {
      if (names.has(name)) continue;
      cell.close();
      this.cells.delete(name);
    }
    const rows = { facets: [], wide: [], laws: [], maps: [] };
    for (const figure of data.figures) {
      const cell = this.cells.get(figure.name) ?? new Cell(this, figure.name);
      this.cells.set(figure.name, cell);
      cell.read(figure);
      rows[cell.meta.row].push(cell.element);
    }
    for (const [row, elements] of Object.entries(rows)) {
      const grid = this.root.querySelector(`.${row}`);
      if (elements.some((element, i) => grid.children[i] !== element))
        grid.replaceChildren(...elements);
    }
    this.root.classList.toggle("big", data.big);
    this.slide(data);
    const theme = this.theme(data.themes);
    await Promise.all([...this.cells.values()].map((cell) => cell.draw(embed, theme)));
    this.markLeftmost();
    this.label();
  }

  // The scrubber moves over the steps that the tables hold; left at its end, it stays there.
  slide({ steps, step, led, each }) {
    this.each = each;
    this.slider.closest(".scrubber").hidden = this.led = led;
    const held = [...this.cells.values()]
      .flatMap((cell) => cell.tables[cell.meta.tables[0]].step ?? [0]); // laws have no steps
    const atEnd = this.base === this.steps.at(-1);
    this.steps = [...new Set(held)].sort((a, b) => a - b);
    this.total = steps;
    this.slider.max = this.steps.length - 1;
    if (step !== this.asked) this.base = step;
    else if (atEnd) this.base = this.steps.at(-1);
    this.asked = step;
    this.base = this.step = this.snap(this.base);
    this.label();
  }

  // The charts' own ink and paper give way to those of the page.
  theme(themes) {
    const style = getComputedStyle(this.root);
    const value = (name) => style.getPropertyValue(name).trim();
    const [ink, paper] = [value("--st-text-color"), value("--st-background-color")];
    const mode = luminance(paper) < 0.4 ? "dark" : "light";
    const { style: styles, background, range } = themes[mode];
    this.root.style.setProperty("--ramp", `linear-gradient(to right, ${range.ramp.join()})`);
    const swap = { [styles.now.color]: ink, [background]: paper };
    const config = JSON.parse(JSON.stringify(themes[mode]), (_, color) => swap[color] ?? color);
    return { ...config, font: value("--st-font") || "sans-serif" };
  }

  snap(step) {
    return this.steps.reduce((a, b) => (Math.abs(b - step) < Math.abs(a - step) ? b : a));
  }

  choose(step) {
    this.base = this.snap(step);
    return this.to(this.base);
  }

  async to(step) {
    if (step === this.step) return;
    this.step = step;
    this.label();
    await Promise.all([...this.cells.values()].map((cell) => cell.signal("step", step)));
  }

  label() {
    const [word, symbol] = this.each;
    const text = `${word} ${symbol} = ${this.step} of ${this.total}${this.pinned ? ", pinned" : ""}`;
    this.root.querySelector("label span").textContent = this.slider.ariaValueText = text;
    this.slider.value = this.steps.indexOf(this.step);
    for (const cell of this.cells.values()) cell.label(this.step);
  }

  pin(pinned) {
    if (this.pinned === pinned) return;
    this.pinned = pinned;
    this.base = this.step;
    this.label();
    if (pinned) this.report();
  }

  play() {
    this.pin(false);
    if (this.base === this.steps.at(-1)) this.choose(this.steps[0]);
    // Who asks for less motion gets single steps, not an animation.
    const pause = matchMedia("(prefers-reduced-motion: reduce)").matches ? 1000 : 140;
    this.timer = setInterval(() => {
      const next = this.steps.indexOf(this.base) + 1;
      if (next < this.steps.length) return this.choose(this.steps[next]);
      this.rest();
      this.report();
    }, pause);
    [this.button.textContent, this.button.ariaLabel] = ["❚❚", "Pause the steps"];
  }

  rest() {
    clearInterval(this.timer);
    this.timer = null;
    [this.button.textContent, this.button.ariaLabel] = ["▶", "Play the steps"];
    this.pin(false);
  }

  // Only the first chart of a row of facets spells out the axis they share.
  markLeftmost() {
    for (const cell of this.cells.values()) cell.signal("leftmost", cell.element.offsetLeft === 0);
  }
}

// A slider of the sidebar, while a pointer holds it: where it stands is asked for, one request at a
// time. What it passes meanwhile is dropped; the latest is asked for once the answer is drawn.
class Held {
  constructor(caption) {
    [this.caption, this.fields, this.number] = [caption, [], 0];
    this.moves = new MutationObserver(() => this.moved());
    this.down = ({ target }) => this.take(target);
    this.up = () => this.release();
    document.addEventListener("pointerdown", this.down, true);
    for (const end of ["pointerup", "pointercancel"]) addEventListener(end, this.up, true);
  }

  close() {
    this.moves.disconnect();
    document.removeEventListener("pointerdown", this.down, true);
    for (const end of ["pointerup", "pointercancel"]) removeEventListener(end, this.up, true);
  }

  take(target) {
    const of = (name) => target.closest?.(`.st-key-${name} [data-testid="stSlider"]`);
    this.field = this.fields.find(of);
    if (!this.field) return;
    this.thumb = of(this.field).querySelector("input[type=range]");
    this.first = this.stop = this.at();
    this.moves.observe(this.thumb, { attributes: true, attributeFilter: ["aria-valuetext"] });
  }

  at() {
    return Number(this.thumb.value);
  }

  moved() {
    if (this.at() === this.stop) return;
    this.stop = this.at();
    this.wanted = { field: this.field, stop: this.stop };
    this.next();
  }

  // Let go elsewhere, the slider itself sends its value; let go where it stood, it does not.
  release() {
    if (!this.field) return;
    this.moves.disconnect();
    if (this.at() !== this.first) this.wanted = null;
    this.field = null;
  }

  next() {
    if (!this.wanted || this.waiting) return;
    this.waiting = ++this.number;
    this.ask({ ...this.wanted, number: this.number });
    this.wanted = null;
  }

  drawn(held) {
    this.fields = held?.fields ?? [];
    this.caption.textContent = held?.caption ?? "";
    this.caption.hidden = !held?.caption;
    // The whole page's answer has no number; no request is left when it comes.
    if (held?.number && held.number !== this.waiting) return;
    this.waiting = null;
    this.next();
  }
}

class Cell {
  constructor(panel, name) {
    [this.panel, this.name, this.hidden, this.values] = [panel, name, new Set(), []];
    this.holder = element("div", { className: "view", role: "img" });
    this.legend = element("div", { className: "legend" });
    this.menu = element("div", { className: "menu", popover: "auto" },
      ...["PNG", "SVG", "CSV"].map((kind) => button(kind, () => this.save(kind))));
    this.more = button("⋯");
    [this.more.className, this.more.popoverTargetElement] = ["download", this.menu];
    this.menu.onbeforetoggle = () => {
      const { left, bottom } = this.more.getBoundingClientRect();
      Object.assign(this.menu.style, { top: `${bottom}px`, left: `${left - 40}px` });
    };
    this.element = element("figure", {}, this.holder, this.legend, this.more, this.menu);
    this.holder.onpointermove = (event) => this.point(event);
    this.holder.onpointerleave = () => this.free && panel.to(panel.base);
    this.holder.onclick = (event) => {
      const step = this.pointed(event);
      if (panel.pinned) return panel.pin(false);
      if (step !== undefined) panel.to(step).then(() => panel.pin(true));
    };
    panel.resizes.observe(this.holder);
  }

  read({ spec, tables, alt }) {
    [this.spec, this.tables, this.alt, this.meta] = [spec, tables, alt, spec.usermeta];
    this.more.ariaLabel = `Download ${spec.title}`;
    this.curves = null;
  }

  close() {
    this.panel.resizes.unobserve(this.holder);
    this.view?.finalize();
    this.element.remove();
  }

  async draw(embed, theme) {
    try {
      await this.update(embed, theme);
    } catch (error) {
      throw new Error(`${this.spec.title}: ${error.message}`, { cause: error });
    }
  }

  // A view is built when its structure or the theme changes; otherwise only its data moves.
  async update(embed, theme) {
    const { params, ...fixed } = this.spec;
    const values = Object.fromEntries(params.map(({ name, value }) => [name, value]));
    const structure = JSON.stringify([fixed, Object.keys(values), theme]);
    if (structure !== this.structure) {
      this.view?.finalize();
      this.embed = (holder, width, height, legend) => embed(holder, {
        ...this.spec, width, height, datasets: this.datasets(),
        autosize: { type: "fit", contains: "padding" },
        padding: { left: 2, top: 4, right: 6, bottom: 2 },
        config: { ...theme, legend: { ...theme.legend, disable: !legend } },
      }, {
        mode: "vega-lite", actions: false, defaultStyle: false, hover: false, renderer: "canvas",
        logLevel: 1, // errors only: a scale without data is no news
        tooltip: (_, event, item, value) => this.tip(event, value),
      });
      const { clientWidth, clientHeight } = this.holder;
      const { pick } = this.meta; // the column that says which cell was clicked
      ({ view: this.view } = await this.embed(this.holder, clientWidth, clientHeight, false));
      [this.structure, this.size] = [structure, null]; // it fits once its labels are measured
      if (pick)
        this.view.addEventListener("click", (_, item) => {
          if (item?.datum?.[pick] !== undefined) this.panel.pick(item.datum[pick]);
        });
      this.drawLegend();
    } else {
      for (const [name, rows] of Object.entries(this.datasets())) this.view.data(name, rows);
    }
    const mine = { step: this.panel.step, hidden: [...this.hidden] };
    for (const name in values)
      if (name !== "leftmost") this.view.signal(name, mine[name] ?? values[name]);
    await this.view.runAsync();
    this.holder.ariaLabel = this.alt;
    await this.fit();
  }

  datasets() {
    return Object.fromEntries(Object.entries(this.tables).map(([name, columns]) => {
      const [names, [first]] = [Object.keys(columns), Object.values(columns)];
      const row = (_, i) => Object.fromEntries(names.map((column) => [column, columns[column][i]]));
      return [name, first.map(row)];
    }));
  }

  async signal(name, value) {
    if (this.view && this.spec.params.some((param) => param.name === name))
      await this.view.signal(name, value).runAsync();
  }

  async fit() {
    const { clientWidth: width, clientHeight: height } = this.holder;
    if (!this.view || !width || this.size === `${width} ${height}`) return;
    this.size = `${width} ${height}`; // the view's own width becomes that of the plot inside
    await this.view.width(width).height(height).runAsync();
  }

  rows() {
    const several = this.meta.tables.length > 1;
    return this.meta.tables.flatMap((table) =>
      this.view.data(table).map((row) => ({ ...(several && { table }), ...row })));
  }

  // Legend entries are buttons: they say how a line looks and its value now, and hide it.
  drawLegend() {
    this.element.classList.toggle("strip", !this.meta.value); // without values, no column
    const entries = this.meta.legend ?? [];
    this.values = entries.map(({ key }) => [key, element("span", { className: "value" })]);
    this.legend.replaceChildren(...entries.map(({ key, title, color, dash, width, shape }, i) => {
      const [across, middle] = width ? [28, 14] : [12, 6];
      const line = `<path d="M0,6H28" stroke="${color}" stroke-width="${width}"
        stroke-dasharray="${dash ?? ""}"/>`;
      const mark = `<path d="${shape}" fill="${color}"
        transform="translate(${middle},6) scale(5)"/>`;
      const entry = button("", () => {
        if (!this.hidden.delete(key)) this.hidden.add(key);
        entry.ariaPressed = !this.hidden.has(key);
        this.signal("hidden", [...this.hidden]);
      });
      entry.innerHTML = `<svg width="${across}" height="12" aria-hidden="true">
        ${width ? line : ""}${shape ? mark : ""}</svg>`;
      entry.append(title, this.values[i][1]);
      entry.ariaPressed = !this.hidden.has(key);
      return entry;
    }));
  }

  label(step) {
    if (!this.meta.value) return;
    const { [this.meta.value]: values, method, step: at } = this.tables[this.meta.tables[0]];
    for (const [key, span] of this.values)
      span.textContent = readable(values[at.findIndex((s, i) => s === step && method[i] === key)]);
  }

  // The step of the curve under the pointer: at the pointer's x the nearest, within 14 pixels.
  pointed(event) {
    if (!this.view || !this.meta.hover) return undefined;
    const [box, padding] = [this.holder.getBoundingClientRect(), this.view.padding()];
    const [left, top] = this.view.origin();
    const px = event.clientX - box.left - left - padding.left;
    const py = event.clientY - box.top - top - padding.top;
    const [x, y] = [this.view.scale("x"), this.view.scale("y")];
    if (px < -8 || px > x.range()[1] + 8 || py < 0 || py > y.range()[0]) return undefined;
    if (!this.meta.hover.y) return this.panel.snap(x.invert(px));
    let [best, nearest] = [14, undefined];
    for (const [step, points] of this.points()) {
      const right = points.findIndex(([value]) => x(value) >= px);
      const [a, b] = [points[Math.max(0, right - 1)], points.at(right)];
      const share = Math.min(1, Math.max(0, (px - x(a[0])) / (x(b[0]) - x(a[0])))) || 0;
      const distance = Math.abs(y(a[1]) + share * (y(b[1]) - y(a[1])) - py);
      if (distance < best) [best, nearest] = [distance, step];
    }
    return nearest;
  }

  points() {
    if (this.curves) return this.curves;
    this.curves = new Map();
    const { x, y } = this.meta.hover;
    const { step, [x]: xs, [y]: ys } = this.tables[this.meta.tables[0]];
    step.forEach((at, i) => {
      if (!this.curves.has(at)) this.curves.set(at, []);
      this.curves.get(at).push([xs[i], Math.max(ys[i] ?? 1e300, 1e-300)]);
    });
    return this.curves;
  }

  get free() {
    return !this.panel.pinned && !this.panel.timer;
  }

  point(event) {
    if (!this.free || event.pointerType === "touch") return;
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() =>
      this.free && this.panel.to(this.pointed(event) ?? this.panel.base));
  }

  tip(event, value) {
    const tip = this.panel.root.querySelector(".tip");
    tip.hidden = !value;
    if (!value) return;
    tip.textContent = Object.entries(value).map((pair) => pair.join(": ")).join("\n");
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.min(event.clientX + 12, innerWidth - width - 4)}px`;
    tip.style.top = `${Math.max(4, event.clientY - height - 10)}px`;
  }

  // A saved picture stands alone: of one size wherever it was made, and with a legend.
  async save(kind) {
    this.menu.hidePopover();
    const name = `${this.name}.${kind.toLowerCase()}`;
    const download = (href) => element("a", { download: name, href }).click();
    if (kind === "CSV") return download(`data:text/csv,${encodeURIComponent(csv(this.rows()))}`);
    const { view } = await this.embed(element("div"), 640, 400, true);
    for (const { name } of this.spec.params)
      if (name !== "leftmost") view.signal(name, this.view.signal(name));
    // Twice, as on the page: the second layout knows how wide its labels are.
    await (await view.runAsync()).width(640).height(400).runAsync();
    download(await view.toImageURL(kind.toLowerCase(), 2));
    view.finalize();
  }
}

function readable(value) {
  if (value === undefined) return "";
  if (value === null || value >= 1e300) return "overflow";
  const small = value !== 0 && (value < 1e-3 || value >= 1e4);
  return (small ? value.toExponential(1) : value.toPrecision(2)).replace("e+", "e");
}

function csv(rows) {
  const names = [...new Set(rows.flatMap(Object.keys))];
  const cell = (value) => (/[",\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value ?? "");
  const lines = [names, ...rows.map((row) => names.map((name) => row[name]))];
  return lines.map((line) => line.map(cell).join(",")).join("\n");
}
