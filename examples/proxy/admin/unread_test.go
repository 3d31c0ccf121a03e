package admin_test

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"       //nolint:depguard // its Framer: a client that reads nothing
	"golang.org/x/net/http2/hpack" //nolint:depguard // likewise

	"github.com/gotower/gotower/examples/proxy/admin"
	"github.com/gotower/gotower/examples/proxy/meters"
)

// single is a listener for one connection.
type single struct {
	conns chan net.Conn
	once  sync.Once
}

func (l *single) Accept() (net.Conn, error) {
	if c, ok := <-l.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (l *single) Close() error { l.once.Do(func() { close(l.conns) }); return nil }
func (*single) Addr() net.Addr { return &net.TCPAddr{} }

// endless is a page that never ends.
type endless struct{}

func (endless) ServeHTTP(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "more") }
func (endless) Shutdown()                                        {}

// If an HTTP/2 client does not read, its responses are aborted, except the page's.
func TestUnreadResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := admin.New(admin.Config{Metrics: meters.New(meters.Config{}).Handler(), Page: endless{}})
		var protocols http.Protocols
		protocols.SetUnencryptedHTTP2(true)
		srv := &http.Server{Handler: h, Protocols: &protocols}
		l := &single{conns: make(chan net.Conn, 1)}
		var serving sync.WaitGroup
		serving.Go(func() { assert.ErrorIs(t, srv.Serve(l), http.ErrServerClosed) })
		client, server := net.Pipe()
		l.conns <- server
		defer func() {
			assert.NoError(t, srv.Close())
			assert.NoError(t, client.Close())
			serving.Wait()
		}()

		start, broken := time.Now(), make(chan uint32, 10)
		reader := http2.NewFramer(nil, client)
		serving.Go(func() {
			for {
				f, err := reader.ReadFrame()
				if err != nil {
					return
				}
				if f.Header().Type == http2.FrameRSTStream {
					assert.Equal(t, within, time.Since(start))
					broken <- f.Header().StreamID
				}
			}
		})
		_, err := io.WriteString(client, http2.ClientPreface)
		require.NoError(t, err)
		f := http2.NewFramer(client, nil)
		require.NoError(t, f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize}))
		for i, path := range []string{"/metrics", "/live", "/none", "/view/"} {
			var b bytes.Buffer
			e := hpack.NewEncoder(&b)
			for _, h := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":path", path}, {":authority", "localhost"}} {
				require.NoError(t, e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}))
			}
			require.NoError(t, f.WriteHeaders(http2.HeadersFrameParam{
				StreamID: uint32(2*i + 1), BlockFragment: b.Bytes(), EndHeaders: true, EndStream: true,
			}))
		}
		time.Sleep(10 * within)
		synctest.Wait()
		require.Len(t, broken, 3)
		require.ElementsMatch(t, []uint32{1, 3, 5}, []uint32{<-broken, <-broken, <-broken})
	})
}

const within = 30 * time.Second
