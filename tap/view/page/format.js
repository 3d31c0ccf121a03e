// Numbers as people read them: three digits, and a unit where there is one.

export const none = '–';

/** duration takes nanoseconds. */
export function duration(ns) {
  if (!(ns > 0)) return none;
  if (ns < 999.5e3) return `${digits(ns / 1e3)} µs`;
  if (ns < 999.5e6) return `${digits(ns / 1e6)} ms`;
  if (ns < 119.5e9) return `${digits(ns / 1e9)} s`;
  return ago(ns / 1e9);
}

/** parsed is the nanoseconds of a duration as Go writes it, such as 1m2.5s; or undefined. */
export function parsed(text) {
  const units = { h: 3600e9, m: 60e9, s: 1e9, ms: 1e6, 'µs': 1e3, ns: 1 };
  if (!/^(\d+(\.\d+)?(h|ms|m|s|µs|ns))+$/.test(text)) return undefined;
  return [...text.matchAll(/([\d.]+)(h|ms|m|s|µs|ns)/g)].reduce((sum, [, n, unit]) => sum + Number(n) * units[unit], 0);
}

/** ago takes seconds. */
export function ago(s) {
  s = Math.round(s);
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min`;
  if (s < 172800) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86400)} d`;
}

function digits(x) {
  if (x >= 99.5) return x.toFixed(0);
  return x >= 9.95 ? x.toFixed(1) : x.toFixed(2);
}

/** rate takes a number a second. */
export function rate(x) {
  if (!(x >= 0.005)) return '0';
  if (x >= 99_999.5) return short(x);
  return x >= 999.5 ? count(Math.round(x)) : digits(x);
}

const whole = new Intl.NumberFormat('en');

/** count groups its digits, and shortens what has more than seven. */
export function count(n) {
  return n >= 1e7 ? short(n) : whole.format(n);
}

function short(n) {
  const [unit, name] = [[1e18, 'E'], [1e15, 'P'], [1e12, 'T'], [1e9, 'G'], [1e6, 'M']].find(([u]) => n >= u * 0.9995) ?? [1e3, 'k'];
  return `${digits(n / unit)} ${name}`;
}

export function bytes(n) {
  if (n < 1000) return `${n} B`;
  if (n < 999.5e3) return `${digits(n / 1e3)} kB`;
  if (n < 999.5e6) return `${digits(n / 1e6)} MB`;
  return `${digits(n / 1e9)} GB`;
}

/** share is of successes: it never shows 100 % where something failed. */
export function share(part, of) {
  if (!of) return none;
  if (part >= of) return '100 %';
  return `${Math.min(99.99, (100 * part) / of).toFixed(2)} %`;
}

const pad = (n, width = 2) => String(n).padStart(width, '0');

export function clock(ms, withMillis = true) {
  const d = new Date(ms);
  const s = `${pad(d.getHours())}:${pad(d.getMinutes())}:${pad(d.getSeconds())}`;
  return withMillis ? `${s}.${pad(d.getMilliseconds(), 3)}` : s;
}
