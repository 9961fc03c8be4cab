// Heatmaps on canvases. Python sends one message of numbers; pointing, keys and pins are handled
// here, and a pin alone is told to the server.

export default function ({ parentElement, data, setStateValue }) {
  const root = parentElement.querySelector(".heatmaps");
  const panel = (root.panel ??= new Panel(root)); // kept over reruns
  panel.report = (pin) => panel.data.report && setStateValue("pin", pin);
  panel.scrubber.report = (at) => panel.data.frames.report && setStateValue("frame", at);
  panel.show(data);
  return () => panel.close();
}

const PAGE = 10; // rows that PageUp and PageDown pass
const MARKS = { context: "#7f8a99", sink: "#b8860b", query: "#8d74d8", masked: "#c9ced6",
  read: "#2e93cc", written: "#d55e00" };
const RAMPS = {
  light: {
    sequential: ["#f7f9fc", "#c9dcef", "#8dbbdf", "#4a93c9", "#1c67a8", "#0b3f75", "#061f3f"],
    diverging: ["#0b4a8f", "#4a93c9", "#b5d3e8", "#f4f5f6", "#f3c0a4", "#d3693f", "#8a2a0c"],
  },
  dark: {
    sequential: ["#10161d", "#14324f", "#1b5587", "#2f7fc0", "#64aee0", "#a9d6f2", "#f2faff"],
    diverging: ["#8cc8f5", "#3a86c8", "#1f4668", "#1b2129", "#6b3a24", "#c8693c", "#ffb48c"],
  },
};

class Panel {
  constructor(root) {
    this.root = root;
    this.views = [];
    this.cell = this.pin = null; // {i, j, name}; name counts where maps are not linked
    this.readout = root.querySelector(".readout");
    this.scrubber = new Scrubber(root.querySelector(".scrubber"), this);
    this.resizes = new ResizeObserver(() => this.draw());
    this.resizes.observe(root);
    root.ontransitionend = (event) => event.target === root && this.draw();
    root.heatmaps = {
      names: () => this.views.map((view) => view.map.name),
      shape: (name) => this.view(name).shape,
      value: (name, i, j) => this.view(name).value(i, j),
      hover: (i, j, name) => this.to({ i, j, name }),
      cell: () => (this.current ? [this.current.i, this.current.j] : null),
      pin: () => (this.pin ? [this.pin.i, this.pin.j] : null),
      readout: () => this.readout.innerText,
      frame: () => this.scrubber.at,
      setFrame: (at) => this.scrubber.go(at),
    };
  }

  close() {
    this.scrubber.rest();
    this.resizes.disconnect();
    cancelAnimationFrame(this.frame);
  }

  view(name) {
    return this.views.find((view) => view.map.name === name);
  }

  get current() {
    return this.cell ?? this.pin;
  }

  // Of letters, in pixels.
  get size() {
    return this.data.big ? 16 : 11;
  }

  show(bytes) {
    this.root.dataset.ready = "false"; // until it is drawn
    try {
      this.data = this.read(bytes);
      this.root.classList.toggle("big", this.data.big);
      this.build();
      this.root.querySelector(".problem").hidden = true;
    } catch (error) {
      this.fail(error);
    }
  }

  fail(error) {
    console.error(error);
    const problem = this.root.querySelector(".problem");
    problem.textContent = `The maps could not be drawn: ${error.message}`;
    problem.hidden = false;
    this.root.dataset.ready = "error";
  }

  // Eight bytes of length, a description in JSON, then float64 numbers.
  read(bytes) {
    const { buffer, byteOffset, byteLength } = bytes.slice();
    const length = Number(new DataView(buffer, byteOffset).getBigInt64(0, true));
    const text = new TextDecoder().decode(new Uint8Array(buffer, byteOffset + 8, length));
    const data = JSON.parse(text);
    const numbers = new Float64Array(buffer, byteOffset + 8 + length, (byteLength - 8 - length) / 8);
    const matrix = ([start, shape]) => {
      const size = shape.reduce((a, b) => a * b);
      return { shape, numbers: numbers.subarray(start, start + size) };
    };
    for (const map of data.maps) {
      for (const name in map.lists) map[name] = data.lists[map.lists[name]];
      for (const part of ["values", "places"]) if (map[part]) map[part] = matrix(map[part]);
    }
    for (const map of data.maps) if (map.minus) map.values = difference(map.minus, data.maps);
    for (const axis of data.points ? ["x", "y"] : [])
      data.points[axis] = matrix(data.points[axis]).numbers;
    return data;
  }

