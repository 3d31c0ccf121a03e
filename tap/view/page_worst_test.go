package view

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// The page explains why a part is empty, and what to do.
func TestBrowserEmptyParts(t *testing.T) {
	b := newBrowser(t)
	text := func(id string) string { return `document.getElementById('` + id + `').innerText` }
	visit := func(t *testing.T, c Config) {
		t.Helper()
		h := newHost(t, c)
		b.do(chromedp.EmulateViewport(1440, 900), chromedp.Navigate("http://"+h.addr+"/view"))
	}
	t.Run("no traffic yet", func(t *testing.T) {
		visit(t, Config{})
		b.until(text("top-table") + `.includes('No requests yet. Send some through this process')`)
		b.until(text("top-note") + `.startsWith('0 rows, counted for')`)
		b.until(text("tap-table") + `.includes('Waiting for requests.')`)
		b.until(text("plot-bars") + `.includes('nothing measured in the last minute')`)
		b.until(text("layers-note") + `.startsWith('This process does not describe itself')`)
		b.until(text("state") + ` === 'live'`)
		b.keepIfAsked("nothing-yet")
	})
	t.Run("too many watchers", func(t *testing.T) {
		reg := tap.NewRegistry(tap.WithCapacity(1, 0))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range reg.Watch(ctx, &tappb.WatchRequest{}) {
			}
		}()
		visit(t, Config{Registry: reg})
		const full = `too many watchers: 1 of 1 (close another page`
		b.until(text("notice") + `.split('` + full + `').length === 2`)
		b.until(text("top-table") + `.includes('Requests are not counted')`)
		b.until(text("f-rate") + ` === '–'`)
		b.until(text("tap-note") + `.includes('` + full + `')`)
		b.keepIfAsked("refused")
		cancel()
		<-done
	})
	t.Run("client not allowed", func(t *testing.T) {
		b.expectLoss(true)
		defer b.expectLoss(false)
		visit(t, Config{Authorize: func(r *http.Request) error {
			if r.URL.Path == "/live" {
				return errors.New("say the word first")
			}
			return nil
		}})
		b.until(text("notice") + `.includes('view: say the word first')`)
		b.keepIfAsked("forbidden")
	})
	b.clean()
}

// A page shows the number of dropped events.
func TestBrowserDroppedEvents(t *testing.T) {
	b := newBrowser(t)
	source := counting(2)
	source.watch = func(ctx context.Context, _ *tappb.WatchRequest, yield func(tap.Event, error) bool) {
		for i := uint64(0); ctx.Err() == nil; i++ {
			if !yield(*begins(i), nil) || !yield(*ends(i), nil) || !yield(tap.Event{Dropped: 700}, nil) {
				return
			}
			_ = backoff.Sleep(ctx, 300*time.Millisecond)
		}
	}
	h := newHost(t, Config{Registry: source})
	b.do(chromedp.EmulateViewport(1440, 900), chromedp.Navigate("http://"+h.addr+"/view"))
	b.until(`/missed [1-9],?[0-9]00/.test(document.getElementById('plot-bars').innerText)`)
	b.ask(`import('./plots.js').then(({ Plots }) => {
		const p = new Plots();
		p.add([{ at: 5000, rate: 1 }, { at: 6000, rate: 1 }]);
		p.add([{ at: 5000, rate: 1 }, { at: 6000, rate: 1 }, { at: 7000, rate: 2 }]);
		const before = p.points.map((one) => one.at).join();
		p.add([{ at: 3000, rate: 3 }, { at: 4000, rate: 3 }]);
		document.body.dataset.points = before + ' ' + p.points.map((one) => one.at).join();
	}) && ''`)
	b.until(`document.body.dataset.points === '5000,6000,7000 3000,4000'`) // a clock that was set back
	b.until(`/[1-9],?[0-9]00 events dropped/.test(document.getElementById('tap-note').innerText)`)
	b.clean()
}

