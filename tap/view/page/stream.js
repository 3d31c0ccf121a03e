// A stream of events that comes back by itself.

const slowest = 5000;

/**
 * Stream reads server-sent events from address(), and connects again when it is
 * lost. on has a function for each event, which gets what was sent; lost(why)
 * and back() tell of the connection. With silence, in milliseconds, a stream
 * that says nothing for so long is lost, too. A server that refuses says why, which only a second question can
 * read: the source of events keeps it to itself.
 */
export class Stream {
  constructor(address, { on, lost = () => {}, back = () => {}, silence = 0 }) {
    Object.assign(this, { address, on, lost, back, silence });
    this.wait = 500;
  }

  open() {
    this.close();
    const source = new EventSource(this.address());
    this.source = source;
    for (const [name, handle] of Object.entries(this.on)) {
      source.addEventListener(name, (e) => {
        if (this.source !== source) return;
        this.heard();
        handle(JSON.parse(e.data));
      });
    }
    source.onopen = () => {
      if (this.source !== source) return;
      this.wait = 500;
      this.heard();
      this.back();
    };
    source.onerror = () => {
      if (this.source !== source) return;
      if (source.readyState === EventSource.CLOSED) this.ask();
      this.again();
    };
    this.heard();
  }

  close() {
    clearTimeout(this.retry);
    clearTimeout(this.watch);
    this.source?.close();
    this.source = null;
  }

  /** again tries later, each time a little later, and not all pages at once. */
  again(after = this.wait) {
    this.close();
    this.lost();
    this.retry = setTimeout(() => this.open(), after * (0.75 + Math.random() / 2));
    this.wait = Math.min(this.wait * 1.6, slowest);
  }

  /** ask tells why there is no stream. */
  async ask() {
    try {
      const rsp = await fetch(this.address());
      if (rsp.ok) rsp.body.cancel();
      else if (this.source?.readyState !== EventSource.OPEN) this.lost((await rsp.text()).slice(0, 300).trim());
    } catch { /* there is no server */ }
  }

  heard() {
    if (!this.silence) return;
    clearTimeout(this.watch);
    this.watch = setTimeout(() => this.again(), this.silence);
  }
}
