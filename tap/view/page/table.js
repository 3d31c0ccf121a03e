// A table that is drawn again and again: rows are kept by their key, moved when
// their place is another, and only texts that changed are set.

import { el, mark, say } from './dom.js';

const isTail = (c) => (c.class || '').includes('tail');

/**
 * Column: name, text(row); and if wanted width, class (n for numbers, mono,
 * soft, medium and wide for those that a narrow screen leaves out), tone(row)
 * for a class of one cell, title(row), value(row) by which it is sorted, and up
 * where the smallest comes first. A column of class tail is cut at the beginning
 * of its text: what tells paths apart is their end.
 */
export class Table {
  constructor(root, columns, { empty = 'Nothing yet.', sort = null, key, open = null, dim = () => '' } = {}) {
    Object.assign(this, { root, columns, key, open, dim, sort, down: true, rows: [], byKey: new Map(), chosen: null });
    this.heads = columns.map((c) => this.head(c));
    this.body = el('tbody');
    this.none = el('tr', {}, el('td', { class: 'empty', colspan: columns.length }, empty));
    root.replaceChildren(el('thead', {}, el('tr', {}, ...this.heads)), this.body);
    this.body.addEventListener('click', (e) => {
      const tr = e.target.closest('tr[data-key]');
      if (!tr) return;
      this.choose(tr.dataset.key);
      this.open?.(this.byKey.get(tr.dataset.key).row);
    });
    if (sort) this.down = !columns.find((c) => c.name === sort).up;
    this.markHeads();
  }

  head(c) {
    const th = el('th', { scope: 'col', class: c.class || null }, c.value ? el('button', { type: 'button' }, c.name) : c.name);
    if (c.width) th.style.width = `calc(${c.width} * var(--narrow, 1))`;
    th.querySelector('button')?.addEventListener('click', () => {
      this.down = this.sort === c.name ? !this.down : !c.up;
      this.sort = c.name;
      this.markHeads();
      this.draw(this.rows);
    });
    return th;
  }

  markHeads() {
    this.columns.forEach((c, i) => {
      if (c.name === this.sort) this.heads[i].setAttribute('aria-sort', this.down ? 'descending' : 'ascending');
      else this.heads[i].removeAttribute('aria-sort');
    });
  }

  /** empty says why there is nothing. */
  empty(text) {
    say(this.none.firstChild, text);
  }

  draw(rows) {
    this.rows = rows;
    const span = String(this.heads.filter((th) => th.offsetParent).length || this.columns.length);
    if (span !== this.span) this.stretch(span);
    const focused = this.body.contains(document.activeElement);
    const seen = new Set();
    let at = this.body.firstChild;
    for (const row of this.sorted(rows)) {
      const key = this.key(row);
      if (seen.has(key)) continue;
      seen.add(key);
      const tr = this.line(key, row);
      if (tr === at) at = at.nextSibling;
      else this.body.insertBefore(tr, at);
    }
    for (const [key, { tr }] of this.byKey) {
      if (seen.has(key)) continue;
      tr.remove();
      this.byKey.delete(key);
    }
    if (focused && !this.body.contains(document.activeElement)) { // it was moved
      (this.byKey.get(this.chosen)?.tr ?? this.root.parentElement).focus({ preventScroll: true });
    }
    if (seen.size === 0) this.body.append(this.none);
    else this.none.remove();
  }

  /** stretch has rows of one cell cover the columns that a screen of this width shows. */
  stretch(span) {
    this.span = span;
    for (const td of [this.none.firstChild, ...this.body.querySelectorAll('td[colspan]')]) td.setAttribute('colspan', span);
  }

  sorted(rows) {
    const c = this.columns.find((one) => one.name === this.sort);
    if (!c) return rows;
    const sign = this.down ? -1 : 1;
    return rows
      .map((row) => [c.value(row), this.key(row), row])
      .sort(([a, ka], [b, kb]) => (a < b ? -sign : a > b ? sign : ka < kb ? -1 : 1))
      .map(([, , row]) => row);
  }

  line(key, row) {
    let one = this.byKey.get(key);
    if (!one) {
      const cells = row.group ? [el('td', { colspan: this.span })] : this.columns.map((c) => el('td', {}, isTail(c) && el('bdi', { dir: 'ltr' })));
      one = { tr: el('tr', { 'data-key': row.group ? null : key }, ...cells), cells };
      this.byKey.set(key, one);
    }
    one.row = row;
    if (row.group) {
      say(one.cells[0], row.group);
      mark(one.cells[0], row.tone ?? 'soft mono');
      if (one.cells[0].title !== row.group) one.cells[0].title = row.group;
      return one.tr;
    }
    mark(one.tr, `${this.open ? 'opens' : ''} ${key === this.chosen ? 'chosen' : ''} ${this.dim(row)}`.trim());
    this.columns.forEach((c, i) => {
      const td = one.cells[i];
      const text = c.text(row);
      say(isTail(c) ? td.firstChild : td, text);
      mark(td, `${c.class || ''} ${c.tone ? c.tone(row) : ''}`.trim());
      if (c.title) {
        const title = c.title === true ? text : c.title(row);
        if (td.title !== title) td.title = title;
      }
    });
    return one.tr;
  }

  choose(key) {
    const was = this.byKey.get(this.chosen)?.tr;
    was?.classList.remove('chosen');
    was?.removeAttribute('aria-current');
    this.chosen = key;
    const tr = this.byKey.get(key)?.tr;
    tr?.classList.add('chosen');
    tr?.setAttribute('aria-current', 'true');
  }

  /** move chooses the row so many below, and shows it. */
  move(by) {
    const lines = [...this.body.querySelectorAll('tr[data-key]')];
    if (lines.length === 0) return;
    const now = lines.findIndex((tr) => tr.dataset.key === this.chosen);
    const next = lines[Math.max(0, Math.min(lines.length - 1, now < 0 ? 0 : now + by))];
    this.choose(next.dataset.key);
    next.tabIndex = -1;
    next.focus({ preventScroll: true }); // a screen reader reads it
    next.scrollIntoView({ block: 'nearest' });
  }

  /** enter opens the chosen row. */
  enter() {
    const one = this.byKey.get(this.chosen);
    if (one) this.open?.(one.row);
  }
}