// Hostile names, paths and fields are neither run as scripts nor break the layout.
func TestBrowserHostileTexts(t *testing.T) {
	const nasty = `<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>` + "\u2028\r\n\u202e\x00\"'`${1}"
	long := "/" + strings.Repeat("very-long-", 300)
	b := newBrowser(t)
	source := fake{
		top: func(ctx context.Context, req *tappb.TopRequest, yield func(*tappb.TopResponse, error) bool) {
			for ctx.Err() == nil {
				rsp := &tappb.TopResponse{Span: durationpb.New(time.Second)}
				for i := range shownRows {
					rsp.Rows = append(rsp.Rows, &tappb.Row{
						Source: nasty + long, Destination: long, Method: nasty, Path: fmt.Sprint(nasty, long, i), Route: fmt.Sprint(nasty, i),
						Authority: nasty, Count: 1 << 60, Successes: 1 << 59, Rate: 1e9, Worst: durationpb.New(90 * time.Hour),
					})
				}
				if !yield(rsp, nil) {
					return
				}
				_ = backoff.Sleep(ctx, req.GetEvery().AsDuration())
			}
		},
		watch: func(ctx context.Context, _ *tappb.WatchRequest, yield func(tap.Event, error) bool) {
			all := map[string]string{nasty: nasty, "pod": nasty + long, "route": nasty}
			code := codes.Code(77)
			for i := range uint64(20) {
				e := tap.Event{ID: tap.StreamID{Stream: i}, SourceLabels: all, DestinationLabels: all, RouteLabels: all}
				e.RequestInit = &tap.RequestInit{
					Method: nasty, Scheme: nasty, Authority: nasty + long, Path: nasty + long, Headers: []tap.Field{{Name: nasty + long, Value: nasty + long}},
				}
				end := tap.Event{ID: e.ID, ResponseEnd: &tap.ResponseEnd{
					SinceRequestInit: time.Second, GRPCStatus: &code, Trailers: e.RequestInit.Headers,
					Explanation: []layer.Node{{Name: nasty, State: layer.State{{Key: nasty, Value: nasty + long}, {Key: "state", Value: nasty}}}},
				}}
				if !yield(e, nil) || !yield(end, nil) {
					return
				}
			}
			<-ctx.Done()
		},
	}
	h := newHost(t, Config{Registry: source, Title: nasty + long, Describe: func() layer.Node {
		return layer.Node{Name: nasty + long, State: layer.State{{Key: "source", Value: nasty}, {Key: "error", Value: nasty + long}}, Children: []layer.Node{
			{Name: "endpoint", State: layer.State{{Key: "addr", Value: nasty + long}, {Key: "state", Value: nasty}, {Key: "reason", Value: nasty + long}}},
		}}
	}})
	b.open(h)
	b.ask(`document.querySelector('#tap-table tr[data-key]').click() || ''`)
	b.until(`document.getElementById('detail').innerText.includes('owned')`)
	require.Equal(t, "0", b.ask(`String(document.querySelectorAll('body img, body script, body iframe').length)`))
	require.NotEqual(t, "owned", b.ask(`document.title`))
	require.Equal(t, "false", b.ask(`String(/[\u2028\u202e\0]/.test(document.documentElement.innerHTML))`), "no invisible marks")
	b.until(`(` + rowsOf + `)('top-table', 4)[0] === '1.00 G' && (` + rowsOf + `)('top-table', 5)[0] === '1.15 E'`)
	for _, width := range []int64{1440, 390} {
		b.do(chromedp.EmulateViewport(width, 800), chromedp.Sleep(100*time.Millisecond))
		require.Equal(t, "true", b.ask(`String(document.documentElement.scrollWidth <= innerWidth)`), "%d: nothing sticks out", width)
		require.Equal(t, "true", b.ask(`((d) => String(d.scrollWidth <= d.clientWidth))(document.getElementById('detail'))`), "%d", width)
		b.keepIfAsked("worst-" + strconv.FormatInt(width, 10))
	}
	b.press(kb.Escape)
	b.keepIfAsked("worst-390-page")
	b.clean()
}
