package httplayer

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// A client of an upgraded connection may disconnect while the response header is being
// changed. Observers read their own header.
func TestUpgradeClientLeavesAtOnce(t *testing.T) {
	for range 50 {
		ctx, leave := context.WithCancel(t.Context())
		body := &upgradedBody{Reader: strings.NewReader(""), closed: make(chan struct{})}
		svc := NewStack().Metrics(layer.Instruments{}).Service(layer.Func[*http.Request, *http.Response](
			func(_ context.Context, r *http.Request) (*http.Response, error) {
				return &http.Response{
					StatusCode: http.StatusSwitchingProtocols, ProtoMajor: 1, ProtoMinor: 1,
					Header: http.Header{"Upgrade": {"x"}, "Connection": {"Upgrade"}}, Body: body, Request: r,
				}, nil
			}))
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://web/", nil)
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "x")
		w := &hijackedWriter{header: http.Header{}, leave: leave, left: body.closed}
		Handler(svc).ServeHTTP(w, r)
		require.NotNil(t, w.conn, "it was upgraded")
		require.NoError(t, w.conn.Close())
		leave()
	}
}

// upgradedBody is the upstream's side of an upgraded connection.
type upgradedBody struct {
	io.Reader
	once   sync.Once
	closed chan struct{}
}

func (*upgradedBody) Write(p []byte) (int, error) { return len(p), nil }

func (b *upgradedBody) Close() error {
	b.once.Do(func() { close(b.closed) })
	return nil
}

// hijackedWriter is a hijacked writer. The client disconnects when its Header method is
// called.
type hijackedWriter struct {
	header http.Header
	conn   net.Conn
	leave  context.CancelFunc
	left   chan struct{}
}

func (w *hijackedWriter) Header() http.Header {
	if w.conn != nil {
		w.leave()
		<-w.left
	}
	return w.header
}

func (*hijackedWriter) WriteHeader(int)             {}
func (*hijackedWriter) Write(p []byte) (int, error) { return len(p), nil }

func (w *hijackedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	near, far := net.Pipe()
	go func() { _, _ = io.Copy(io.Discard, far) }()
	w.conn = near
	return near, bufio.NewReadWriter(bufio.NewReader(near), bufio.NewWriter(near)), nil
}