  build() {
    const { maps, points, asked, pin } = this.data;
    const old = new Map(this.views.map((view) => [view.map.name, view]));
    this.views = maps.map((map) => {
      const view = old.get(map.name) ?? new View(this);
      view.read(map);
      return view;
    });
    const grid = this.root.querySelector(".grid");
    if (this.views.some((view, k) => grid.children[k] !== view.element)
      || grid.children.length !== this.views.length)
      grid.replaceChildren(...this.views.map((view) => view.element));
    this.views.forEach((view, k) => (view.canvas.tabIndex = k && this.data.linked ? -1 : 0));
    this.scrubber.show(this.data.frames);
    this.legend();
    this.root.classList.toggle("brief", !maps.some((map) => map.formula.length));
    const beside = this.root.querySelector(".beside");
    this.scatter = points ? (this.scatter ?? new Scatter(this)) : null;
    beside.replaceChildren(...(this.scatter ? [this.scatter.element] : []));
    if (asked !== this.asked) {
      this.pin = pin && { i: pin[0], j: pin[1], name: this.views[0]?.map.name };
      this.cell = null;
    }
    this.asked = asked;
    for (const place of ["cell", "pin"]) if (!this.holds(this[place])) this[place] = null;
    this.draw();
  }

  holds(cell) {
    const view = cell && (this.data.linked ? this.views[0] : this.view(cell.name));
    const [rows, cols] = view ? this.extent(view) : [0, 0];
    return !cell || (cell.i < rows && cell.j < cols);
  }

  // Bars of a single row know no other rows; linked to a matrix they follow its rows.
  extent(view) {
    const shapes = (this.data.linked ? this.views : [view]).map(({ shape }) => shape);
    return [Math.max(...shapes.map(([rows]) => rows)), Math.max(...shapes.map(([, cols]) => cols))];
  }

  legend() {
    const found = new Set(this.data.maps.flatMap((map) => [...map.row_marks, ...map.col_marks]));
    for (const marks of this.data.frames?.col_marks ?? []) marks.forEach((mark) => found.add(mark));
    found.delete("");
    this.root.querySelector(".legend").replaceChildren(...[...found].map((mark) => {
      const entry = element("span", { textContent: mark });
      entry.style.setProperty("--mark", colorOf(mark));
      return entry;
    }));
  }

  // One redraw a frame, however many events ask for it.
  draw() {
    if (!this.data) return;
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => {
      const style = getComputedStyle(this.root);
      const value = (name) => style.getPropertyValue(name).trim();
      const [ink, paper] = [value("--st-text-color"), value("--st-background-color")];
      const mode = luminance(paper) < 0.4 ? "dark" : "light";
      this.theme = { ink, paper, mode, i: value("--i"), j: value("--j"),
        font: `${this.size}px ${value("--st-font") || "sans-serif"}` };
      try {
        for (const view of this.views) view.draw();
        this.scatter?.draw();
        this.root.dataset.ready = "true";
      } catch (error) {
        this.fail(error);
      }
    });
    this.tell();
  }

  to(cell) {
    this.cell = cell;
    this.draw();
  }

  fix(cell) {
    const same = cell && this.pin && cell.i === this.pin.i && cell.j === this.pin.j
      && (this.data.linked || cell.name === this.pin.name);
    this.pin = same ? null : cell;
    this.cell = null;
    this.draw();
    this.report(this.pin ? [this.pin.i, this.pin.j] : null);
  }

  press(event, view) {
    const [rows, cols] = this.extent(view);
    const at = this.lit(view) ?? { i: 0, j: 0 };
    const { i, j } = at;
    const jump = event.ctrlKey || event.metaKey;
    const moves = {
      ArrowUp: [i - 1, j], ArrowDown: [i + 1, j], ArrowLeft: [i, j - 1], ArrowRight: [i, j + 1],
      PageUp: [i - PAGE, j], PageDown: [i + PAGE, j],
      Home: [jump ? 0 : i, 0], End: [jump ? rows - 1 : i, cols - 1],
    };
    const name = view.map.name;
    if (moves[event.key]) {
      const clip = (at, size) => Math.min(size - 1, Math.max(0, at));
      const [to, across] = moves[event.key];
      this.to({ i: clip(to, rows), j: clip(across, cols), name });
    } else if (event.key === "Enter" || event.key === " ") this.fix({ i, j, name });
    else if (event.key === "Escape" && (this.pin || this.cell)) this.pin ? this.fix(null) : this.to(null);
    else return;
    event.preventDefault();
  }

  lit(view) {
    const { current } = this;
    return current && (this.data.linked || current.name === view.map.name) ? current : null;
  }

  tell() {
    const { current } = this;
    const views = current ? this.views.filter((view) => this.lit(view)) : [];
    if (!views.length) {
      const how = "Point at a cell, or move with the arrow keys. A click or Enter pins it.";
      return this.readout.replaceChildren(element("p", { textContent: how }));
    }
    const [{ map }, { i, j }] = [views[0], current];
    const word = (kind, at) => map[`${kind}_names`][at]
      ?? [map[`${kind}_title`], map[`${kind}s`][at], map[`${kind}_marks`][at]].filter(Boolean).join(" ");
    const row = element("span", { className: "i", textContent: word("row", map.rows.length > 1 ? i : 0) });
    const col = element("span", { className: "j", textContent: word("col", j) });
    const pinned = this.cell || !this.pin ? "" : ", pinned (Escape lets go)";
    const list = element("dl", {}, ...views.flatMap((view) => [
      element("dt", { textContent: view.map.title }),
      element("dd", { textContent: view.word(i, j) || exact(view.value(i, j)) }),
    ]));
    const formulas = views.map((view) => view.formula(i, j)).filter(Boolean)
      .map((textContent) => element("p", { className: "formula", textContent }));
    this.readout.replaceChildren(element("p", {}, row, " → ", col, pinned), list, ...formulas);
  }
}

