package view

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// rowsOf returns the texts of a column of a table, from the top.
const rowsOf = `(id, column) => [...document.querySelectorAll('#' + id + ' tbody tr[data-key]')].map((tr) => tr.cells[column].textContent)`

func TestBrowser(t *testing.T) {
	b := newBrowser(t)
	tn := newTestProxy(t)
	h := newHost(t, tn.config())
	tn.traffic(t, 4)
	b.open(h)

	t.Run("live updates", func(t *testing.T) {
		require.Equal(t, "web-0", b.ask(`document.title`))
		require.Equal(t, "live", b.ask(`document.getElementById('state').textContent`))
		before := b.ask(`document.getElementById('top-table').innerText`)
		b.until(`document.getElementById('top-table').innerText !== ` + strconv.Quote(before))
		b.until(`document.querySelectorAll('#plot-latency path').length >= 3 && document.querySelectorAll('#plot-bars rect').length > 3`)
		b.until(`(` + rowsOf + `)('endpoints-table', 0).length === 6`)
		b.until(`document.getElementById('endpoints-table').innerText.includes('connection refused')`)
		b.until(`document.getElementById('endpoints-note').textContent === '5 of 6 ready'`)
		b.until(`document.getElementById('control-table').innerText.includes('profiles watching')`)
		b.until(`document.getElementById('layers-tree').innerText.includes('balance')`)
	})
	t.Run("foreign text", func(t *testing.T) {
		b.until(`document.getElementById('top-table').innerText.includes('%3Cimg')`)
		require.Equal(t, "0", b.ask(`String(document.querySelectorAll('main img, main script, main iframe').length)`))
	})
	t.Run("sort", func(t *testing.T) {
		b.ask(`[...document.querySelectorAll('#top-table th button')].find((e) => e.textContent === 'Path').click() || ''`)
		b.until(`((p) => p.every((v, i) => i === 0 || p[i - 1] <= v))((` + rowsOf + `)('top-table', 3))`)
		require.Equal(t, "ascending", b.ask(`document.querySelector('#top-table th[aria-sort]').getAttribute('aria-sort')`))
		b.ask(`[...document.querySelectorAll('#top-table th button')].find((e) => e.textContent === 'Path').click() || ''`)
		b.until(`((p) => p.every((v, i) => i === 0 || p[i - 1] >= v))((` + rowsOf + `)('top-table', 3))`)
	})
	t.Run("filter by the keyboard", func(t *testing.T) {
		b.press("/")
		require.Equal(t, "top-filter", b.ask(`document.activeElement.id`))
		b.press("checkout post")
		b.until(`((p) => p.length > 0 && p.every((v) => v === '/checkout'))((` + rowsOf + `)('top-table', 3))`)
		require.Contains(t, b.ask(`document.getElementById('top-note').textContent`), " of ")
		b.press(kb.Enter)
		require.NotEqual(t, "top-filter", b.ask(`document.activeElement.id`))
		b.press("j")
		const chosen = `document.activeElement.matches('#top-table tr.chosen[aria-current=true]')`
		b.until(chosen)
		before := b.ask(`document.getElementById('top-table').innerText`)
		b.until(`document.getElementById('top-table').innerText !== ` + strconv.Quote(before))
		b.until(chosen)
		require.Equal(t, "off", b.ask(`document.getElementById('tap-note').getAttribute('aria-live')`), "numbers are not read out")
	})
	t.Run("requests of a count", func(t *testing.T) {
		b.press("jk" + kb.Enter)
		require.Equal(t, "POST =/checkout", b.ask(`((f) => f.method.value + ' ' + f.path.value)(document.getElementById('tap-form').elements)`))
		b.until(`((p) => p.length > 3 && p.every((v) => v === '/checkout'))((` + rowsOf + `)('tap-table', 4))`)
	})
	t.Run("one request with withheld values", func(t *testing.T) {
		b.press("p")
		b.until(`document.getElementById('state').textContent === 'paused'`)
		b.until(`document.getElementById('tap-note').textContent.includes('came while paused')`)
		b.press("jj")
		for b.ask(`document.querySelector('#tap-table tr.chosen').cells[5].textContent.replace(/^(200|503)$/, 'ended')`) != "ended" {
			b.press("j")
		}
		b.press(kb.Enter)
		b.until(`!document.getElementById('detail').hidden`)
		text := b.ask(`document.getElementById('detail').innerText`)
		require.Contains(t, text, "POST /checkout")
		require.Regexp(t, `authorization\s+\[redacted\]`, text)
		require.Regexp(t, `set-cookie\s+\[redacted\]`, text)
		require.Regexp(t, `x-request-id\s+[0-9a-f]{16}`, text)
		require.Regexp(t, `response (200|503)`, text)
		require.Contains(t, text, "route checkout", "the explanation")
		require.NotContains(t, b.ask(`document.documentElement.outerHTML`), secret)
		b.press("j")
		b.until(`document.getElementById('detail').innerText !== ` + strconv.Quote(text))
		b.press(kb.Escape)
		b.until(`document.getElementById('detail').hidden`)
		b.press("p")
		b.until(`document.getElementById('state').textContent === 'live'`)
	})
	t.Run("a filter of live requests", func(t *testing.T) {
		b.press(kb.Escape)
		require.Equal(t, " ", b.ask(`((f) => f.method.value + ' ' + f.path.value)(document.getElementById('tap-form').elements)`))
		enter := `((name, value) => {
			const e = document.getElementById('tap-form').elements[name];
			e.value = value;
			e.dispatchEvent(new Event('input', { bubbles: true }));
			return '';
		})`
		b.ask(enter + `('status', '4xx')`)
		b.until(`((p) => p.length > 2 && p.every((v) => v === '404'))((` + rowsOf + `)('tap-table', 5))`)
		b.ask(enter + `('slower', 'x')`)
		b.until(`document.querySelector('#tap-form [aria-invalid=true]') !== null`)
		b.until(`document.getElementById('tap-note').textContent.includes('takes a number of milliseconds')`)
		b.ask(`document.querySelector('#tap-form [type=reset]').click() || ''`)
		b.until(`((p) => p.includes('200'))((` + rowsOf + `)('tap-table', 5))`)
	})
	t.Run("routes", func(t *testing.T) {
		b.press("1" + kb.Escape + "2")
		b.until(`((p) => p.includes('checkout') && p.includes('[DEFAULT]'))((` + rowsOf + `)('top-table', 2))`)
		require.Contains(t, b.ask(`document.querySelector('#top-table thead').innerText`), "Route")
		for route, routed := range map[string]string{"books": `v === '/books'`, "[DEFAULT]": `!/^\/(books|checkout)/.test(v)`} {
			b.ask(`[...document.querySelectorAll('#top-table tr[data-key]')].find((tr) => tr.cells[2].textContent === '` + route + `').click() || ''`)
			b.until(`document.getElementById('tap-route').textContent === 'route ` + route + ` ✕'`)
			b.until(`((p) => p.length > 5 && p.every((v) => ` + routed + `))((` + rowsOf + `)('tap-table', 4))`)
		}
		b.ask(`document.getElementById('tap-route').click() || ''`)
		b.until(`document.getElementById('tap-route').hidden`)
		b.until(`(` + rowsOf + `)('tap-table', 4).includes('/checkout')`)
		b.press("1")
	})
	t.Run("keys and colours", func(t *testing.T) {
		b.press("?")
		b.until(`document.getElementById('help').open`)
		b.press(kb.Escape)
		b.until(`!document.getElementById('help').open`)
		colour := func() string { return b.ask(`getComputedStyle(document.body).backgroundColor`) }
		b.prefer("light")
		light := colour()
		b.prefer("dark")
		dark := colour()
		require.NotEqual(t, light, dark)
		b.press("t")
		require.Equal(t, light, colour(), "light, whatever the system prefers")
		b.press("t")
		require.Equal(t, dark, colour())
		b.press("t")
		b.prefer("light")
		require.Equal(t, light, colour())
	})
	t.Run("a restart of the server", func(t *testing.T) {
		b.expectLoss(true)
		h.stop()
		b.until(`document.getElementById('state').textContent === 'reconnecting'`)
		b.until(`document.getElementById('notice').innerText.includes('connection to the process is lost')`)
		require.NotEmpty(t, b.ask(`document.getElementById('top-table').innerText`), "what was there is still shown")
		h.start(tn.config())
		b.until(`document.getElementById('notice').innerText.includes('started anew')`)
		b.until(`document.getElementById('state').textContent === 'live'`)
		b.expectLoss(false)
		b.until(`((p) => p.length > 5)((` + rowsOf + `)('tap-table', 4))`)
		b.until(`((p) => p.length > 5)((` + rowsOf + `)('top-table', 3))`)
	})
	for _, width := range []int64{1440, 1024, 390} {
		b.do(chromedp.EmulateViewport(width, 800), chromedp.Sleep(100*time.Millisecond))
		require.Equal(t, "true", b.ask(`String(document.documentElement.scrollWidth <= innerWidth)`), "%d: nothing sticks out", width)
	}
	b.clean()
}

