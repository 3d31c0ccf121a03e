package mesh_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/gotower/gotower/layer"
)

// BenchmarkMeshLayers measures the cost of each layer, for a request without headers for
// proxies and for one with them.
func BenchmarkMeshLayers(b *testing.B) {
	rsp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody}
	for name, l := range meshLayers() {
		svc := l(layer.Func[*http.Request, *http.Response](func(context.Context, *http.Request) (*http.Response, error) { return rsp, nil }))
		plain := request(b, "GET", "http://web/", "")
		plain.Header = http.Header{"Accept": {"*/*"}, "User-Agent": {"me"}, "X-Request-Id": {"1"}}
		said := plain.Clone(plain.Context())
		said.Proto, said.ProtoMajor, said.ProtoMinor = "HTTP/2.0", 2, 0
		said.Header.Set("L5d-Orig-Proto", "HTTP/1.1")
		said.Header.Set("L5d-Require-Id", "web.id")
		said.Header.Set("L5d-Client-Id", "forged")
		for kind, req := range map[string]*http.Request{"plain": plain, "said": said} {
			b.Run(strings.ReplaceAll(name, " ", "_")+"/"+kind, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					_, _ = svc.Call(b.Context(), req)
				}
			})
		}
	}
}