// The moments, moved through here: a slider, a button for one back and one on, and play.
class Scrubber {
  constructor(root, panel) {
    [this.root, this.panel, this.at] = [root, panel, 0];
    this.slider = root.querySelector("input");
    this.words = root.querySelector(".now");
    const [back, button, on] = root.querySelectorAll("button");
    this.button = button;
    this.speed = root.querySelector("select");
    this.slider.oninput = () => [this.rest(), this.go(Number(this.slider.value))];
    this.slider.onchange = () => this.report(this.at);
    back.onclick = () => this.press(this.at - 1);
    on.onclick = () => this.press(this.at + 1);
    button.onclick = () => (this.timer ? this.press(this.at) : this.play());
  }

  show(frames) {
    this.frames = frames;
    this.root.hidden = !frames;
    if (!frames) return;
    this.slider.max = frames.titles.length - 1;
    if (frames.asked !== this.asked) [this.asked, this.at] = [frames.asked, frames.at];
    this.go(this.at);
  }

  go(at) {
    const { titles, lines, steps, col_marks: marks } = this.frames;
    this.at = Math.min(Math.max(0, at), titles.length - 1);
    this.slider.value = this.at;
    this.slider.ariaValueText = titles[this.at];
    this.words.replaceChildren(element("strong", { textContent: titles[this.at] }),
      ...lines[this.at].map((textContent) => element("span", { textContent })));
    for (const view of this.panel.views) {
      if (view.map.values.shape.length < 3) continue;
      view.map.col_marks = marks[this.at];
      view.turn(this.at);
    }
    dispatchEvent(new CustomEvent("krrviz-step", { detail: steps[this.at] }));
    this.panel.draw();
  }

  press(at) {
    this.rest();
    this.go(at);
    this.report(this.at);
  }

  play() {
    if (this.at === Number(this.slider.max)) this.go(0);
    [this.button.textContent, this.button.ariaLabel] = ["❚❚", "Pause"];
    const tick = () => {
      if (this.at === Number(this.slider.max)) return this.press(this.at);
      this.go(this.at + 1);
      this.timer = setTimeout(tick, 1000 / Number(this.speed.value));
    };
    this.timer = setTimeout(tick, 1000 / Number(this.speed.value));
  }

  rest() {
    clearTimeout(this.timer);
    this.timer = null;
    [this.button.textContent, this.button.ariaLabel] = ["▶", "Play"];
  }
}

class View {
  constructor(panel) {
    this.panel = panel;
    this.caption = element("figcaption");
    this.canvas = element("canvas", { className: "cells", role: "application" });
    this.scale = element("div", { className: "scale" });
    this.note = element("p", { className: "note" });
    this.menu = element("div", { className: "menu", popover: "auto" },
      ...["PNG", "SVG", "CSV"].map((kind) => button(kind, () => this.save(kind))));
    this.more = button("⋯");
    [this.more.className, this.more.popoverTargetElement] = ["download", this.menu];
    this.menu.onbeforetoggle = () => {
      const { left, bottom } = this.more.getBoundingClientRect();
      Object.assign(this.menu.style, { top: `${bottom}px`, left: `${left - 40}px` });
    };
    this.element = element("figure", {},
      this.caption, this.canvas, this.scale, this.note, this.more, this.menu);
    panel.resizes.observe(this.element);
    this.canvas.onpointermove = (event) =>
      event.pointerType !== "touch" && panel.to(this.at(event));
    this.canvas.onpointerleave = () => panel.to(null);
    this.canvas.onclick = (event) => {
      const cell = this.at(event);
      if (cell) panel.fix(cell);
    };
    this.canvas.onkeydown = (event) => panel.press(event, this);
  }

  read(map) {
    this.map = map;
    this.shape = map.values.shape.slice(-2);
    this.bars = map.kind === "bars";
    let largest = 0;
    for (const value of map.values.numbers)
      if (Number.isFinite(value) && Math.abs(value) > largest) largest = Math.abs(value);
    this.limit = map.limit ?? largest;
    this.turn(map.values.shape.length > 2 ? this.panel.scrubber.at : 0);
    this.caption.textContent = map.title;
    this.more.ariaLabel = `Download ${map.title}`;
    this.element.className = this.bars ? "bars" : this.square ? "square" : "";
    const [rows, cols] = this.shape;
    this.canvas.ariaLabel = `${map.title}: ${rows} rows, ${cols} columns, largest magnitude `
      + `${readable(largest)}. Arrow keys move the cell, Enter pins it, Escape lets go.`;
  }

  // The matrix of one moment.
  turn(at) {
    const size = this.shape[0] * this.shape[1];
    const { numbers } = this.map.values;
    this.cells = numbers.subarray(Math.min(at * size, numbers.length - size)).subarray(0, size);
    this.painted = null;
    let odd = 0;
    this.shares = new Float32Array(size);
    for (let k = 0; k < size; k++) {
      this.shares[k] = this.share(this.cells[k], k % this.shape[1]);
      if (Number.isNaN(this.shares[k]) && !this.map.words[k]) odd++;
    }
    this.note.textContent = this.map.note
      + (odd ? ` ${odd} ${odd > 1 ? "values are" : "value is"} not finite${this.bars ? "" : ", painted yellow"}.` : "");
    this.note.hidden = !this.note.textContent;
  }

