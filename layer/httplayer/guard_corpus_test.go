package httplayer

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// attack is a case of the corpus.
type attack struct {
	name   string
	served int
	reason string // "" is none, and "waits" that the request does not end
	bytes  []byte
}

const sentinel = "GET /sentinel HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"

func corpus(t testing.TB) (all []attack) {
	t.Helper()
	text, err := os.ReadFile("testdata/guard/smuggling.txt")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		title, begins := strings.CutPrefix(line, "= ")
		switch {
		case begins:
			cut := strings.LastIndex(title, ": ")
			require.Positive(t, cut, line)
			words := append(strings.Fields(title[cut+1:]), "")
			served, err := strconv.Atoi(words[0])
			require.NoError(t, err, line)
			all = append(all, attack{name: title[:cut], served: served, reason: words[1]})
		case line != "" && line[0] != '#':
			bytes, err := strconv.Unquote(`"` + line + `"`)
			require.NoError(t, err, line)
			last := &all[len(all)-1]
			last.bytes = append(last.bytes, bytes...)
		}
	}
	return all
}

// recorder is an upstream that answers whatever it takes for a request, as
// net/http parses it, and keeps the bytes of every connection.
type recorder struct {
	addr  string
	mu    sync.Mutex
	conns []*bytes.Buffer
}

func newRecorder(t testing.TB) *recorder {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &recorder{addr: l.Addr().String()}
	var open sync.WaitGroup
	open.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			open.Go(func() { r.serve(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		open.Wait()
	})
	return r
}

func (r *recorder) serve(conn net.Conn) {
	defer conn.Close()
	record := new(bytes.Buffer)
	r.mu.Lock()
	r.conns = append(r.conns, record)
	r.mu.Unlock()
	in := bufio.NewReader(io.TeeReader(conn, lockedWriter{&r.mu, record}))
	for {
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		if req.Header.Get("Expect") != "" {
			say(conn, "HTTP/1.1 100 Continue\r\n\r\n")
		}
		if _, err = io.Copy(io.Discard, req.Body); err != nil {
			return
		}
		answer := "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
		if req.Method != http.MethodHead {
			answer += "ok"
		}
		say(conn, answer)
	}
}

type lockedWriter struct {
	mu *sync.Mutex
	io.Writer
}

func (w lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Writer.Write(p)
}

// requests parses what was recorded.
func (r *recorder) requests() (whole []message, wrong bool) {
	st := newStrict()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, conn := range r.conns {
		found, bad := st.parse(conn.Bytes())
		whole, wrong = append(whole, found...), wrong || bad
	}
	return whole, wrong
}

// guarded is a proxy to the upstream, on loopback.
func guarded(t testing.TB, svc Service, guard *Guard, opts ...func(*http.Server)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr = l.Addr().String()
	if guard != nil {
		l = guard.Listener(l)
	}
	serveOn(t, l, Handler(svc), opts...)
	return addr
}

// result is what came of an attack.
type result struct {
	served   int // requests that got a 200, the sentinel included
	refused  int // the status behind them, if there is one
	called   int // requests that reached the service
	upstream []message
	wrong    bool // what the upstream got is not HTTP to a strict parser
}

func attacked(t *testing.T, a attack, guard *Guard) (got result) {
	t.Helper()
	upstream := newRecorder(t)
	var mu sync.Mutex
	e := endpoint(t, upstream.addr, WithHTTP1())
	svc := layer.Func[*http.Request, *http.Response](func(ctx context.Context, r *http.Request) (*http.Response, error) {
		mu.Lock()
		got.called++
		mu.Unlock()
		return e.Call(ctx, r)
	})
	conn, err := net.Dial("tcp", guarded(t, svc, guard))
	require.NoError(t, err)
	defer conn.Close()
	patience := 10 * time.Second
	if guard == nil {
		patience = 400 * time.Millisecond // one waits for more
	}
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	say(conn, string(a.bytes)+sentinel)
	if a.reason == "waits" {
		require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	}
	in := bufio.NewReader(conn)
	method := http.MethodGet
	if bytes.HasPrefix(a.bytes, []byte("HEAD")) {
		method = http.MethodHead
	}
	for {
		rsp, err := http.ReadResponse(in, &http.Request{Method: method})
		if err != nil {
			if guard != nil {
				assert.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the connection was not closed")
			}
			break
		}
		method = http.MethodGet
		_, _ = io.Copy(io.Discard, rsp.Body)
		switch {
		case rsp.StatusCode == http.StatusOK:
			got.served++
		case rsp.StatusCode != http.StatusContinue:
			got.refused = rsp.StatusCode
		}
	}
	mu.Lock()
	defer mu.Unlock()
	got.upstream, got.wrong = upstream.requests()
	return got
}

func TestGuardCorpus(t *testing.T) {
	for _, a := range corpus(t) {
		t.Run(a.name, func(t *testing.T) {
			guard := NewGuard()
			got := attacked(t, a, guard)
			switch a.reason {
			case "":
				assert.Equal(t, a.served+1, got.served)
				assert.Zero(t, got.refused)
				assert.Empty(t, cuts(guard))
			case "waits":
				assert.Zero(t, got.served)
			default:
				assert.Equal(t, a.served, got.served)
				assert.Equal(t, http.StatusBadRequest, got.refused)
				assert.Equal(t, map[string]int64{a.reason: 1}, cuts(guard))
			}
			assert.False(t, got.wrong)
			assert.Len(t, got.upstream, got.served, "the upstream saw other requests than were answered")
			for _, m := range got.upstream {
				assert.LessOrEqual(t, m.Framings, 1)
				assert.NotContains(t, m.Target, "smuggled")
			}
		})
	}
}

// TestGuardCorpusWithout shows that the corpus bites: what net/http serves
// where there is no guard.
func TestGuardCorpusWithout(t *testing.T) {
	t.Parallel()
	through, split := 0, 0
	for _, a := range corpus(t) {
		if a.reason == "" || a.reason == "waits" {
			continue
		}
		got := attacked(t, a, nil)
		if got.served > a.served {
			through++
			t.Log("served without a guard: " + a.name)
		}
		if got.wrong || len(got.upstream) != got.served {
			split++
			t.Log("another request upstream: " + a.name)
		}
	}
	t.Logf("without a guard: %d served, %d of them read in another way upstream", through, split)
	assert.GreaterOrEqual(t, through, 25)
	assert.Positive(t, split)
}

func cuts(g *Guard) map[string]int64 {
	all := map[string]int64{}
	for r := range guardReasons {
		if n := g.Rejected(r); n > 0 {
			all[r.String()] = n
		}
	}
	return all
}
