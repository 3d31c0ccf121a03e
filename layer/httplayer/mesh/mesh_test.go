package mesh_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/httplayer/mesh"
	"github.com/gotower/gotower/layer/layertest"
)

// meshLayers are the layers by which proxies talk, each for an ordinary
// request and for one that it has something to do with.
func meshLayers() map[string]httplayer.Layer {
	return map[string]httplayer.Layer{
		"client id":            mesh.ClientID(func(*http.Request) string { return "web.id" }),
		"client id, none":      mesh.ClientID(func(*http.Request) string { return "" }),
		"require id":           mesh.RequireID("web.id"),
		"proxy errors":         mesh.ProxyErrors(nil, true),
		"upgrade orig-proto":   mesh.UpgradeOrigProto(),
		"downgrade orig-proto": mesh.DowngradeOrigProto(),
	}
}

func TestMeshLayersConform(t *testing.T) {
	// The headers that concern the layer. A request without them passes unchanged.
	said := map[string]string{
		"client id": "", "client id, none": "L5d-Client-Id", "require id": "L5d-Require-Id",
		"proxy errors":       "-",
		"upgrade orig-proto": "", "downgrade orig-proto": "L5d-Orig-Proto",
	}
	for name, l := range meshLayers() {
		kinds := []string{""}
		if says := said[name]; says != "" && says != "-" {
			kinds = append(kinds, says)
		}
		for _, says := range kinds {
			t.Run(name+"/"+says, func(t *testing.T) {
				layertest.Run(t, layertest.LayerOf[*http.Request, *http.Response]{
					Layer:       l,
					Transparent: said[name] != "" && says == "",
					Request: func(int) *http.Request {
						req, err := http.NewRequest(http.MethodPost, "http://web.test/", nil)
						if err != nil {
							panic(err)
						}
						switch says {
						case "":
						case "L5d-Require-Id":
							req.Header.Set(says, "web.id")
						default:
							req.Header.Set(says, "HTTP/1.1")
						}
						return req
					},
					Response: func(int) *http.Response { return &http.Response{StatusCode: http.StatusOK} },
				})
			})
		}
	}
}

// passed sends req through l, and returns what came out below.
func passed(t *testing.T, l httplayer.Layer, req *http.Request) (*http.Request, *http.Response, error) {
	t.Helper()
	var got *http.Request
	before := req.Header.Clone()
	rsp, err := l(layer.Func[*http.Request, *http.Response](func(_ context.Context, r *http.Request) (*http.Response, error) {
		got = r
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}}, nil
	})).Call(t.Context(), req)
	assert.Equal(t, before, req.Header, "a request is not changed")
	return got, rsp, err
}

// answers returns a service that responds 200 with the given header.
func answers(header http.Header) httplayer.Service {
	return layer.Func[*http.Request, *http.Response](func(_ context.Context, req *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Header: header.Clone(), Body: http.NoBody, Request: req}, nil
	})
}

func request(t testing.TB, method, url, body string) *http.Request {
	t.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, r)
	require.NoError(t, err)
	return req
}

func TestClientIDStripsForged(t *testing.T) {
	for name, tt := range map[string]struct {
		id, said string
		want     []string
	}{
		"no identity":         {"", "", nil},
		"forged":              {"", "root", nil},
		"proven":              {"web.id", "", []string{"web.id"}},
		"proven, and forged":  {"web.id", "root", []string{"web.id"}},
		"proven and required": {"web.id", "web.id", []string{"web.id"}},
	} {
		t.Run(name, func(t *testing.T) {
			req := request(t, "GET", "http://web/", "")
			if tt.said != "" {
				req.Header.Set("L5d-Client-Id", tt.said)
			}
			got, _, err := passed(t, mesh.ClientID(func(*http.Request) string { return tt.id }), req)
			require.NoError(t, err)
			assert.Equal(t, tt.want, got.Header.Values("L5d-Client-Id"))
		})
	}
}

func TestRequireID(t *testing.T) {
	for name, tt := range map[string]struct {
		endpoint string
		asked    []string
		err      string
	}{
		"not asked":         {"web.id", nil, ""},
		"right":             {"web.id", []string{"web.id"}, ""},
		"wrong":             {"web.id", []string{"books.id"}, `require_id: identity required: "books.id", but the endpoint is "web.id"`},
		"plaintext":         {"", []string{"web.id"}, `require_id: identity required: "web.id", but the endpoint has none`},
		"nothing asked for": {"", []string{""}, `require_id: identity required: "", but the endpoint has none`},
		"two, one wrong":    {"web.id", []string{"web.id", "books.id"}, `require_id: identity required: "books.id", but the endpoint is "web.id"`},
	} {
		t.Run(name, func(t *testing.T) {
			req := request(t, "GET", "http://web/", "")
			for _, id := range tt.asked {
				req.Header.Add("L5d-Require-Id", id)
			}
			got, _, err := passed(t, mesh.RequireID(tt.endpoint), req)
			if tt.err == "" {
				require.NoError(t, err)
				assert.NotContains(t, got.Header, "L5d-Require-Id")
				return
			}
			require.EqualError(t, err, tt.err)
			require.NotErrorIs(t, err, layer.ErrNotReady)
			assert.Nil(t, got, "it is not sent")
			// And as a client sees it.
			handler := httplayer.Handler(mesh.RequireID(tt.endpoint)(answers(nil)), mesh.WithErrorHeaders(true))
			rec := httptest.NewRecorder()
			received := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
			received.Header.Set("L5d-Require-Id", tt.asked[len(tt.asked)-1])
			handler.ServeHTTP(rec, received)
			assert.Equal(t, http.StatusBadGateway, rec.Code)
			assert.Equal(t, "close", rec.Header().Get("L5d-Proxy-Connection"))
			assert.Contains(t, rec.Header().Get("L5d-Proxy-Error"), "identity required")
		})
	}
}