  get square() {
    return this.shape[0] === this.shape[1];
  }

  value(i, j) {
    const [rows, cols] = this.shape;
    return this.cells[(rows === 1 ? 0 : i) * cols + j];
  }

  // What a cell says that has no number. Such a cell is not painted.
  word(i, j) {
    return Number.isFinite(this.value(i, j)) ? "" : this.map.words[i * this.shape[1] + j] ?? "";
  }

  // The formula with its numbers in it.
  formula(i, j) {
    const { formula, row_terms: words } = this.map;
    const text = typeof formula === "string" ? formula : formula[j];
    const fill = (part) => part.replace(/\{(\w+)\}/gu, (_, name) =>
      name === "value" ? readable(this.value(i, j), 6)
        : name === "d2" ? readable(this.squared(i, j), 6) : fill(words[name][i]));
    return fill(text);
  }

  // The squared distance between the places of two tokens.
  squared(i, j) {
    const { numbers, shape: [, d] } = this.map.places;
    let sum = 0;
    for (let axis = 0; axis < d; axis++) sum += (numbers[i * d + axis] - numbers[j * d + axis]) ** 2;
    return sum;
  }

  at(event) {
    if (!this.box) return null;
    const { left, top } = this.canvas.getBoundingClientRect();
    const { x, y, w, h } = this.box;
    const [px, py] = [event.clientX - left - x, event.clientY - top - y];
    if (px < 0 || py < 0 || px >= w || py >= h) return null;
    const [rows, cols] = this.shape;
    const i = this.bars ? (this.panel.current?.i ?? 0) : Math.floor((py / h) * rows);
    return { i, j: Math.floor((px / w) * cols), name: this.map.name };
  }

  draw() {
    const width = this.element.clientWidth;
    if (width) this.render(this.canvas, width, devicePixelRatio || 1);
  }

  render(canvas, width, ratio) {
    const { theme } = this.panel;
    const c = canvas.getContext("2d");
    c.font = theme.font;
    this.layout(c, width);
    const { x, y, w, h, height } = this.box;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.font = theme.font;
    if (this.bars) this.drawBars(c);
    else {
      this.paint(theme.mode, Math.round(w * ratio), Math.round(h * ratio));
      c.imageSmoothingEnabled = false;
      c.drawImage(this.image, x, y, w, h);
      this.numbers(c);
    }
    this.axes(c);
    this.cross(c);
  }

  // Where the cells lie: room for labels at the left and below, cells at most so large.
  layout(c, width) {
    const { map, shape: [rows, cols] } = this;
    const widest = (labels) =>
      Math.max(0, ...sparse(labels).map((label) => c.measureText(label).width));
    const strip = map.row_marks.length || map.col_marks.length ? 8 : 2;
    const title = (text) => (text ? this.panel.size + 5 : 0);
    const labels = Math.min(96, widest(map.rows)) + 6 + strip;
    const left = this.bars ? 44 : labels + title(map.row_title);
    const room = width - left - 2;
    const across = this.bars ? room / cols : Math.min(room / cols, this.square ? 110 : 48);
    const tall = Math.min(26, Math.max(across, 14));
    const w = across * cols;
    const h = this.bars ? 84 : this.square ? w : rows * tall <= 420 ? rows * tall : 420;
    const label = widest(map.cols);
    const fits = label + 8 <= across;
    this.turned = !fits && across >= this.panel.size + 2;
    const below = this.turned ? Math.min(96, label) : this.panel.size;
    const height = h + 3 + strip + below + 4 + title(map.col_title);
    this.box = { x: left, y: 1, w, h, strip, height, width };
    this.everyCol = fits || this.turned;
  }

  // A cell is one pixel of the image; those too small for a pixel of the page are averaged.
  paint(mode, width, height) {
    const [rows, cols] = this.shape;
    const size = [Math.min(rows, height), Math.min(cols, width)];
    const painted = [mode, ...size].join();
    if (painted === this.painted) return;
    this.painted = painted;
    const colors = RAMPS[mode][this.map.kind];
    this.scaleBar(colors);
    this.table = ramp(colors);
    const shares = averaged(averaged(this.shares, rows, cols, size[1]), size[1], rows, size[0]);
    const image = new ImageData(size[1], size[0]);
    const pixels = new Uint32Array(image.data.buffer);
    const [top, odd] = [this.table.length - 1, rgb("#e69f00")];
    for (let k = 0; k < pixels.length; k++)
      pixels[k] = Number.isNaN(shares[k]) ? (this.map.words[k] ? 0 : odd) : this.table[Math.round(shares[k] * top)];
    this.image = element("canvas", { width: size[1], height: size[0] });
    this.image.getContext("2d").putImageData(image, 0, 0);
  }

