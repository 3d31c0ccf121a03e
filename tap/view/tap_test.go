package view

import (
	"bytes"
	"context"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/internal/backoff"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// until reads batches until one has a record that ok accepts.
func (l *listener) until(ok func(r record) bool) record {
	l.t.Helper()
	for {
		var b batch
		l.await("batch").into(l.t, &b)
		for _, r := range b.Records {
			if ok(r) {
				return r
			}
		}
	}
}

func TestTapRequests(t *testing.T) {
	tn := newTestProxy(t)
	_, at := serve(t, tn.config())
	l := listen(t, at+"/tap?path=/books&method=get")
	require.Eventually(t, func() bool { return watching(tn.reg) == 1 }, 20*time.Second, time.Millisecond)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, what := range []string{"POST shop.example /books", "GET reviews.example /other", "GET shop.example /books/7"} {
		status, err := tn.send(t.Context(), client, what)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, status)
	}
	r := l.until(func(r record) bool { return !r.Open && r.Status != 0 }) // shop-2 is down
	require.Equal(t, "GET", r.Method)
	require.Equal(t, "/books/7", r.Path, "the others do not pass the filter")
	require.Equal(t, "shop.example", r.Authority)
	require.Equal(t, "outbound", r.Direction)
	require.Equal(t, 200, r.Status)
	require.Positive(t, r.Duration)
	require.GreaterOrEqual(t, r.Duration, r.ResponseAt)
	require.Positive(t, r.Bytes)
	require.Contains(t, r.DestinationLabels["pod"], "shop-")
	require.Contains(t, r.Request, field{"authorization", "[redacted]"})
	require.Contains(t, r.Request, field{"cookie", "[redacted]"})
	require.Contains(t, r.Response, field{"set-cookie", "[redacted]"})
	require.Contains(t, r.Response, field{"content-type", "application/json"})
	require.Equal(t, "book by number", r.RouteLabels["route"])
	require.Equal(t, "profiles", r.Explanation[0].Name)
	require.Equal(t, attr{"route", "book by number"}, r.Explanation[0].State[1])
	require.NotContains(t, l.all.String(), secret)
}

func TestTapFailures(t *testing.T) {
	t.Parallel()
	tn := newTestProxy(t)
	_, at := serve(t, tn.config())
	tn.traffic(t, 3)
	l := listen(t, at+"/tap?failures=1")
	r := l.until(func(r record) bool {
		require.True(t, r.Failed)
		return r.Status == 503 // others could not be sent to an endpoint
	})
	require.False(t, r.Open, "only the response says that it is one")
}

func TestTapSlow(t *testing.T) {
	t.Parallel()
	tn := newTestProxy(t)
	_, at := serve(t, tn.config())
	tn.traffic(t, 3)
	r := listen(t, at+"/tap?slower=20ms").until(func(record) bool { return true })
	require.Greater(t, r.Duration, 20*time.Millisecond)
}

func TestTapInvalidFilter(t *testing.T) {
	_, at := serve(t, Config{})
	l := listen(t, at+"/tap?status=7xx")
	var p problemEvent
	l.await("problem").into(t, &p)
	require.Contains(t, p.Text, `status: "7xx"`)
	_, more := l.next()
	require.False(t, more)
}

func TestTapRejected(t *testing.T) {
	reg := tap.NewRegistry(tap.WithCapacity(1, 0))
	_, at := serve(t, Config{Registry: reg})
	first := listen(t, at+"/tap")
	require.Eventually(t, func() bool { return watching(reg) == 1 }, 10*time.Second, time.Millisecond)
	second := listen(t, at+"/tap")
	var p problemEvent
	second.await("problem").into(t, &p)
	require.Contains(t, p.Text, "too many")
	require.Contains(t, p.Text, "close another page")
	first.leave()
}

