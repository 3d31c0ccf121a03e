// The tree of layers, and what is found in it: endpoints, and how old what the
// control plane said is.

import { $, el, mark, say } from './dom.js';
import { ago, count, duration, parsed } from './format.js';
import { Table } from './table.js';

const good = /^(ready|up|closed|exists|watching|serving|known|true|ok)\b/;
const bad = /^(down|failed|failing|ejected|ended|lost|open|does not exist|closed:|panic)/;
const reasons = ['reason', 'error', 'successor_error'];

const get = (node, key) => node.state?.find(([k]) => k === key)?.[1];
const show = (v) => {
  if (typeof v === 'number') return count(v);
  const ns = parsed(String(v));
  return ns > 0 ? duration(ns) : String(v);
};

/** chain is a node and all that it wraps, in the order of a request. */
function chain(node) {
  const all = [];
  for (let n = node; n; n = n.next) all.push(n);
  return all;
}

/** wrapped are the nodes that are not the first of a chain. */
const wrapped = (nodes) => new Set(nodes.map((n) => n.next).filter(Boolean));

/** tone is the class of a state. */
export function tone(state) {
  const s = String(state);
  return good.test(s) ? 'good' : bad.test(s) ? 'bad' : 'warn';
}

/** Tree draws nested lists, and changes only what changed. */
export class Tree {
  constructor(root) {
    this.list = el('ul');
    root.replaceChildren(this.list);
  }

  draw(nodes) {
    this.sync(this.list, nodes);
  }

  sync(list, nodes) {
    const inner = wrapped(nodes);
    nodes.forEach((node, i) => {
      const inside = Boolean(node.children?.length);
      let item = list.children[i];
      if (item && (item.firstChild.localName === 'details') !== inside) {
        const other = this.item(inside);
        item.replaceWith(other);
        item = other;
      }
      if (!item) list.append((item = this.item(inside)));
      mark(item, inner.has(node) ? 'inner' : '');
      this.line(inside ? item.firstChild.firstChild : item.firstChild, node);
      if (inside) this.sync(item.firstChild.lastChild, node.children.flatMap(chain));
    });
    while (list.children.length > nodes.length) list.lastChild.remove();
  }

  item(inside) {
    return el('li', {}, inside ? el('details', { open: true }, el('summary', {}, el('b')), el('ul')) : el('span', {}, el('b')));
  }

  line(line, node) {
    say(line.firstChild, node.name);
    const state = node.state || [];
    state.forEach(([key, value], i) => {
      let attr = line.children[i + 1];
      if (!attr) line.append((attr = el('span', { class: 'attr' }, el('span'), el('span'))));
      say(attr.firstChild, `${key} `);
      say(attr.lastChild, show(value));
      mark(attr.lastChild, key === 'state' || key === 'link' ? tone(value) : reasons.includes(key) ? 'bad' : '');
    });
    while (line.children.length > state.length + 1) line.lastChild.remove();
  }
}

/** find walks the tree: each node, with the nearest target above it. */
function find(root, visit) {
  const walk = (node, target) => {
    for (const n of chain(node)) {
      const own = get(n, 'target') ?? get(n, 'authority') ?? target;
      if (visit(n, own) === false) return;
      (n.children || []).forEach((child) => walk(child, own));
      target = own;
    }
  };
  if (root) walk(root, '');
}

/** endpoints are the nodes of that name, each with what its own stack says of its address. */
export function endpoints(root) {
  const all = [];
  find(root, (node, target) => {
    if (node.name !== 'endpoint' || get(node, 'addr') === undefined) return true;
    const e = { target: target || '', addr: String(get(node, 'addr')) };
    for (const n of chain(node)) {
      if (n.name !== 'endpoint') continue;
      for (const [key, value] of n.state || []) e[key] ??= value;
    }
    all.push(e);
    return false; // what it wraps is the same endpoint
  });
  return all;
}

