// Live requests, those that the filter lets through.

import { $, mark, once, say } from './dom.js';
import { bytes, clock, count, duration } from './format.js';
import { Stream } from './stream.js';
import { Table } from './table.js';

const most = 300; // requests that are kept
const silence = 15_000; // the stream says something every 5 s
const waiting = 'Waiting for requests.';

/** outcome is how a request ended, in a word. */
export function outcome(r) {
  if (r.open) return r.status ? `${r.status} …` : 'open';
  if (r.lost) return 'unknown';
  if (r.kind === 'tcp') return r.error ? 'error' : 'closed';
  if (r.grpc) return r.grpc;
  if (r.reset) return r.status ? `${r.status} reset` : r.reset === 'REFUSED_STREAM' ? 'refused' : 'reset';
  return r.status ? String(r.status) : 'error';
}

export const outcomeTone = (r) => (r.failed ? 'bad' : r.open || r.lost ? 'soft' : r.status >= 400 ? 'warn' : '');

const columns = [
  { name: 'Time', width: '106px', class: 'soft medium', text: (r) => clock(r.at) },
  { name: 'Source', width: '112px', class: 'mono wide', title: true, text: (r) => r.sourceLabels?.pod || r.source || '–' },
  {
    name: 'Destination', width: '112px', class: 'mono medium', title: (r) => r.destination,
    text: (r) => r.destinationLabels?.pod || r.destination || '–',
  },
  { name: 'Method', width: '70px', class: 'mono', text: (r) => r.method },
  { name: 'Path', class: 'mono tail', title: (r) => `${r.authority}${r.path}`, text: (r) => r.path || r.authority },
  { name: 'Status', width: '86px', class: 'n', title: true, tone: outcomeTone, text: outcome },
  { name: 'Took', width: '78px', class: 'n', text: (r) => (r.open || r.lost ? '' : duration(r.duration)) },
  { name: 'Bytes', width: '78px', class: 'n medium', text: (r) => (r.open || r.lost ? '' : bytes(r.bytes)) },
];

/**
 * Tap reads the stream of requests. open(record) shows one, changed(record) is
 * told of each that changed, lost() that no end will be seen of those that are
 * open.
 */
export class Tap {
  constructor(open, changed, lost) {
    this.records = new Map(); // by id, the oldest first
    Object.assign(this, { changed, lost });
    this.held = 0; // that came while paused,
    this.heldOpen = new Set(); // and the ids of those that will be told of again
    this.paused = false;
    this.route = ''; // by a row of the routes, not by the form
    this.table = new Table($('tap-table'), columns, { key: (r) => r.id, open, empty: waiting });
    this.draw = once(() => this.drawNow());
    this.form = $('tap-form');
    this.stream = new Stream(() => `tap?${this.query}`, {
      silence,
      on: { batch: (b) => this.batch(b), problem: (p) => this.fail(p.text) },
      back: () => this.back(),
    });
    this.form.addEventListener('submit', (e) => e.preventDefault());
    this.form.addEventListener('input', () => this.later());
    this.form.addEventListener('reset', () => {
      this.route = '';
      setTimeout(() => this.restart());
    });
    $('tap-route').addEventListener('click', () => this.form.reset());
  }

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.restart(), 300);
  }

  /** filter shows the requests that fields and a route say, and no others. */
  filter({ route = '', ...fields }) {
    this.form.reset(); // and then it starts anew
    this.route = route;
    for (const [name, value] of Object.entries(fields)) this.form.elements[name].value = value;
  }

  /** read takes the query from the form, or returns false where the form is wrong. */
  read() {
    const f = this.form.elements;
    const q = new URLSearchParams();
    const slower = f.slower.value.trim();
    const wrong = slower !== '' && !(Number(slower) > 0);
    f.slower.setAttribute('aria-invalid', wrong);
    this.wrong = wrong;
    if (wrong) return false;
    for (const name of ['method', 'path', 'status']) if (f[name].value.trim()) q.set(name, f[name].value.trim());
    if (slower) q.set('slower', `${Number(slower)}ms`);
    if (f.failures.checked) q.set('failures', '1');
    if (this.route) q.set('route', this.route);
    say($('tap-route'), `route ${this.route} ✕`);
    $('tap-route').hidden = !this.route;
    this.query = q.toString();
    return true;
  }

  restart() {
    clearTimeout(this.timer);
    if (!this.read()) {
      this.note();
      return;
    }
    this.records.clear();
    Object.assign(this, { skipped: 0, dropped: 0, limit: 0, held: 0, problem: '' });
    this.table.empty(this.query ? 'Waiting for requests that pass the filter. Clear shows all of them.' : waiting);
    this.stream.open();
    this.draw();
  }

  /** back: a stream that begins knows nothing of what was open before, and counts from 0. */
  back() {
    this.before = { skipped: this.skipped, dropped: this.dropped };
    this.heldOpen.clear();
    this.lost();
    for (const r of this.records.values()) {
      if (r.open) Object.assign(r, { open: false, lost: true });
    }
    this.draw();
  }

  batch({ records, skipped, dropped, limit }) {
    if (this.problem) this.table.empty(waiting);
    this.problem = '';
    Object.assign(this, { skipped: this.before.skipped + skipped, dropped: this.before.dropped + dropped, limit: limit || this.limit });
    for (const r of records) {
      if (this.paused && !this.records.has(r.id)) {
        if (!this.heldOpen.delete(r.id)) this.held++;
        if (r.open) this.heldOpen.add(r.id);
        continue;
      }
      this.records.set(r.id, r);
      this.changed(r);
    }
    for (const id of this.records.keys()) {
      if (this.records.size <= most) break;
      this.records.delete(id);
    }
    this.draw();
  }

  fail(text) {
    this.problem = text;
    this.table.empty('No requests can be shown. Trying again every few seconds.');
    this.stream.again(5000);
    this.draw();
  }

  pause(paused) {
    this.paused = paused;
    this.held = 0;
    this.heldOpen.clear();
    this.draw();
  }

  drawNow() {
    if (!this.paused || this.records.size === 0) this.table.draw([...this.records.values()].reverse());
    this.note();
  }

  note() {
    const note = $('tap-note');
    const problem = this.wrong ? '“slower than” takes a number of milliseconds' : this.problem;
    mark(note, problem ? 'note bad' : 'note');
    note.setAttribute('aria-live', problem ? 'polite' : 'off'); // counts that go up all the time are not read out
    const parts = [];
    if (this.held) parts.push(`${count(this.held)} came while paused`);
    if (this.skipped) parts.push(`${count(this.skipped)}${this.limit ? '+' : ''} not shown`);
    if (this.dropped) parts.push(`${count(this.dropped)} events dropped`);
    say(note, problem || parts.join(', '));
    note.title = note.textContent + (this.limit ? `: of ${count(this.limit)} requests a second, and what came beyond that` : '');
  }
}
