package view

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// After an interruption, open requests are marked as lost, and the counts begin at 0.
func TestBrowserInterruption(t *testing.T) {
	b := newBrowser(t)
	interrupt := make(chan struct{})
	var streams atomic.Uint32
	source := counting(2)
	measured := source.watch
	source.watch = func(ctx context.Context, req *tappb.WatchRequest, yield func(tap.Event, error) bool) {
		if req.GetMaxRps() != maxInspected {
			measured(ctx, req, yield)
			return
		}
		base := streams.Add(1)
		show := func(e *tap.Event) {
			e.ID.Base = base
			yield(*e, nil)
		}
		show(begins(0))
		if base == 1 {
			for i := uint64(1); i <= 300; i++ {
				show(begins(i))
				show(responds(i, 200))
				show(ends(i))
			}
		}
		show(&tap.Event{Dropped: 3}) // the last event
		select {
		case <-interrupt:
		case <-ctx.Done():
		}
	}
	h := newHost(t, Config{Registry: source})
	b.do(chromedp.EmulateViewport(1440, 900), chromedp.Navigate("http://"+h.addr+"/view"))
	cut := func() {
		select {
		case interrupt <- struct{}{}:
		case <-b.Done():
		}
	}
	outcomes := func(which string) string {
		return `(` + rowsOf + `)('tap-table', 5).filter((o) => o === '` + which + `').length`
	}
	b.until(outcomes("open") + ` === 1 && ` + outcomes("200") + ` > 0`)
	const note, detail = `document.getElementById('tap-note').textContent`, `document.getElementById('detail').innerText`
	b.until(`/^[1-9][0-9]* not shown, 3 events dropped$/.test(` + note + `)`)
	before := b.ask(note)
	b.ask(`[...document.querySelectorAll('#tap-table tr[data-key]')].find((tr) => tr.cells[5].textContent === 'open').click() || ''`)
	b.until(detail + `.includes('not ended yet')`)

	b.expectLoss(true)
	cut()
	b.until(outcomes("open") + ` === 1 && ` + outcomes("unknown") + ` === 1`)
	b.until(detail + `.includes('its end was not seen')`)
	require.Equal(t, "unknown", b.ask(`document.querySelector('#detail .head b').textContent`))
	b.until(note + ` === ` + strconv.Quote(before) + `.replace('3 events', '6 events')`)

	b.press("p") // a paused page reports it when it continues
	b.until(`document.getElementById('state').textContent === 'paused'`)
	cut()
	b.until(note + `.includes('9 events dropped')`)
	b.press("p")
	b.until(outcomes("unknown") + ` === 2`)
	b.expectLoss(false)
	b.clean()
}

// A request that arrives in several parts while the page is paused is one request.
func TestBrowserCountsDuringPause(t *testing.T) {
	b := newBrowser(t)
	events := make(chan *tap.Event)
	source := counting(2)
	measured := source.watch
	source.watch = func(ctx context.Context, req *tappb.WatchRequest, yield func(tap.Event, error) bool) {
		if req.GetMaxRps() != maxInspected {
			measured(ctx, req, yield)
			return
		}
		for {
			select {
			case e := <-events:
				yield(*e, nil)
			case <-ctx.Done():
				return
			}
		}
	}
	h := newHost(t, Config{Registry: source})
	b.do(chromedp.EmulateViewport(1440, 900), chromedp.Navigate("http://"+h.addr+"/view"))
	const note = `document.getElementById('tap-note').textContent`
	dropped := 0
	show := func(e *tap.Event) { // and wait until the page has it
		for _, e := range []*tap.Event{e, {Dropped: 1}} {
			select {
			case events <- e:
			case <-b.Done():
			}
		}
		dropped++
		b.until(note + `.includes('` + strconv.Itoa(dropped) + ` events dropped')`)
	}
	show(begins(0))
	b.until(`(` + rowsOf + `)('tap-table', 5).length === 1`)
	b.press("p")
	b.until(`document.getElementById('state').textContent === 'paused'`)
	for _, e := range []*tap.Event{responds(0, 200), begins(1), responds(1, 200), begins(2), ends(1), ends(0)} {
		show(e)
	}
	require.Equal(t, "2 came while paused, 7 events dropped", b.ask(note))
	b.press("p")
	show(ends(2))
	require.Equal(t, "8 events dropped", b.ask(note))
	b.clean()
}
