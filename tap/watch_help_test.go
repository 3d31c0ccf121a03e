package tap

import (
	"context"
	"io"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap/tappb"
)

// bodied is a request of a protocol with bodies on both sides.
type bodied struct {
	call
	Body io.ReadCloser
}

// bodiedAccess reads it.
type bodiedAccess struct{ fakeAccess }

// withBodies tees its bodies.
type withBodies struct{ basicAccessor[*bodied, *reply] }

func newTee() withBodies {
	return withBodies{basicAccessor[*bodied, *reply]{bodiedAccess{newAccess()}}}
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
