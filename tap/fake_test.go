package tap

import (
	"context"
	"io"
	"iter"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap/match"
)

// call and reply are a protocol of these tests, because tap must not need net/http.
type call struct {
	method, scheme, authority, path string
	source                          netip.AddrPort
	header                          fields
}

type reply struct {
	status          int
	header, trailer fields
	Body            io.ReadCloser
}

type fields [][2]string

func (f fields) Get(name string) string {
	for n, v := range f.All() {
		if strings.EqualFold(n, name) {
			return v
		}
	}
	return ""
}

// Values returns all values of name, as [net/http.Header] does.
func (f fields) Values(name string) (values []string) {
	for _, p := range f {
		if strings.EqualFold(p[0], name) {
			values = append(values, p[1])
		}
	}
	return values
}

func (f fields) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for _, p := range f {
			if !yield(p[0], p[1]) {
				return
			}
		}
	}
}

// looks counts the reads of the fields of requests.
type looks struct{ method, scheme, authority, path, source, header, status, response atomic.Int64 }

func (l *looks) request() int64 {
	return l.method.Load() + l.scheme.Load() + l.authority.Load() + l.path.Load() + l.source.Load() + l.header.Load()
}

type fakeAccess struct{ *looks }

func newAccess() fakeAccess { return fakeAccess{new(looks)} }

func (a fakeAccess) Method(c *call) string              { a.method.Add(1); return c.method }
func (a fakeAccess) Scheme(c *call) string              { a.scheme.Add(1); return c.scheme }
func (a fakeAccess) Authority(c *call) string           { a.authority.Add(1); return c.authority }
func (a fakeAccess) Path(c *call) string                { a.path.Add(1); return c.path }
func (a fakeAccess) Query(*call) string                 { return "" }
func (a fakeAccess) Source(c *call) netip.AddrPort      { a.source.Add(1); return c.source }
func (a fakeAccess) RequestHeader(c *call) layer.Header { a.header.Add(1); return &c.header }
func (a fakeAccess) Status(r *reply) int                { a.status.Add(1); return r.status }
func (a fakeAccess) ResponseHeader(r *reply) layer.Header {
	a.response.Add(1)
	return &r.header
}
func (a fakeAccess) ResponseTrailer(r *reply) layer.Header { return &r.trailer }
func (a fakeAccess) Complete(ctx context.Context, r *reply, o layer.Observer) *reply {
	return layer.AtEnd[*reply]()(ctx, r, o)
}

type service = layer.Service[*call, *reply]

type serve = layer.Func[*call, *reply]

// respond is an endpoint that answers 200 with this body.
func respond(body string) serve {
	return func(context.Context, *call) (*reply, error) {
		return &reply{status: 200, Body: io.NopCloser(strings.NewReader(body))}, nil
	}
}

var (
	clientAddr = netip.MustParseAddrPort("10.0.0.1:40000")
	serverAddr = netip.MustParseAddrPort("10.1.2.3:8080")
	podLabels  = map[string]string{"pod": "web-1", "namespace": "shop"}
	hostLabels = map[string]string{"tls": "loopback"}
)

// stand puts a tap at serverAddr in front of inner.
func stand(reg *Registry, inner service) service {
	return Layer[*call, *reply](reg, newAccess(), Outbound, WithDestination(serverAddr, podLabels), WithSourceLabels(hostLabels))(inner)
}

func get(path string) *call {
	return &call{method: "GET", scheme: "http", authority: "web:80", path: path, source: clientAddr}
}

// send sends a request and reads its response to the end.
func send(t testing.TB, svc service, c *call) {
	t.Helper()
	rsp, err := svc.Call(t.Context(), c)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, rsp.Body)
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
}

// watch watches reg without a server.
func watch(t testing.TB, reg *Registry, m *pb.ObserveRequest_Match, limit uint32, fields bool) *watcher {
	t.Helper()
	c, err := compile(m)
	require.NoError(t, err)
	w, err := reg.watch(terms{match: c, limit: uint64(limit), fields: fields})
	require.NoError(t, err)
	t.Cleanup(func() { reg.close(w) })
	return w
}

func watchAll(t testing.TB, reg *Registry) *watcher {
	t.Helper()
	return watch(t, reg, match.All(), 1000, false)
}

// events returns the unread events of a watcher.
func events(w *watcher) []Event {
	b := w.buf.Load()
	var all []Event
	for len(b.events) > 0 {
		e := <-b.events
		b.releaseEvent(e)
		all = append(all, e)
	}
	return all
}

// kinds is a short form of events.
func kinds(all []Event) string {
	var b strings.Builder
	for _, e := range all {
		switch {
		case e.RequestInit != nil:
			b.WriteByte('q')
		case e.ResponseInit != nil:
			b.WriteByte('r')
		case e.ResponseEnd != nil:
			b.WriteByte('e')
		default:
			b.WriteByte('?')
		}
	}
	return b.String()
}

func isDone(w *watcher) bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

func mustAddr(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