  scaleBar(colors) {
    const half = (side) => {
      const bar = element("i");
      const part = side ? colors.slice(colors.length >> 1) : colors.slice(0, (colors.length >> 1) + 1);
      bar.style.background = `linear-gradient(to right, ${part.join()})`;
      return bar;
    };
    const { limit } = this;
    if (!limit) {
      const odd = this.shares.some(Number.isNaN);
      return this.scale.replaceChildren(odd ? "no finite value but 0" : "every value is exactly 0");
    }
    const [low, middle, high] = this.ends();
    this.scale.replaceChildren(low, half(0), middle, half(1), high);
  }

  // The values at the colours' ends and in their middle.
  ends() {
    const end = this.map.limits.length ? "" : readable(this.limit, 3); // columns differ
    return this.map.kind === "diverging"
      ? [`−${end}`, "0", `+${end}`] : ["0", readable(this.limit / 4, 3), end];
  }

  // How far along the colours a value lies. From 0 on, and where columns differ in scale, it goes
  // by the root, so that small values show beside large ones; the scale names its middle.
  share(value, j) {
    const { limits, kind } = this.map;
    if (!Number.isFinite(value)) return NaN;
    const limit = limits[j] ?? this.limit;
    const part = limit ? Math.min(1, Math.max(-1, value / limit)) : 0;
    if (kind === "sequential") return Math.sqrt(Math.max(0, part));
    return (1 + (limits.length ? Math.sign(part) * Math.sqrt(Math.abs(part)) : part)) / 2;
  }

  numbers(c) {
    const { x, y, w, h } = this.box;
    const [rows, cols] = this.shape;
    const [across, down] = [w / cols, h / rows];
    if (across < 38 || down < this.panel.size + 4) return;
    [c.textAlign, c.textBaseline] = ["center", "middle"];
    for (let i = 0; i < rows; i++)
      for (let j = 0; j < cols; j++) {
        const value = this.value(i, j);
        const word = this.word(i, j);
        if (word) {
          c.fillStyle = this.panel.theme.ink;
          c.fillText(word, x + (j + 0.5) * across, y + (i + 0.5) * down, across - 4);
        }
        if (!value) continue; // a weight that is not there needs no number
        const color = this.table[Math.round(this.share(value, j) * (this.table.length - 1))] ?? 0;
        const light = (color & 255) * 0.21 + ((color >> 8) & 255) * 0.72 + ((color >> 16) & 255) * 0.07;
        c.fillStyle = light > 120 ? "#10151b" : "#f4f8fc";
        c.fillText(readable(value, 2), x + (j + 0.5) * across, y + (i + 0.5) * down, across - 4);
      }
  }

  axes(c) {
    const { map, shape: [rows, cols], panel: { theme } } = this;
    const { x, y, w, h, strip } = this.box;
    c.fillStyle = theme.ink;
    c.strokeStyle = theme.ink;
    // Groups: a strip of their colour, and a line between them.
    const groups = (marks, paint) => {
      let start = 0;
      for (let k = 1; k <= marks.length; k++)
        if (marks[k] !== marks[start]) [paint(start, k, marks[start]), (start = k)];
    };
    groups(map.col_marks, (from, to, mark) => {
      const [a, b] = [x + (from / cols) * w, x + (to / cols) * w];
      if (mark) [(c.fillStyle = colorOf(mark)), c.fillRect(a, y + h + 2, Math.max(1.5, b - a), 4)];
      if (to < cols && !this.bars) rule(c, theme, b, y, b, y + h);
    });
    if (!this.bars) groups(map.row_marks, (from, to, mark) => {
      const [a, b] = [y + (from / rows) * h, y + (to / rows) * h];
      if (mark) [(c.fillStyle = colorOf(mark)), c.fillRect(x - 6, a, 4, Math.max(1.5, b - a))];
      if (to < rows) rule(c, theme, x, b, x + w, b);
    });
    c.fillStyle = theme.ink;
    [c.textAlign, c.textBaseline] = ["right", "middle"];
    if (!this.bars) for (const i of ticks(rows, h / rows >= this.panel.size + 1 ? rows : h / 40))
      c.fillText(map.rows[i], x - strip - 3, Math.max(y + this.panel.size / 2, y + ((i + 0.5) / rows) * h), x - strip - 4);
    const base = y + h + strip + 3;
    const widest = Math.max(...sparse(map.cols).map((label) => c.measureText(label).width));
    c.textBaseline = "top";
    for (const j of ticks(cols, this.everyCol ? cols : w / (widest + 18))) {
      const at = x + ((j + 0.5) / cols) * w;
      if (this.turned) {
        c.save();
        c.translate(at, base);
        c.rotate(-Math.PI / 2);
        [c.textAlign, c.textBaseline] = ["right", "middle"];
        c.fillText(map.cols[j], 0, 0, 96);
        c.restore();
      } else {
        const half = c.measureText(map.cols[j]).width / 2;
        c.textAlign = "center";
        c.fillText(map.cols[j], Math.max(half, Math.min(this.box.width - half, at)), base);
      }
    }
    if (map.row_title && !this.bars) {
      c.save();
      c.translate(1, y + h / 2);
      c.rotate(-Math.PI / 2);
      [c.textAlign, c.textBaseline] = ["center", "top"];
      c.fillText(map.row_title, 0, 0, h);
      c.restore();
    }
    if (map.col_title) {
      [c.textAlign, c.textBaseline] = ["center", "bottom"];
      c.fillText(map.col_title, x + w / 2, this.box.height - 1, w);
    }
  }

