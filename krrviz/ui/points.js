// A plot to click points into: x and y from 0 to 10. A click adds a point, or takes one away; so
// does Enter at a cross that the arrow keys move.

export default function ({ parentElement, data, setStateValue }) {
  const root = parentElement.querySelector(".points");
  (root.plot ??= new Plot(root)).show(data, setStateValue);
}

const END = 10;
const NEAR = 12; // px: a click so near to a point means it

class Plot {
  constructor(root) {
    this.root = root;
    this.svg = root.querySelector("svg");
    this.said = root.querySelector("output");
    this.cross = [END / 2, END / 2];
    root.querySelector("button").onclick = () => this.change([]);
    this.svg.onclick = (event) => {
      const box = this.svg.getBoundingClientRect();
      this.toggle(this.value(event.clientX - box.left, event.clientY - box.top));
    };
    this.svg.onkeydown = (event) => {
      const by = event.shiftKey ? 1 : 0.2;
      const moves = { ArrowLeft: [-by, 0], ArrowRight: [by, 0], ArrowUp: [0, by], ArrowDown: [0, -by] };
      if (event.key === "Enter" || event.key === " ") this.toggle(this.cross);
      else if (moves[event.key]) {
        this.cross = this.cross.map((at, k) => hold(at + moves[event.key][k]));
        this.said.textContent = `x ${this.cross[0]}, y ${this.cross[1]}`;
        this.draw();
      } else return;
      event.preventDefault();
    };
    new ResizeObserver(() => this.draw()).observe(this.svg);
    root.krrviz = { add: (x, y) => this.toggle([x, y]), points: () => this.points };
  }

  show({ points }, report) {
    this.report = report;
    this.points ??= points; // the session's when the page is come back to; then the plot's own
    this.draw();
  }

  place([x, y]) {
    return [(x / END) * this.svg.clientWidth, (1 - y / END) * this.svg.clientHeight];
  }

  value(px, py) {
    return [hold((px / this.svg.clientWidth) * END), hold((1 - py / this.svg.clientHeight) * END)];
  }

  toggle(at) {
    const [px, py] = this.place(at);
    const distance = (point) => {
      const [x, y] = this.place(point);
      return Math.hypot(x - px, y - py);
    };
    const kept = this.points.filter((point) => distance(point) > NEAR);
    this.change(kept.length < this.points.length ? kept : [...this.points, at]);
  }

  change(points) {
    this.points = points;
    this.said.textContent = `${points.length} points`;
    this.draw();
    this.report("points", points);
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.svg;
    if (!width) return;
    const made = (tag, values, text = "") => {
      const it = document.createElementNS("http://www.w3.org/2000/svg", tag);
      for (const name in values) it.setAttribute(name, values[name]);
      it.textContent = text;
      return it;
    };
    const line = (x1, y1, x2, y2) => made("line", { x1, y1, x2, y2 });
    const grid = [2, 4, 6, 8].flatMap((at) => {
      const [x, y] = this.place([at, at]);
      return [line(x, 0, x, height), line(0, y, width, y),
        made("text", { x: x + 3, y: height - 4 }, at), made("text", { x: 3, y: y - 3 }, at)];
    });
    const dots = this.points.map((point) => {
      const [cx, cy] = this.place(point);
      return made("circle", { cx, cy, r: 6 });
    });
    const [cx, cy] = this.place(this.cross);
    const cross = made("g", { class: "cross" });
    cross.append(line(cx - 9, cy, cx + 9, cy), line(cx, cy - 9, cx, cy + 9));
    this.svg.replaceChildren(...grid, ...dots, cross);
    this.svg.ariaLabel = `Plot with ${this.points.length} points: ${this.points
      .slice(0, 20).map(([x, y]) => `${x}, ${y}`).join("; ")}. Arrow keys move a cross, Enter adds `
      + "or removes a point there.";
    this.root.dataset.ready = "true";
  }
}

// Within the plot, to two digits.
function hold(value) {
  return Math.round(Math.min(END, Math.max(0, value)) * 100) / 100;
}