/** sources are the nodes that say where their news comes from, or how old it is. */
export function sources(root) {
  const all = [];
  find(root, (node, target) => {
    if (node.name === 'endpoint') return false;
    const [source, age] = [get(node, 'source'), get(node, 'age') ?? get(node, 'stale') ?? get(node, 'updated')];
    const discovered = node.name === 'balance' ? get(node, 'state') : undefined;
    const state = source ?? discovered ?? (age === undefined ? undefined : 'known');
    if (state === undefined) return true;
    const n = get(node, 'endpoints');
    const found = n === 1 ? '1 endpoint' : `${show(n)} endpoints`;
    const news = n === undefined ? `${node.name} ${state}` : state === 'exists' ? found : `${found}, ${state}`;
    all.push({ what: node.name, news, target: target || '', state: String(state), age, error: get(node, 'error') });
    return true;
  });
  return all;
}

const reason = (e) => {
  const known = reasons.map((key) => e[key]).filter((v) => v);
  const why = known.find((v) => v !== 'not ready') ?? known[0];
  const retry = e.link === 'down' && parsed(e.retry_in) > 0 ? `, again in ${show(e.retry_in)}` : '';
  return why ? `${why}${retry}` : e.link === 'down' ? `down${retry}` : '';
};
const number = (e, key) => (e[key] === undefined ? '' : show(e[key]));
const state = (e) => String(e.state ?? e.link ?? 'known');

/** Layers is all that is drawn from the tree. */
export class Layers {
  constructor() {
    this.tree = new Tree($('layers-tree'));
    this.since = new Map(); // what a source said, and since when
    this.endpoints = new Table($('endpoints-table'), [
      { name: 'Address', width: '158px', class: 'mono', title: (e) => e.labels || e.addr, text: (e) => e.addr },
      { name: 'Latency', width: '76px', class: 'n', title: (e) => (e.cost ? `costs ${show(e.cost)} because of failures` : ''), text: (e) => (e.ewma ? show(e.ewma) : '–') },
      { name: 'Open', width: '56px', class: 'n', text: (e) => number(e, 'in_flight') },
      { name: 'Picks', width: '70px', class: 'n medium', text: (e) => number(e, 'picks') },
      { name: 'Conns', width: '60px', class: 'n medium', text: (e) => number(e, 'connections') },
      { name: 'State', title: true, tone: (e) => tone(state(e)), text: state },
    ], { key: (e) => e.id ?? `${e.target} ${e.addr}`, empty: 'No endpoints in the tree.' });
    this.control = new Table($('control-table'), [
      { name: 'Target', width: '52%', class: 'mono', title: true, text: (s) => s.target || s.what },
      {
        name: 'News', title: true, tone: (s) => tone(s.state),
        text: (s) => s.news + (s.error && !s.news.includes(s.error) ? `: ${s.error}` : ''),
      },
      { name: 'Since', width: '68px', class: 'n', title: () => 'its age, or since when this page has seen it so', text: (s) => s.since },
    ], { key: (s) => `${s.what} ${s.target} ${s.n}`, empty: 'Nothing in the tree says where it is from.' });
  }

  draw(root, now) {
    const es = endpoints(root).sort((a, b) => (a.target + a.addr < b.target + b.addr ? -1 : 1));
    const many = new Set(es.map((e) => e.target)).size > 1;
    this.endpoints.draw(es.flatMap((e, i) => [
      ...(many && es[i - 1]?.target !== e.target ? [{ group: e.target || '–', id: `target ${e.target}` }] : []),
      e,
      ...(reason(e) ? [{ group: reason(e), id: `why ${e.target} ${e.addr}`, tone: 'why' }] : []),
    ]));
    const ready = es.filter((e) => tone(state(e)) === 'good').length;
    say($('endpoints-note'), es.length ? `${count(ready)} of ${count(es.length)} ready` : '');
    this.drawControl(root, now);
    this.tree.draw(root ? chain(root) : []);
    say($('layers-note'), root ? '' : 'This process does not describe itself: view.Config has no Describe.');
  }

  drawControl(root, now) {
    const all = sources(root);
    const kept = new Map();
    all.forEach((s, i) => {
      s.n = i;
      const key = `${i} ${s.what} ${s.target} ${s.news}`;
      kept.set(key, this.since.get(key) ?? now);
      s.since = s.age === undefined ? ago((now - kept.get(key)) / 1000) : show(s.age);
    });
    this.since = kept;
    this.control.draw(all);
    const lost = all.filter((s) => tone(s.state) === 'bad').length;
    say($('control-note'), lost ? `${count(lost)} lost` : '');
    mark($('control-note'), lost ? 'note bad' : 'note');
  }
}