  // Row and column of the cell, outlined so that the colours within stay what they are.
  cross(c) {
    const { panel } = this;
    const { x, y, w, h } = this.box;
    const [rows, cols] = this.shape;
    const frame = ({ i, j }, strong) => {
      const [across, down] = [w / cols, h / rows];
      const place = [x + j * across, y + i * down];
      const outline = (color, ...box) => {
        for (const [style, width] of [[panel.theme.paper, 3.5], [color, strong ? 1.5 : 1]])
          [c.strokeStyle, c.lineWidth] = [style, width], c.strokeRect(...box);
      };
      if (strong && !this.bars) outline(panel.theme.i, x, place[1], w, Math.max(1, down));
      if (strong) outline(panel.theme.j, place[0], y, Math.max(1, across), h);
      if (!this.bars)
        outline(panel.theme.ink, place[0] - 1, place[1] - 1, Math.max(4, across + 2), Math.max(4, down + 2));
    };
    const cell = panel.lit(this);
    const { pin } = panel;
    if (pin && pin !== cell && (panel.data.linked || pin.name === this.map.name)) frame(pin, false);
    if (cell) frame(cell, true);
  }

  drawBars(c) {
    const { theme } = this.panel;
    const { x, y, w, h } = this.box;
    const [rows, cols] = this.shape;
    const i = rows === 1 ? 0 : this.panel.lit(this)?.i;
    let [low, high] = [0, 0];
    // A limit is where the axis ends on each side that has values.
    const end = this.map.limit;
    const values = i === undefined ? [] : Array.from({ length: cols }, (_, j) => this.value(i, j));
    for (const value of values) {
      if (!Number.isFinite(value)) continue;
      if (value < 0) low = end === null ? Math.min(low, value) : -end;
      if (value > 0) high = end === null ? Math.max(high, value) : end;
    }
    const at = (value) => y + h - ((value - low) / (high - low || 1)) * h;
    const bar = w / cols;
    values.forEach((value, j) => {
      const [a, b] = [at(0), at(Math.max(low, Math.min(high, Number.isNaN(value) ? 0 : value)))];
      c.fillStyle = colorOf(this.map.col_marks[j] || "context");
      c.fillRect(x + j * bar + (bar > 4 ? 0.5 : 0), Math.min(a, b), Math.max(0.7, bar - (bar > 4 ? 1 : 0)), Math.max(value ? 1 : 0, Math.abs(a - b)));
    });
    c.strokeStyle = theme.ink;
    c.globalAlpha = 0.4;
    c.strokeRect(x, at(0), w, 0.01);
    c.globalAlpha = 1;
    c.fillStyle = theme.ink;
    c.textAlign = "right";
    for (const [value, baseline] of [[high, "top"], [low, "bottom"]]) {
      c.textBaseline = baseline;
      c.fillText(readable(value, 3), x - 4, at(value), 40);
    }
  }

  // A saved picture stands alone: of one size wherever it was made, with title, scale and note.
  save(kind) {
    this.menu.hidePopover();
    const name = `${this.map.name}.${kind.toLowerCase()}`;
    const download = (href) => element("a", { download: name, href }).click();
    if (kind === "PNG") return download(this.picture(element("canvas"), element("canvas"), 2).toDataURL());
    const [text, type] = kind === "CSV" ? [this.csv(), "text/csv"]
      : [this.picture(new Drawing(), new Drawing(), 1).text(this.map.title), "image/svg+xml"];
    const file = URL.createObjectURL(new Blob([text], { type }));
    download(file);
    URL.revokeObjectURL(file);
  }

  // The matrix of this moment at full precision, its rows and columns named.
  csv() {
    const { map, shape: [rows, cols] } = this;
    const named = (kind) => (map[`${kind}_names`].length ? map[`${kind}_names`] : map[`${kind}s`]);
    const cell = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const lines = [["", ...named("col").map(cell)]];
    for (let i = 0; i < rows; i++)
      lines.push([cell(named("row")[i]), ...this.cells.subarray(i * cols, (i + 1) * cols)]);
    return lines.map((line) => line.join(",")).join("\n");
  }

