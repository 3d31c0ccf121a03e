package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/tap"
)

// waits is how long a test waits for an event.
const waits = 30 * time.Second

// program is the variable with which the test binary runs main.
const program = "GOTOWER_TEST_TAPCTL"

// Tests wait more than they work, so more of them run at once than there are processors.
func TestMain(m *testing.M) {
	if os.Getenv(program) != "" {
		main()
		return
	}
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// tapped is a process that answers requests and can be watched.
type tapped struct {
	addr string // of its tap
	svc  httplayer.Service
}

// How a tapped process serves tap.
type serving func(to *grpc.Server, reg *tap.Registry)

// ours has gotower's service, and describes a balancer with two endpoints.
func ours(to *grpc.Server, reg *tap.Registry) {
	tap.NewServer(reg, tap.WithDescribe(func() layer.Node {
		endpoint := func(addr, state string, more ...layer.Attr) layer.Node {
			return layer.Node{Name: "endpoint", State: append(layer.State{
				{Key: "addr", Value: addr}, {Key: "state", Value: state}, {Key: "ewma", Value: 12 * time.Millisecond},
				{Key: "in_flight", Value: 1}, {Key: "picks", Value: 42},
			}, more...)}
		}
		return layer.Node{Name: "router", Next: &layer.Node{
			Name: "balance", State: layer.State{{Key: "target", Value: "web.default:80"}},
			Children: []layer.Node{
				endpoint("10.0.0.1:80", "ready", layer.Attr{Key: "labels", Value: map[string]string{"pod": "web-0", "zone": "a"}}),
				endpoint("10.0.0.2:80", "ejected", layer.Attr{Key: "reason", Value: "7 of 10 failed"}, layer.Attr{Key: "known", Value: false}),
			},
		}}
	})).Register(to)
}

func linkerds(to *grpc.Server, reg *tap.Registry) { pb.RegisterTapServer(to, tap.NewServer(reg)) }

func newTapped(t *testing.T, serve serving, opts ...grpc.ServerOption) *tapped {
	t.Helper()
	reg := tap.NewRegistry(tap.WithBodies(1000, func(_ string, b []byte) []byte { return b }))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := grpc.NewServer(opts...)
	serve(srv, reg)
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(srv.Stop)
	answer := layer.Func[*http.Request, *http.Response](func(ctx context.Context, req *http.Request) (*http.Response, error) {
		layer.PickInfoFromContext(ctx).Explanation.Add(layer.Node{Name: "balance", State: layer.State{{Key: "chosen", Value: "10.0.0.1:80"}}})
		if req.URL.Path == "/broken" {
			return nil, errors.New("broken")
		}
		w := httptest.NewRecorder()
		w.Header().Set("Set-Cookie", "id="+secret)
		w.WriteHeader(http.StatusTeapot)
		_, err := io.WriteString(w, "short\x1b[2J")
		return w.Result(), err
	})
	return &tapped{addr: l.Addr().String(), svc: httplayer.NewStack().
		With("explain", tap.Explain(reg, httplayer.HTTP{})).
		With("tap", tap.Layer(reg, httplayer.HTTP{}, tap.Outbound,
			tap.WithDestination(netip.MustParseAddrPort("10.0.0.1:80"), map[string]string{"pod": "web-0", "namespace": "default"}))).
		Service(answer)}
}

// secret is a text that no command prints, in any field.
const secret = "hush-hush"

// send makes requests until ctx ends.
func (p *tapped) send(ctx context.Context) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for i := 0; ctx.Err() == nil; i++ {
		path := "/seen/" + string(rune('a'+i%3))
		if i%5 == 0 {
			path = "/broken"
		}
		req := httptest.NewRequest(http.MethodGet, "http://web.default"+path+"?token="+secret, http.NoBody)
		req.Header.Set("X-Who", "me")
		for _, name := range []string{"Cookie", "Authorization", "Proxy-Authorization"} {
			req.Header.Set(name, "Basic "+secret)
		}
		if rsp, err := p.svc.Call(ctx, req); err == nil {
			_, _ = io.Copy(io.Discard, rsp.Body)
			rsp.Body.Close()
		}
		<-tick.C
	}
}

// result is the output and the error of a command.
type result struct {
	out, warnings string
	err           error
}

// try runs a command until it ends.
func try(t *testing.T, args ...string) result {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	defer out.Close()
	var stderr safe
	err = run(t.Context(), args, out, &stderr)
	data, readErr := os.ReadFile(out.Name())
	require.NoError(t, readErr)
	return result{string(data), stderr.String(), err}
}

// with runs a command that watches p, while requests are sent to p.
func (p *tapped) with(t *testing.T, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var sending sync.WaitGroup
	sending.Go(func() { p.send(ctx) })
	defer sending.Wait()
	defer cancel()
	return try(t, append(args, p.addr)...)
}

// until calls with for longer and longer times until ok returns true, because the machine
// may be slow.
func (p *tapped) until(t *testing.T, ok func(result) bool, args ...string) result {
	t.Helper()
	for d := 50 * time.Millisecond; ; d *= 2 {
		if r := p.with(t, slices.Concat(args, []string{"--for", d.String()})...); ok(r) || d > waits {
			return r
		}
	}
}

// prints returns a function that reports whether the output of a result contains the text.
func prints(what string) func(result) bool {
	return func(r result) bool { return r.out != "" && strings.Contains(r.out, what) }
}

// succeeds reports whether a command had the time to connect.
func succeeds(r result) bool { return r.err == nil }

// safe is a buffer for several goroutines.
type safe struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safe) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safe) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// vacant is an address without a listener. Its host is used by no other test, because the
// port might be given to the next listener.
func vacant(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.93:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}