// A page with very many requests stays usable: it draws, and shows a bounded number of
// them.
func TestBrowserOverload(t *testing.T) {
	b := newBrowser(t)
	flood := counting(1000)
	flood.watch = func(ctx context.Context, _ *tappb.WatchRequest, yield func(tap.Event, error) bool) {
		for i := uint64(0); ctx.Err() == nil; i++ {
			for _, e := range []*tap.Event{begins(i), responds(i, 200), ends(i)} {
				if !yield(*e, nil) {
					return
				}
			}
			if i%20 == 0 {
				_ = backoff.Sleep(ctx, time.Millisecond)
			}
		}
	}
	h := newHost(t, Config{Registry: flood})
	b.open(h)
	b.until(`document.querySelectorAll('#tap-table tbody tr').length === 300`)
	b.until(`/[1-9],[0-9]{3}\+ not shown/.test(document.getElementById('tap-note').textContent)`)
	b.do(chromedp.Evaluate[chromedp.Void](`window.drawn = 0; (function draw() { window.drawn++; requestAnimationFrame(draw); })()`))
	b.until(`window.drawn > 30`)
	before := b.ask(`document.getElementById('top-table').innerText`)
	b.until(`document.getElementById('top-table').innerText !== ` + strconv.Quote(before))
	require.Equal(t, "200 300", b.ask(`['top', 'tap'].map((id) => document.querySelectorAll('#' + id + '-table tbody tr').length).join(' ')`))
	b.clean()
}
