package tap

import (
	"context"
	"io"
	"iter"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap/match"
	"github.com/gotower/gotower/tap/tappb"
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

type fakeAccess struct {
	BaseAccessor[*call, *reply]
	*looks
}

func newAccess() fakeAccess { return fakeAccess{looks: new(looks)} }

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
func (a fakeAccess) ObserveResponse(ctx context.Context, r *reply, o layer.Observer) *reply {
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

// process is a real gRPC server on 127.0.0.1 and a client of it.
type process struct {
	reg   *Registry
	srv   *Server
	grpc  *grpc.Server
	conn  *grpc.ClientConn
	ended chan error // what each Observe returned
}

// listen starts a process. wrap may change the listener.
func listen(t testing.TB, srv *Server, wrap func(net.Listener) net.Listener, opts ...grpc.ServerOption) *process {
	t.Helper()
	p := &process{reg: srv.reg, srv: srv, ended: make(chan error, 200)}
	opts = append(opts, grpc.StreamInterceptor(
		func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			err := h(srv, s)
			p.ended <- err
			return err
		}))
	p.grpc = grpc.NewServer(opts...)
	srv.Register(p.grpc)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	if wrap != nil {
		l = wrap(l)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = p.grpc.Serve(l)
	}()
	t.Cleanup(func() { p.grpc.Stop(); <-done })
	p.conn = dial(t, l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	return p
}

func dial(t testing.TB, addr string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// observe opens a stream, and returns when the server has sent the headers.
func (p *process) observe(ctx context.Context, t testing.TB, req *pb.ObserveRequest) grpc.ServerStreamingClient[pb.TapEvent] {
	t.Helper()
	stream, err := pb.NewTapClient(p.conn).Observe(ctx, req)
	require.NoError(t, err)
	_, err = stream.Header()
	require.NoError(t, err)
	return stream
}

func recv(t testing.TB, stream grpc.ServerStreamingClient[pb.TapEvent]) Event {
	t.Helper()
	m, err := stream.Recv()
	require.NoError(t, err)
	return eventOf(m)
}

// bodied is a request of a protocol with bodies on both sides.
type bodied struct {
	call
	Body io.ReadCloser
}

// bodiedAccess reads it.
type bodiedAccess struct{ fakeAccess }

// withBodies tees its bodies.
type withBodies struct {
	bodiedAccess
	BaseAccessor[*bodied, *reply]
}

func newTee() withBodies {
	return withBodies{bodiedAccess: bodiedAccess{newAccess()}}
}

func (a withBodies) ObserveResponse(ctx context.Context, r *reply, o layer.Observer) *reply {
	return a.fakeAccess.ObserveResponse(ctx, r, o)
}

func (withBodies) TeeRequestBody(b *bodied, read func(int64, []byte)) *bodied {
	if b.Body == nil {
		return b
	}
	out := *b
	out.Body = &readAlong{ReadCloser: b.Body, read: read}
	return &out
}

func (withBodies) TeeResponseBody(r *reply, read func(int64, []byte)) *reply {
	if r.Body != nil {
		r.Body = &readAlong{ReadCloser: r.Body, read: read}
	}
	return r
}

type readAlong struct {
	io.ReadCloser
	read func(int64, []byte)
	at   int64
}

func (r *readAlong) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	r.read(r.at, p[:n])
	r.at += int64(n)
	return n, err
}

func (a bodiedAccess) Method(b *bodied) string         { return a.fakeAccess.Method(&b.call) }
func (a bodiedAccess) Scheme(b *bodied) string         { return a.fakeAccess.Scheme(&b.call) }
func (a bodiedAccess) Authority(b *bodied) string      { return a.fakeAccess.Authority(&b.call) }
func (a bodiedAccess) Path(b *bodied) string           { return a.fakeAccess.Path(&b.call) }
func (a bodiedAccess) Source(b *bodied) netip.AddrPort { return a.fakeAccess.Source(&b.call) }
func (bodiedAccess) Query(*bodied) string              { return "" }
func (a bodiedAccess) RequestHeader(b *bodied) layer.Header {
	return a.fakeAccess.RequestHeader(&b.call)
}

// watchOn watches reg in the process without a reader of its own.
func watchOn(t testing.TB, reg *Registry, req *tappb.WatchRequest) *watcher {
	t.Helper()
	terms, err := reg.terms(req)
	require.NoError(t, err)
	w, err := reg.watch(terms)
	require.NoError(t, err)
	t.Cleanup(func() { reg.close(w) })
	return w
}

// watch opens a stream of gotower's own service, and returns when the server has sent the
// headers.
func (p *process) watch(ctx context.Context, t testing.TB, req *tappb.WatchRequest) grpc.ServerStreamingClient[tappb.WatchResponse] {
	t.Helper()
	stream, err := tappb.NewTapClient(p.conn).Watch(ctx, req)
	require.NoError(t, err)
	_, err = stream.Header()
	require.NoError(t, err)
	return stream
}

func recvWatch(t testing.TB, stream grpc.ServerStreamingClient[tappb.WatchResponse]) Event {
	t.Helper()
	m, err := stream.Recv()
	require.NoError(t, err)
	return watchEventOf(m)
}

// readAll returns the unread events of a watcher as they would be sent.
func readAll(w *watcher) (all []Event) {
	r := w.reader(true, func(e Event) error { all = append(all, e); return nil })
	for {
		select {
		case e := <-r.unread.events:
			_ = r.forward(context.Background(), e)
		default:
			_ = r.reportDrops(context.Background())
			return all
		}
	}
}

// watchStream is a stream without a connection, for bubbles.
type watchStream struct {
	grpc.ServerStream
	ctx     context.Context
	send    func(*tappb.WatchResponse) error
	trailer *metadata.MD
}

func (s watchStream) Context() context.Context     { return s.ctx }
func (watchStream) SendHeader(_ metadata.MD) error { return nil }

// Send encodes and decodes m, as a connection would.
func (s watchStream) Send(m *tappb.WatchResponse) error {
	b, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	arrived := new(tappb.WatchResponse)
	if err := proto.Unmarshal(b, arrived); err != nil {
		return err
	}
	return s.send(arrived)
}

func (s watchStream) SetTrailer(md metadata.MD) {
	if s.trailer != nil {
		*s.trailer = md
	}
}
