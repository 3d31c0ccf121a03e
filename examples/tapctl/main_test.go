package main

import (
	"bytes"
	"context"
	"flag"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
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

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tapped is a process that answers requests and can be watched.
type tapped struct {
	addr string // of its tap
	svc  httplayer.Service
}

func newTapped(t *testing.T) *tapped {
	t.Helper()
	reg := new(tap.Registry)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := grpc.NewServer()
	pb.RegisterTapServer(srv, tap.NewServer(reg))
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(srv.Stop)
	answer := layer.Func[*http.Request, *http.Response](func(context.Context, *http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		w.WriteHeader(http.StatusTeapot)
		return w.Result(), nil
	})
	return &tapped{addr: l.Addr().String(), svc: httplayer.NewStack().
		With("tap", tap.Layer(reg, httplayer.Access{}, tap.Outbound,
			tap.Destination(netip.MustParseAddrPort("10.0.0.1:80"), map[string]string{"pod": "web-0"}))).
		Service(answer)}
}

// send makes requests until ctx ends.
func (p *tapped) send(ctx context.Context, path string) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		req := httptest.NewRequest(http.MethodGet, "http://web.default"+path, http.NoBody)
		if rsp, err := p.svc.Call(ctx, req); err == nil {
			rsp.Body.Close()
		}
		<-tick.C
	}
}

// output runs the command while requests are sent, and returns what it
// printed.
func output(t *testing.T, p *tapped, args ...string) string {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	defer out.Close()
	ctx, cancel := context.WithCancel(t.Context())
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		p.send(ctx, "/seen")
	}()
	err = run(t.Context(), append(args, p.addr), out, &bytes.Buffer{})
	cancel()
	<-sent
	require.NoError(t, err)
	data, err := os.ReadFile(out.Name())
	require.NoError(t, err)
	return string(data)
}

func TestTap(t *testing.T) {
	p := newTapped(t)
	text := output(t, p, "tap", "--for", "300ms", "--path", "/seen", "--to", "pod/web-0")
	require.Contains(t, text, "dst=10.0.0.1:80 tls= :method=GET :authority=web.default :path=/seen\n")
	require.Contains(t, text, " :status=418 latency=")
	require.Contains(t, text, "response-length=0B\n")
	require.LessOrEqual(t, strings.Count(text, "req "), 100, "no more than a second's share")

	require.Empty(t, output(t, p, "tap", "--for", "100ms", "--path", "/other"))
	require.Contains(t, output(t, p, "tap", "--for", "300ms", "-o", "json", "--max-rps", "1"), `"httpStatus": 418`)
}

func TestTop(t *testing.T) {
	p := newTapped(t)
	require.Contains(t, output(t, p, "top", "--for", "300ms", "-o", "json"), `"destination": "web-0"`)
}

func TestErrorsHelp(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	nothing := l.Addr().String()
	require.NoError(t, l.Close())
	err = run(t.Context(), []string{"tap", nothing}, nil, &bytes.Buffer{})
	require.ErrorContains(t, err, nothing+": nothing serves tap there")

	l, err = net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := grpc.NewServer()
	go func() { _ = srv.Serve(l) }()
	defer srv.Stop()
	devNull, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer devNull.Close()
	err = run(t.Context(), []string{"top", "-o", "json", l.Addr().String()}, devNull, &bytes.Buffer{})
	require.ErrorContains(t, err, "a gRPC server is there, but no tap")
}

func TestUsage(t *testing.T) {
	for text, args := range map[string][]string{
		"say tap or top":      {},
		"-o yaml: no such":    {"tap", "-o", "yaml"},
		"-o wide: no such":    {"top", "-o", "wide"},
		`--to "web" must be`:  {"tap", "--to", "web"},
		"flag provided but":   {"tap", "--nope"},
		"invalid value \"x\"": {"tap", "--for", "x"},
	} {
		var stderr bytes.Buffer
		err := run(t.Context(), args, nil, &stderr)
		require.ErrorContains(t, err, text)
		require.ErrorAs(t, err, new(usageError), text)
	}
	var stderr bytes.Buffer
	require.ErrorIs(t, run(t.Context(), []string{"help"}, nil, &stderr), flag.ErrHelp)
	require.Contains(t, stderr.String(), "tapctl tap [flags]")
}