  picture(drawn, made, ratio) {
    const { panel: { theme }, map, bars, limit } = this;
    const [width, top, foot] = [640, 24, bars ? 8 : 48];
    this.render(drawn, width, ratio);
    const { x, w, height } = this.box;
    Object.assign(made, { width: width * ratio, height: (top + height + foot) * ratio });
    const c = made.getContext("2d");
    c.fillStyle = theme.paper;
    c.fillRect(0, 0, made.width, made.height);
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.drawImage(drawn, 0, top, width, height);
    c.fillStyle = theme.ink;
    [c.font, c.textBaseline] = [`bold ${theme.font}`, "middle"];
    const { frames } = this.panel.data;
    const moment = map.values.shape.length > 2 ? `: ${frames.titles[this.panel.scrubber.at]}` : "";
    c.fillText(map.title + moment, 2, top / 2, width - 4);
    c.font = theme.font;
    if (!bars && limit) {
      const strip = new ImageData(this.table.length, 1);
      new Uint32Array(strip.data.buffer).set(this.table);
      const line = element("canvas", { width: strip.width, height: 1 });
      line.getContext("2d").putImageData(strip, 0, 0);
      c.drawImage(line, x, top + height + 6, w, 8);
      for (const [k, text] of this.ends().entries()) {
        c.textAlign = ["left", "center", "right"][k];
        c.fillText(text, x + (k * w) / 2, top + height + 22);
      }
    }
    c.textAlign = "left";
    if (!bars) c.fillText(this.note.textContent, 2, top + height + foot - 9, width - 4);
    this.panel.draw(); // its place on the page is another
    return made;
  }
}

// What a canvas would be drawn, as SVG: the few calls that maps make of one.
class Drawing {
  constructor() {
    [this.parts, this.kept, this.moves, this.style] = [[], [], [], {}];
    this.globalAlpha = 1;
    this.measured = element("canvas").getContext("2d");
  }

  getContext() {
    return this;
  }

  measureText(text) {
    this.measured.font = this.font;
    return this.measured.measureText(text);
  }

  setTransform() {
    this.moves = [];
  }

  save() {
    this.kept.push([...this.moves]);
  }

  restore() {
    this.moves = this.kept.pop();
  }

  translate(x, y) {
    this.moves.push(`translate(${x} ${y})`);
  }

  rotate(angle) {
    this.moves.push(`rotate(${(angle * 180) / Math.PI})`);
  }

  part(tag, values, inside = "") {
    const all = { ...values, opacity: this.globalAlpha, transform: this.moves.join(" ") };
    const named = Object.entries(all).map(([name, value]) => `${name}="${escaped(value)}"`);
    this.parts.push(`<${tag} ${named.join(" ")}>${inside}</${tag}>`);
  }

  fillRect(x, y, width, height) {
    this.part("rect", { x, y, width, height, fill: this.fillStyle });
  }

  strokeRect(x, y, width, height) {
    const look = { fill: "none", stroke: this.strokeStyle, "stroke-width": this.lineWidth ?? 1 };
    this.part("rect", { x, y, width, height, ...look });
  }

  fillText(text, x, y, most) {
    const anchor = { left: "start", center: "middle", right: "end" }[this.textAlign ?? "left"];
    const baseline = { top: "hanging", middle: "central", bottom: "text-after-edge" };
    const squeezed = this.measureText(text).width > most ? { textLength: most, lengthAdjust: "spacingAndGlyphs" } : {};
    this.part("text", { x, y, fill: this.fillStyle, "text-anchor": anchor, style: `font: ${this.font}`,
      "dominant-baseline": baseline[this.textBaseline] ?? "auto", ...squeezed }, escaped(text));
  }

  beginPath() {
    this.path = "";
  }

  moveTo(x, y) {
    this.path += `M${x},${y}`;
  }

  lineTo(x, y) {
    this.path += `L${x},${y}`;
  }

  stroke() {
    this.part("path", { d: this.path, fill: "none", stroke: this.strokeStyle, "stroke-width": this.lineWidth });
  }

  drawImage(image, x, y, width, height) {
    if (image instanceof Drawing) {
      this.parts.push(`<g transform="translate(${x} ${y})">${image.parts.join("")}</g>`);
    } else {
      const look = { style: "image-rendering: pixelated", preserveAspectRatio: "none" };
      this.part("image", { href: image.toDataURL(), x, y, width, height, ...look });
    }
  }

  text(title) {
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${this.width}" height="${this.height}" `
      + `viewBox="0 0 ${this.width} ${this.height}"><title>${escaped(title)}</title>${this.parts.join("")}</svg>`;
  }
}