// Headers of the peer's proxy are not forwarded. For a mesh peer its close closes the
// connection of the client.
func TestProxyErrorsRemovesHeaders(t *testing.T) {
	for name, tt := range map[string]struct {
		meshed bool
		closes []string
	}{
		"meshed":   {true, []string{"close"}},
		"unmeshed": {false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var logged bytes.Buffer
			peer := answers(http.Header{"L5d-Proxy-Error": {"no room"}, "L5d-Proxy-Connection": {"close"}})
			rec := httptest.NewRecorder()
			handler := httplayer.Handler(mesh.ProxyErrors(slog.New(slog.NewTextHandler(&logged, nil)), tt.meshed)(peer))
			handler.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "http://web/", http.NoBody))
			assert.Equal(t, tt.closes, rec.Header()["Connection"])
			assert.NotContains(t, rec.Header(), "L5d-Proxy-Error")
			assert.NotContains(t, rec.Header(), "L5d-Proxy-Connection")
			assert.Contains(t, logged.String(), `error="no room" status=200 authority=web`)
		})
	}
}

// Without a logger, the headers of the peer's proxy are still removed.
func TestProxyErrorsWithoutLogger(t *testing.T) {
	peer := answers(http.Header{"L5d-Proxy-Error": {"odd"}})
	rsp, err := mesh.ProxyErrors(nil, false)(peer).Call(t.Context(), httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	require.NoError(t, err)
	require.Empty(t, rsp.Header)
}

// Without a function for the identity, identity headers of the client are dropped.
func TestClientIDWithoutIdentity(t *testing.T) {
	req := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	req.Header.Set("L5d-Client-Id", "forged.id")
	got, _, err := passed(t, mesh.ClientID(nil), req)
	require.NoError(t, err)
	require.NotContains(t, got.Header, "L5d-Client-Id")
}

// All spellings by which an application may read an identity are dropped from headers and trailers.
func TestClientIDDropsForgedFields(t *testing.T) {
	for _, name := range []string{
		"l5d-client-id", "L5D-CLIENT-ID", "l5d_client_id", "l5d-client_id", "L5d_Client-Id",
		"l5d-remote-ip", "l5d_remote_ip", "l5d-server-id", "l5d_server_id",
	} {
		for _, id := range []string{"", "web.id"} {
			req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("body"))
			req.Header.Add(name, "forged")
			req.Header.Set("L5d-Dst-Canonical", "web:80")
			req.Trailer = http.Header{name: {"forged"}, "Other": nil}
			got, _, err := passed(t, mesh.ClientID(func(*http.Request) string { return id }), req)
			require.NoError(t, err)
			_, err = io.ReadAll(got.Body)
			require.NoError(t, err)
			require.NotContains(t, fmt.Sprint(got.Header, got.Trailer), "forged", name)
			require.Equal(t, id, got.Header.Get("L5d-Client-Id"))
			require.Equal(t, "web:80", got.Header.Get("L5d-Dst-Canonical"))
			require.Contains(t, got.Trailer, "Other")
		}
	}
}

// Trailers come with the end of a body: those with an identity do not.
func TestClientIDStripsTrailers(t *testing.T) {
	for _, id := range []string{"", "web.id"} {
		for name, came := range map[string]http.Header{"announced": {"L5d-Client-Id": nil, "X-Sum": nil}, "not announced": {}} {
			t.Run(name+", "+id, func(t *testing.T) {
				req := request(t, http.MethodPost, "http://web/", "hello")
				req.Trailer = came
				body := &trailing{req.Body, func() { came["L5d-Client-Id"], came["X-Sum"] = []string{"root"}, []string{"1"} }}
				req.Body = body
				got, _, err := passed(t, mesh.ClientID(func(*http.Request) string { return id }), req)
				require.NoError(t, err)
				require.NotContains(t, got.Trailer, "L5d-Client-Id")
				_, err = io.ReadAll(got.Body)
				require.NoError(t, err)
				require.Equal(t, http.Header{"X-Sum": {"1"}}, got.Trailer)
				require.Contains(t, req.Trailer, "L5d-Client-Id", "a request is not changed")
			})
		}
	}
}

// trailing is a body that calls end before it returns io.EOF.
type trailing struct {
	io.ReadCloser
	end func()
}

func (e *trailing) Read(p []byte) (int, error) {
	n, err := e.ReadCloser.Read(p)
	if err != nil {
		e.end()
	}
	return n, err
}
