// Three plots: how many requests, how long they took, and how that is
// distributed.

import { $, el, once, svg } from './dom.js';
import { clock, count, duration, rate } from './format.js';

const span = 120_000; // milliseconds that are shown
const gap = 3500; // without a point for so long there is no line
const left = 46;
const bottom = 16;
const height = 104;

/** Plots keeps what it saw, also over a restart of the server. */
export class Plots {
  constructor() {
    this.points = [];
    this.shown = []; // those that were there when it was drawn last
    this.redraw = once(() => this.drawTimes());
    this.over = null; // where the pointer is, as a time
    for (const id of ['plot-rate', 'plot-latency']) {
      $(id).addEventListener('pointermove', (e) => this.hover(e));
      $(id).addEventListener('pointerleave', () => this.hover(null));
    }
  }

  add(points) {
    if (points.at(-1)?.at < this.points.at(-1)?.at) this.points = []; // the clock was set back
    const last = this.points.at(-1)?.at ?? 0;
    const all = [...this.points, ...points.filter((p) => p.at > last)];
    this.points = all.filter((p) => p.at >= all.at(-1).at - span);
  }

  hover(e) {
    const box = e?.currentTarget.querySelector('svg')?.getBoundingClientRect();
    const at = e && box ? (e.clientX - box.left - left) / (box.width - left) : -1;
    this.over = at >= 0 && at <= 1 ? at : null;
    this.redraw();
  }

  draw(bars, missed) {
    Object.assign(this, { bars, missed });
    this.shown = this.points;
    this.drawTimes();
    this.drawBars();
  }

  drawTimes() {
    if (this.shown.length === 0) return;
    this.until = this.shown.at(-1).at;
    const at = this.over === null ? null : this.until - span * (1 - this.over);
    this.pointed = at === null ? null : this.shown.reduce((a, b) => (Math.abs(b.at - at) < Math.abs(a.at - at) ? b : a));
    this.drawRate();
    this.drawLatency();
  }

  drawRate() {
    const most = nice(Math.max(1, ...this.shown.map((p) => p.rate)));
    const y = (v) => (height - bottom) * (1 - v / most) + 4 * (v / most);
    const p = this.pointed ?? this.shown.at(-1);
    const sheet = this.sheet('plot-rate', [0, most / 2, most].map((v) => [y(v), v ? rate(v) : '0']));
    for (const [key, name] of [['rate', 'rate'], ['failures', 'fail']]) {
      if (key === 'failures' && !this.shown.some((one) => one.failures > 0)) continue;
      this.line(sheet, name, (one) => one[key], y, true);
    }
    caption(sheet, 'Requests a second', this.pointed,
      ['', '', rate(p.rate)], p.failures > 0 ? ['failed', 'bad', rate(p.failures)] : null);
  }

  drawLatency() {
    const known = this.shown.filter((p) => p.p99 > 0);
    const low = 10 ** Math.floor(Math.log10(Math.min(1e6, ...known.map((p) => p.p50))));
    const high = Math.max(low * 10, ...known.map((p) => p.p99)) * 1.1;
    const [from, to] = [Math.log10(low), Math.log10(high)];
    const y = (v) => (height - bottom) * (1 - (Math.log10(v) - from) / (to - from)) + 4 * ((Math.log10(v) - from) / (to - from));
    const p = this.pointed ?? this.shown.at(-1);
    const sheet = this.sheet('plot-latency', decades(low, high).map((v) => [y(v), short(v)]));
    for (const key of ['p50', 'p95', 'p99']) this.line(sheet, key, (one) => one[key] || null, (v) => y(Math.max(v, low)));
    caption(sheet, 'Latency', this.pointed, ...['p50', 'p95', 'p99'].map((key) => [key, key, duration(p[key])]));
  }

  /** line draws one value over time, with a hole where there is none. */
  line(sheet, name, value, y, filled = false) {
    const runs = [];
    let before = -Infinity;
    for (const p of this.shown) {
      const v = value(p);
      if (v === null) continue;
      if (p.at - before > gap) runs.push([]);
      runs.at(-1).push([sheet.x(p.at), y(v)]);
      before = p.at;
    }
    for (const run of runs) {
      const d = run.map(([px, py], i) => `${i ? 'L' : 'M'}${px.toFixed(1)} ${py.toFixed(1)}`).join('');
      const under = `L${run.at(-1)[0].toFixed(1)} ${y(0)}L${run[0][0].toFixed(1)} ${y(0)}Z`;
      if (filled) sheet.draw('path', { class: `area ${name}`, d: d + under });
      sheet.draw('path', { class: `line ${name}`, d: run.length > 1 ? d : `${d}h1` });
    }
  }

