// All that is known of one request.

import { $, el } from './dom.js';
import { bytes, clock, duration } from './format.js';
import { outcome, outcomeTone } from './tap.js';
import { Tree } from './tree.js';

/** Detail shows one record at a time. */
export class Detail {
  constructor() {
    this.root = $('detail');
    this.record = null;
  }

  get isOpen() {
    return this.record !== null;
  }

  open(record) {
    this.back = this.back ?? document.activeElement;
    this.draw(record);
    this.root.hidden = false;
    this.root.scrollTop = 0;
    this.root.focus({ preventScroll: true });
  }

  /** changed draws again what is open and has become more. */
  changed(record) {
    if (this.record?.id === record.id) this.draw(record);
  }

  /** lost: the end of what is open will not be seen. */
  lost() {
    if (!this.record?.open) return;
    Object.assign(this.record, { open: false, lost: true });
    this.draw(this.record);
  }

  close() {
    this.record = null;
    this.root.hidden = true;
    this.back?.focus?.({ preventScroll: true });
    this.back = null;
  }

  draw(r) {
    this.record = r;
    const within = this.root.contains(document.activeElement);
    const close = el('button', { type: 'button', title: 'Close (Esc)' }, 'Close');
    close.addEventListener('click', () => this.close());
    this.root.replaceChildren(...[
      el('div', { class: 'head' }, el('h2', {}, `${r.method} ${r.path}`), el('b', { class: outcomeTone(r) }, outcome(r)), close),
      section('Events', span(r), events(r)),
      section('Request', pairs([
        ['id', r.id], ['direction', r.direction], ['authority', r.authority], ['scheme', r.scheme],
        ['source', r.source], ...labels(r.sourceLabels), ['destination', r.destination], ...labels(r.destinationLabels),
        ...labels(r.routeLabels, 'route '),
      ])),
      fields('Request fields', r.request),
      fields('Response fields', r.response),
      fields('Trailers', r.trailers),
      explanation(r),
    ].filter(Boolean));
    if (within) this.root.focus({ preventScroll: true }); // what had it may be another one now
  }
}

function section(name, ...children) {
  return el('section', {}, el('h3', {}, name), ...children);
}

function pairs(all) {
  const lines = all.filter(([, value]) => value).map(([key, value]) => el('tr', {}, el('td', {}, key), el('td', { class: 'mono' }, value)));
  return el('table', {}, el('tbody', {}, ...lines));
}

const labels = (of, prefix = '· ') => Object.entries(of || {}).sort().map(([key, value]) => [prefix + key, value]);

function fields(name, all) {
  if (!all?.length) return null;
  const lines = all.map(([key, value]) => el('tr', {},
    el('td', { class: 'mono' }, key), el('td', { class: value === '[redacted]' ? 'mono redacted' : 'mono' }, value)));
  return section(name, el('table', {}, el('tbody', {}, ...lines)));
}

/** span shows which part of the time was waiting for the response. */
function span(r) {
  if (r.open || r.lost || !(r.duration > 0) || r.kind === 'tcp') return null;
  const wait = el('div', { class: 'wait' });
  const body = el('div', { class: 'body' });
  const share = r.responseAt > 0 ? r.responseAt / r.duration : 1;
  wait.style.width = `${100 * share}%`;
  body.style.width = `${100 * (1 - share)}%`;
  return el('div', { class: 'span', title: 'waiting for the response, and its body' }, wait, body);
}

function events(r) {
  const lines = [[clock(r.at), r.kind === 'tcp' ? 'connection opened' : 'request sent', '']];
  if (r.status) lines.push([`+${duration(r.responseAt)}`, `response ${r.status}`, '']);
  if (r.open || r.lost) {
    lines.push(['', r.open ? 'not ended yet' : 'its end was not seen', '']);
  } else {
    const how = [r.reset && `reset ${r.reset}`, r.grpc && `grpc ${r.grpc}`, r.error].filter(Boolean).join(', ');
    const size = r.kind === 'tcp' ? `${bytes(r.sent || 0)} sent, ${bytes(r.bytes)} received` : bytes(r.bytes);
    lines.push([`+${duration(r.duration)}`, r.status || r.kind === 'tcp' ? `end, ${size}` : 'failed without a response', how]);
  }
  return el('table', { class: 'events' }, el('tbody', {}, ...lines.map(([at, what, how]) => el('tr', {},
    el('td', {}, at), el('td', {}, what, how ? el('b', { class: r.failed ? 'bad' : 'soft' }, ` ${how}`) : null)))));
}

function explanation(r) {
  if (!r.explanation?.length) return null;
  const root = el('div', { class: 'tree' });
  new Tree(root).draw(r.explanation);
  return section('How it was routed and balanced', root);
}
