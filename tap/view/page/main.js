// Puts the parts together: two streams in, one drawing a frame out, and the keys.

import { Detail } from './detail.js';
import { $, mark, once, say } from './dom.js';
import { clock, count, duration, none, rate, share } from './format.js';
import { Plots } from './plots.js';
import { Stream } from './stream.js';
import { Tap } from './tap.js';
import { Top } from './top.js';
import { Layers } from './tree.js';

// The times in ms after which the streams of a hidden page are closed. A browser has six
// connections for all pages of a server. The counts end with the last live stream.
const hiddenFor = { tap: 3000, live: 30_000 };
const silence = 6000; // a stream that should speak each second is lost after so long

let frame = null;
let paused = false;
let started = 0; // of the process
let edition = ''; // of this page
let lost = false;
let list = 'top';

const plots = new Plots();
const layers = new Layers();
const detail = new Detail();
const tap = new Tap((r) => detail.open(r), (r) => detail.changed(r), () => detail.lost());
const top_ = new Top((fields) => {
  choose('tap');
  tap.filter(fields);
  $('tap').scrollIntoView({ block: 'nearest' });
});

const draw = once(() => {
  state();
  if (!frame || paused) return;
  const { sum, points } = frame;
  const last = points.at(-1);
  const counted = frame.span > 0;
  say($('f-rate'), counted ? rate(sum.rate) : none);
  say($('f-success'), share(sum.successes, sum.count));
  mark($('f-success'), sum.count && sum.successes < sum.count * 0.99 ? 'bad' : '');
  for (const key of ['p50', 'p95', 'p99']) say($(`f-${key}`), duration(last[key]));
  say($('f-open'), counted ? count(sum.open) : none);
  top_.draw(frame);
  plots.draw(frame.bars, frame.missed);
  layers.draw(frame.tree, last.at);
});

const live = new Stream(() => 'live', {
  silence,
  on: {
    hello: (h) => {
      say($('title'), h.title);
      $('title').title = h.title;
      document.title = h.title;
      if (started && h.started !== started) {
        notice(`The process was started anew at ${clock(h.started, false)}. Its counts begin again.`, '', 12_000);
        tap.restart();
      } else if (lost) {
        notice('Connected again.', '', 4000);
        if (!document.hidden) tap.stream.open(); // its connection may be gone, too, and not know it
      }
      if (edition && h.edition !== edition) notice('The process has another version of this page: load it again.');
      edition ||= h.edition;
      started = h.started;
      lost = false;
    },
    frame: (f) => {
      plots.add(f.points);
      if (paused) return;
      frame = f;
      if (f.problems.length) notice(f.problems.join('; '), 'bad');
      else if ($('notice').classList.contains('bad')) notice('');
      draw();
    },
  },
  lost: (why) => {
    lost = true;
    notice(`${why || 'The connection to the process is lost'}. Trying again${frame ? '; what you see is from before' : ''}.`, 'bad');
    draw();
  },
});

let noticeTimer;
function notice(text, tone = '', ms = 0) {
  clearTimeout(noticeTimer);
  say($('notice'), text);
  mark($('notice'), `notice ${tone}`.trim());
  $('notice').hidden = text === '';
  if (ms) noticeTimer = setTimeout(() => notice(''), ms);
}

function state() {
  const now = lost ? 'lost' : paused ? 'paused' : frame ? 'live' : 'connecting';
  say($('state'), now === 'lost' ? 'reconnecting' : now);
  mark($('state'), `state ${now}`);
}

function pause() {
  paused = !paused;
  $('pause').setAttribute('aria-pressed', paused);
  say($('pause'), paused ? 'Go on' : 'Pause');
  tap.pause(paused);
  draw();
}

/** choose says which list the keys are for. */
function choose(which) {
  list = which;
}

const table = () => (list === 'tap' ? tap.table : top_.table);
const field = () => (list === 'tap' ? $('tap-form').elements.path : $('top-filter'));

function escape() {
  const at = document.activeElement;
  if (detail.isOpen) detail.close();
  else if (at?.matches('input, select')) at.blur();
  else if (list === 'tap' && tap.query) $('tap-form').reset();
  else if ($('top-filter').value) {
    $('top-filter').value = '';
    top_.draw(frame);
  } else table().choose(null);
}

const themes = ['auto', 'light', 'dark'];
function theme(name) {
  if (name === 'auto') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  say($('theme'), `Theme: ${name}`);
  try {
    localStorage.setItem('gotower-theme', name);
  } catch { /* it is not kept, then */ }
}
function nextTheme() {
  const now = document.documentElement.dataset.theme ?? 'auto';
  theme(themes[(themes.indexOf(now) + 1) % themes.length]);
}

const keys = {
  '/': () => field().focus(),
  j: () => table().move(1),
  k: () => table().move(-1),
  ArrowDown: () => table().move(1),
  ArrowUp: () => table().move(-1),
  Enter: () => table().enter(),
  p: pause,
  t: nextTheme,
  '?': () => $('help').showModal(),
  1: () => { choose('top'); top_.show('path'); },
  2: () => { choose('top'); top_.show('route'); },
  3: () => { choose('tap'); $('tap').scrollIntoView({ block: 'nearest' }); },
};

document.addEventListener('keydown', (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || $('help').open) return;
  if (e.key === 'Escape') {
    escape();
    return;
  }
  const at = e.target;
  if (at.matches('input, select')) {
    if (e.key === 'Enter' && at.id === 'top-filter') at.blur();
    return;
  }
  if (at.matches('button, summary') && (e.key === 'Enter' || e.key.startsWith('Arrow'))) return;
  if (detail.isOpen && e.key.startsWith('Arrow')) return; // they scroll it
  const act = keys[e.key];
  if (!act) return;
  e.preventDefault();
  act();
  if (detail.isOpen && (e.key === 'j' || e.key === 'k')) table().enter();
});

for (const which of ['top', 'tap']) {
  $(which).addEventListener('focusin', () => choose(which));
  $(which).addEventListener('pointerdown', () => choose(which));
}
$('pause').addEventListener('click', pause);
$('theme').addEventListener('click', nextTheme);
$('help-open').addEventListener('click', () => $('help').showModal());

let hiddenTimers = [];
function visible() {
  hiddenTimers.forEach(clearTimeout);
  if (document.hidden) {
    hiddenTimers = [setTimeout(() => tap.stream.close(), hiddenFor.tap), setTimeout(() => live.close(), hiddenFor.live)];
    return;
  }
  if (!live.source) live.open();
  if (!tap.stream.source) tap.stream.open();
  draw();
}
document.addEventListener('visibilitychange', visible);

let kept = 'auto';
try {
  kept = localStorage.getItem('gotower-theme') ?? 'auto';
} catch { /* as the system has it */ }
theme(themes.includes(kept) ? kept : 'auto');
live.open();
tap.restart();
if (document.hidden) visible(); // it was opened in the background