// Thousands of events a second come to a page as a few hundred records.
func TestTapOverload(t *testing.T) {
	flood := fake{watch: func(ctx context.Context, _ *tappb.WatchRequest, yield func(tap.Event, error) bool) {
		for i := uint64(0); ctx.Err() == nil; i++ {
			for _, e := range []*tap.Event{begins(i), responds(i, 200), ends(i)} {
				if !yield(*e, nil) {
					return
				}
			}
			if i%100 == 0 {
				_ = backoff.Sleep(ctx, time.Millisecond)
			}
		}
	}}
	_, at := serve(t, Config{Registry: flood})
	l := listen(t, at+"/tap")
	var b batch
	batches := 0
	for ; batches < 4 || b.Skipped <= 1000; batches++ {
		b = batch{}
		l.await("batch").into(t, &b)
		require.LessOrEqual(t, len(b.Records), 2*maxBatch, "those of this batch, and the end of those of the last")
	}
	require.Less(t, l.all.Len(), batches*25_000)
}

// pipe is the response of a stream that is read in the test.
type pipe struct {
	mu     sync.Mutex
	text   bytes.Buffer
	header http.Header
}

func (p *pipe) Header() http.Header { return p.header }
func (p *pipe) WriteHeader(int)     {}
func (p *pipe) Flush()              {}
func (p *pipe) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

func (p *pipe) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

func (p *pipe) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	// A part of a line is kept, so that lines stay whole.
	if i := bytes.LastIndexByte(p.text.Bytes(), '\n'); i >= 0 {
		p.text.Next(i + 1)
	}
}

// No stream contains the values of withheld fields, and a browser can read every
// stream.
func FuzzStreamSecrets(f *testing.F) {
	f.Add("Bearer abcdefgh", "GET", "/a", "X-Other", "value")
	f.Add("x\ny: z", "G\"T", "/<script>alert(1)</script>", "Content-Type", "a\r\ndata: {}\r\n\r\nevent: hello")
	f.Add("\xff\xfe\x00", "", "", "\x00", "\u2028\u2029")
	reg := new(tap.Registry)
	h := New(Config{Registry: reg})
	h.live.every, h.batchEvery = 100*time.Millisecond, time.Millisecond
	svc := tap.Layer(reg, httplayer.HTTP{}, tap.Outbound, tap.WithDestination(netip.MustParseAddrPort("127.0.0.1:80"), nil))(
		layer.Func[*http.Request, *http.Response](func(_ context.Context, r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Header: r.Header, Trailer: r.Header, Body: http.NoBody}, nil
		}))
	ctx, cancel := context.WithCancel(f.Context())
	live, left := h.open(ctx, "/live")
	f.Cleanup(func() {
		cancel()
		<-left
	})
	f.Fuzz(func(t *testing.T, hidden, method, path, name, value string) {
		hidden = "s3cret" + hidden + "s3cret"
		if strings.Contains(method+path+name+value, "s3cret") {
			return
		}
		ctx, cancel := context.WithCancel(t.Context())
		requests, left := h.open(ctx, "/tap")
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://web.example", http.NoBody)
		r.Method, r.URL.Path = method, path
		r.Header = http.Header{
			name: {value}, "Authorization": {hidden}, "Cookie": {hidden}, "Set-Cookie": {hidden}, "Proxy-Authorization": {hidden},
		}
		for !strings.Contains(requests.String(), `"open":false`) {
			rsp, err := svc.Call(t.Context(), r) // again, until there is a watcher
			require.NoError(t, err)
			_ = rsp.Body.Close()
			time.Sleep(time.Millisecond)
		}
		cancel()
		<-left
		for _, text := range []string{requests.String(), live.String()} {
			require.NotContains(t, text, "s3cret")
			for line := range strings.Lines(text) {
				field, _, ok := strings.Cut(line, ": ")
				require.True(t, line == "\n" || ok && (field == "event" || field == "data" || field == ""), "%q", line)
			}
		}
		live.forget()
	})
}

// open begins a stream, and ends it with ctx; left is closed then.
func (h *Handler) open(ctx context.Context, target string) (p *pipe, left chan struct{}) {
	p, left = &pipe{header: http.Header{}}, make(chan struct{})
	r, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+target, http.NoBody)
	r.RemoteAddr = "127.0.0.1:1"
	go func() {
		defer close(left)
		h.ServeHTTP(p, r)
	}()
	return p, left
}
