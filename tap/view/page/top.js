// The rows that the process counted, by path or by route.

import { $, mark, say } from './dom.js';
import { ago, count, duration, rate, share } from './format.js';
import { Table } from './table.js';

const time = (name, key, extra = '') => ({
  name, width: '74px', class: `n ${extra}`, text: (r) => duration(r[key]), value: (r) => r[key],
});

const nothing = 'No requests yet. Send some through this process: their rows appear here within a second. '
  + 'If they do not, tap.Layer is missing from its stack, or has another registry than this page.';
const other = '(other)'; // the row of those for which there was no row left

const failing = (r) => (r.count && r.successes < r.count ? 'bad' : '');

const place = (name, key, narrow) => ({
  name, width: '116px', class: `mono ${narrow}`, title: true, text: (r) => r[key] || '–', value: (r) => r[key], up: true,
});
const source = place('Source', 'source', 'wide');
const destination = place('Destination', 'destination', 'medium');
const numbers = [
  { name: 'Req/s', width: '80px', class: 'n', text: (r) => rate(r.rate), value: (r) => r.rate },
  { name: 'Count', width: '76px', class: 'n medium', text: (r) => count(r.count), value: (r) => r.count },
  { name: 'Open', width: '56px', class: 'n medium', text: (r) => count(r.open), value: (r) => r.open },
  {
    name: 'Success', width: '80px', class: 'n', up: true,
    tone: failing, text: (r) => share(r.successes, r.count), value: (r) => (r.count ? r.successes / r.count : 2),
  },
  time('p50', 'p50', 'medium'), time('p95', 'p95'), time('p99', 'p99', 'medium'),
  time('Best', 'best', 'wide'), time('Worst', 'worst', 'wide'), time('Last', 'last', 'wide'),
];
const paths = [
  source, destination,
  { name: 'Method', width: '74px', class: 'mono', text: (r) => r.method, value: (r) => r.method, up: true },
  { name: 'Path', class: 'mono tail', title: (r) => `${r.authority}${r.path}`, text: (r) => r.path, value: (r) => r.path, up: true },
  ...numbers,
];
const routes = [
  source, destination,
  { name: 'Route', class: 'mono', title: true, text: (r) => r.route, value: (r) => r.route, up: true },
  ...numbers,
];

/** of a row are the fields of the filter that shows its requests. A long path was cut, and a pattern is one of http.ServeMux. */
const isPattern = (path) => path.includes('{') || (path && path[0] !== '/');
const beginning = (pattern) => pattern.slice(pattern.indexOf('/')).split('{')[0];
const pathOf = (path) => (isPattern(path) ? beginning(path) : path.length < 240 ? `=${path}` : path);
const ofPath = (r) => (r.path === other ? {} : { method: r.method, path: pathOf(r.path) });
const ofRoute = (r) => (r.route === other ? {} : { route: r.route });

/** Top is both tables, of which one is shown. open(fields) shows the requests of a row. */
export class Top {
  constructor(open) {
    this.tables = {};
    this.make = {
      path: () => new Table($('top-table'), paths, {
        sort: 'Req/s', open: (r) => open(ofPath(r)), empty: nothing,
        key: (r) => [r.direction, r.source, r.destination, r.authority, r.method, r.path, r.route].join('\n'),
      }),
      route: () => new Table($('top-table'), routes, {
        sort: 'Req/s', open: (r) => open(ofRoute(r)), empty: nothing,
        key: (r) => [r.direction, r.source, r.destination, r.authority, r.route].join('\n'),
      }),
    };
    this.show('path');
    $('by-path').addEventListener('click', () => this.show('path'));
    $('by-route').addEventListener('click', () => this.show('route'));
    $('top-filter').addEventListener('input', () => this.draw(this.frame));
  }

  show(what) {
    this.what = what;
    this.table = this.make[what]();
    for (const name of ['path', 'route']) $(`by-${name}`).setAttribute('aria-pressed', what === name);
    this.draw(this.frame);
  }

  draw(frame) {
    if (!frame) return;
    this.frame = frame;
    const all = this.what === 'path' ? frame.rows : frame.routes;
    const words = $('top-filter').value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = words.length === 0 ? all : all.filter((r) => {
      const text = `${r.source} ${r.destination} ${r.authority} ${r.method} ${r.path} ${r.route}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    this.table.empty(all.length > 0 ? 'No row has that.' : frame.span > 0 ? nothing : 'Requests are not counted: see above.');
    this.table.draw(rows);
    this.note(frame, all.length, rows.length);
  }

  note(frame, all, shown) {
    const note = $('top-note');
    mark(note, 'note');
    const of = shown === all ? count(all) : `${count(shown)} of ${count(all)}`;
    const left = this.what === 'path' ? frame.omitted : frame.hidden;
    const more = left > 0 ? `, ${count(left)} more not shown` : '';
    say(note, frame.span > 0 ? `${of} rows${more}, counted for ${ago(frame.span / 1e9)}` : '');
  }
}