function escaped(text) {
  const names = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
  return String(text).replace(/[&<>"]/g, (c) => names[c]);
}

class Scatter {
  constructor(panel) {
    this.panel = panel;
    this.caption = element("figcaption");
    this.canvas = element("canvas", { role: "img" });
    this.element = element("figure", {}, this.caption, this.canvas);
    panel.resizes.observe(this.element);
  }

  draw() {
    const { theme, data: { points, maps: [{ row_marks: marks, rows }] }, current } = this.panel;
    const width = this.element.clientWidth;
    if (!width) return;
    const height = 180;
    const c = this.canvas.getContext("2d");
    const ratio = devicePixelRatio || 1;
    [this.canvas.width, this.canvas.height] = [Math.round(width * ratio), height * ratio];
    this.canvas.style.height = `${height}px`;
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.font = theme.font;
    this.caption.textContent = points.title;
    const range = (values) => {
      const seen = values.filter(Number.isFinite);
      const [low, high] = [Math.min(...seen), Math.max(...seen)];
      return low < high ? [low, high] : [low - 1, low + 1];
    };
    const [x, y] = [range(points.x), range(points.y)];
    const box = { x: 44, y: 18, w: width - 54, h: height - 18 - 32 };
    const place = (k) => [
      box.x + ((points.x[k] - x[0]) / (x[1] - x[0])) * box.w,
      box.y + box.h - ((points.y[k] - y[0]) / (y[1] - y[0])) * box.h,
    ];
    c.fillStyle = theme.ink;
    [c.textAlign, c.textBaseline] = ["left", "top"];
    c.fillText(points.y_title, 0, 0, width);
    [c.textAlign, c.textBaseline] = ["right", "middle"];
    for (const k of [0, 1]) c.fillText(readable(y[k], 3), box.x - 8, box.y + (1 - k) * box.h, 40);
    c.textBaseline = "top";
    for (const k of [0, 1]) {
      c.textAlign = k ? "right" : "left";
      c.fillText(readable(x[k], 4), box.x + k * box.w, box.y + box.h + 8);
    }
    c.textAlign = "center";
    c.fillText(points.x_title, box.x + box.w / 2, box.y + box.h + 18, box.w);
    const dot = (k, radius, color, label) => {
      const [px, py] = place(k);
      if (!Number.isFinite(px + py)) return;
      c.beginPath();
      c.arc(px, py, radius, 0, 7);
      [c.fillStyle, c.strokeStyle] = [color, label ? theme.paper : color];
      c.lineWidth = label ? 2 : 1;
      if (marks[k] === "query" && !label) c.stroke();
      else [c.fill(), label && c.stroke()];
      if (label) [(c.textAlign = "center"), (c.textBaseline = "bottom"), halo(c, theme, label, px, py - 9)];
    };
    c.globalAlpha = 0.75;
    for (let k = 0; k < points.x.length; k++) dot(k, 2.5, colorOf(marks[k]));
    c.globalAlpha = 1;
    if (current && current.i !== current.j) dot(current.j, 6, theme.j, "j");
    if (current) dot(current.i, 6, theme.i, current.i === current.j ? "i = j" : "i");
    this.canvas.ariaLabel = `${points.title}: ${points.x_title} and ${points.y_title} of `
      + `${rows.length} tokens${current ? `; token ${rows[current.i]} is lit` : ""}.`;
  }
}

// A thin line in ink on paper, seen on every colour.
function rule(c, theme, ...[x1, y1, x2, y2]) {
  for (const [style, width] of [[theme.paper, 2.5], [theme.ink, 0.7]]) {
    [c.strokeStyle, c.lineWidth] = [style, width];
    c.beginPath();
    c.moveTo(x1, y1);
    c.lineTo(x2, y2);
    c.stroke();
  }
}

// Words that stay readable on dots.
function halo(c, theme, text, x, y) {
  [c.strokeStyle, c.lineWidth] = [theme.paper, 4];
  c.strokeText(text, x, y);
  c.fillText(text, x, y);
}

// At most `most` places of `size`, evenly spread.
function ticks(size, most) {
  const count = Math.max(1, Math.min(size, Math.floor(most)));
  const last = Math.max(1, count - 1);
  return Array.from({ length: count }, (_, k) => Math.round((k * (size - 1)) / last));
}

// Measuring a thousand labels takes a while; their width hardly differs.
function sparse(labels) {
  const every = Math.ceil(labels.length / 64);
  return labels.filter((_, k) => k % every === 0);
}

function colorOf(mark) {
  return MARKS[mark] ?? MARKS.context;
}

function exact(value) {
  return Number.isFinite(value) ? String(value) : Number.isNaN(value) ? "not a number" : "overflows";
}

function readable(value, digits = 2) {
  if (!Number.isFinite(value)) return exact(value);
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e6) return value.toExponential(digits - 1).replace("e+", "e").replace(/\.?0+e/, "e");
  return String(Number(value.toPrecision(digits)));
}

// The difference of two maps by name.
function difference(names, maps) {
  const [one, other] = names.map((name) => maps.find((map) => map.name === name).values);
  const numbers = new Float64Array(one.numbers.length);
  for (let k = 0; k < numbers.length; k++) numbers[k] = one.numbers[k] - other.numbers[k];
  return { shape: one.shape, numbers };
}

// Lines of numbers, each drawn together to at most so many by averages, and transposed.
function averaged(values, lines, size, most) {
  const made = new Float32Array(lines * most);
  const width = size / most;
  for (let line = 0; line < lines; line++)
    for (let p = 0; p < most; p++) {
      const [from, to] = [p * width, Math.min(size, (p + 1) * width)];
      let sum = 0;
      for (let k = Math.floor(from); k < to; k++)
        sum += (Math.min(k + 1, to) - Math.max(k, from)) * values[line * size + k];
      made[p * lines + line] = sum / width;
    }
  return made;
}

function rgb(color) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  return (255 << 24) | (b << 16) | (g << 8) | r;
}

// 511 colours along a ramp: an odd number, so that the middle is one of them.
function ramp(colors) {
  const stops = colors.map((color) => [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16)));
  return Array.from({ length: 511 }, (_, k) => {
    const at = (k / 510) * (stops.length - 1);
    const low = Math.min(stops.length - 2, Math.floor(at));
    const [r, g, b] = stops[low].map((a, part) => Math.round(a + (at - low) * (stops[low + 1][part] - a)));
    return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  });
}
