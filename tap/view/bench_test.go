package view_test

import (
	"bufio"
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/view"
)

// BenchmarkPages is what open pages cost a request, where it comes as fast as
// it can: each page has both streams, which are read.
func BenchmarkPages(b *testing.B) {
	for _, pages := range []int{0, 1, 10} {
		b.Run(strconv.Itoa(pages), func(b *testing.B) {
			reg := new(tap.Registry)
			h := view.New(view.Config{Registry: reg})
			srv := httptest.NewServer(h)
			defer srv.Close()
			defer h.Shutdown()
			for range pages {
				for _, stream := range []string{"/live", "/tap"} {
					read(b, srv.URL+stream)
				}
			}
			svc := shown(reg)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				r := httptest.NewRequestWithContext(b.Context(), http.MethodGet, "/books/7", http.NoBody)
				for name := range strings.FieldsSeq("Accept Accept-Encoding User-Agent Authorization Cookie X-Request-Id Traceparent") {
					r.Header.Set(name, "some value of it")
				}
				for pb.Next() {
					rsp, err := svc.Call(r.Context(), r)
					if err != nil {
						b.Error(err)
						return
					}
					_ = rsp.Body.Close()
				}
			})
		})
	}
}

// shown is a service that answers at once, and shows its requests.
func shown(reg *tap.Registry) httplayer.Service {
	return httplayer.NewStack().
		With("explain", tap.Explain(reg, httplayer.HTTP{})).
		With("tap", tap.Layer(reg, httplayer.HTTP{}, tap.Outbound, tap.WithDestination(netip.MustParseAddrPort("127.0.0.1:80"), nil))).
		Service(layer.Func[*http.Request, *http.Response](func(context.Context, *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/plain"}}, Body: http.NoBody}, nil
		}))
}

// read reads a stream until it ends. It returns when it began.
func read(b *testing.B, url string) {
	b.Helper()
	rsp, err := http.Get(url)
	require.NoError(b, err)
	text := bufio.NewReader(rsp.Body)
	_, err = text.ReadString('\n')
	require.NoError(b, err)
	go func() {
		defer rsp.Body.Close()
		_, _ = text.WriteTo(discard{})
	}()
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