  /** sheet is an empty plot over time with its grid. */
  sheet(id, ticks) {
    const s = sheet(id);
    for (const [y, label] of ticks) {
      s.draw('line', { class: 'grid', x1: left, x2: s.width, y1: Math.round(y) + 0.5, y2: Math.round(y) + 0.5 });
      s.label(left - 6, y + 3.5, label, 'end');
    }
    s.x = (at) => left + (s.width - left) * (1 - (this.until - at) / span);
    for (const [ago, label, anchor] of [[span, '2 min ago', 'start'], [span / 2, '1 min', 'middle'], [0, 'now', 'end']]) {
      s.label(s.x(this.until - ago), height - 3, label, anchor);
    }
    if (this.pointed) s.draw('line', { class: 'at', x1: s.x(this.pointed.at), x2: s.x(this.pointed.at), y1: 4, y2: height - bottom });
    return s;
  }

  drawBars() {
    const { from, counts, of } = this.bars;
    const s = sheet('plot-bars');
    const total = counts.reduce((a, b) => a + b, 0);
    const some = total < 0.98 * of; // what began in one minute may end in the next
    caption(s, 'Distribution', null, ['last minute', '', total > 0 ? count(total) + (some ? ` of ${count(of)}` : '') : ''],
      this.missed > 0 ? ['missed', 'warn', count(this.missed)] : null);
    s.words.title = 'requests that were measured in the last minute, and events that were dropped since the first page was opened';
    if (total === 0) {
      s.label(s.width / 2, height / 2, 'nothing measured in the last minute', 'middle');
      return;
    }
    const step = Math.log10(Math.SQRT2);
    const first = Math.log10(from);
    const lo = Math.min(Math.floor(first), Math.floor(first + 1e-9));
    const hi = Math.max(lo + 2, Math.ceil(first + counts.length * step));
    const x = (log) => 4 + (s.width - 8) * ((log - lo) / (hi - lo));
    const most = Math.max(...counts);
    const floor = height - bottom;
    counts.forEach((n, i) => {
      if (n === 0) return;
      const h = Math.max(1.5, (floor - 6) * (n / most));
      const [a, b] = [x(first + i * step), x(first + (i + 1) * step)];
      const bar = s.draw('rect', { class: 'column', x: a + 0.75, width: Math.max(1, b - a - 1.5), y: floor - h, height: h });
      bar.append(svg('title', {}, `${duration(10 ** (first + i * step))} to ${duration(10 ** (first + (i + 1) * step))}: ${count(n)}`));
    });
    s.draw('line', { class: 'grid', x1: 0, x2: s.width, y1: floor + 0.5, y2: floor + 0.5 });
    for (let d = lo; d <= hi; d++) s.label(x(d), height - 3, short(10 ** d), d === lo ? 'start' : d === hi ? 'end' : 'middle');
  }
}

/** sheet empties a figure. */
function sheet(id) {
  const figure = $(id);
  const width = Math.max(200, figure.clientWidth - 24);
  const drawing = svg('svg', { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none', role: 'img' });
  const words = el('figcaption');
  figure.replaceChildren(words, drawing);
  const draw = (name, attrs, ...children) => {
    const e = svg(name, attrs, ...children);
    drawing.append(e);
    return e;
  };
  const label = (x, y, text, anchor) => draw('text', { x, y, 'text-anchor': anchor }, text);
  return { width, words, drawing, draw, label };
}

function caption(s, name, point, ...values) {
  s.words.append(el('b', {}, point ? clock(point.at, false) : name));
  for (const v of values.filter(Boolean)) {
    s.words.append(el('span', {}, v[0] ? `${v[0]} ` : '', el('i', { class: v[1] || null }, v[2])));
  }
  s.drawing.setAttribute('aria-label', s.words.textContent);
}

/** nice is the next of 1, 2, 5, 10, … */
function nice(x) {
  const unit = 10 ** Math.floor(Math.log10(x));
  return [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= x);
}

/** decades are the powers of ten within, or more where there are few. */
function decades(low, high) {
  const all = [];
  const steps = high / low > 100 ? [1] : high / low > 12 ? [1, 3] : [1, 2, 5];
  for (let unit = low; unit <= high; unit *= 10) all.push(...steps.map((n) => n * unit).filter((v) => v <= high));
  return all;
}

/** short is a round duration in nanoseconds. */
function short(ns) {
  const fits = [[1e9, 's'], [1e6, 'ms'], [1e3, 'µs']].find(([unit]) => ns >= unit * 0.999) ?? [1, 'ns'];
  return `${+(ns / fits[0]).toPrecision(2)} ${fits[1]}`;
}
