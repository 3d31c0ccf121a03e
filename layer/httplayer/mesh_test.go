package httplayer

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// meshLayers are the layers by which proxies talk, each for an ordinary
// request and for one that it has something to do with.
func meshLayers() map[string]layer.Layer[*http.Request, *http.Response] {
	return map[string]layer.Layer[*http.Request, *http.Response]{
		"client id":            ClientID(func(*http.Request) string { return "web.id" }),
		"client id, none":      ClientID(func(*http.Request) string { return "" }),
		"require id":           RequireID("web.id"),
		"override authority":   OverrideAuthority("other:80"),
		"no authority":         OverrideAuthority(""),
		"strip header":         StripHeader("l5d-dst-override", "X-Asked"),
		"proxy errors":         ProxyErrors(nil, true),
		"upgrade orig-proto":   UpgradeOrigProto(),
		"downgrade orig-proto": DowngradeOrigProto(),
	}
}

func TestMeshLayersConform(t *testing.T) {
	// The headers that concern the layer. A request without them passes unchanged.
	said := map[string]string{
		"client id": "", "client id, none": "L5d-Client-Id", "require id": "L5d-Require-Id",
		"override authority": "", "no authority": "-", "strip header": "X-Asked", "proxy errors": "-",
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
func passed(t *testing.T, l layer.Layer[*http.Request, *http.Response], req *http.Request) (*http.Request, *http.Response, error) {
	t.Helper()
	var got *http.Request
	before := req.Header.Clone()
	rsp, err := l(serviceFunc(func(_ context.Context, r *http.Request) (*http.Response, error) {
		got = r
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}}, nil
	})).Call(t.Context(), req)
	assert.Equal(t, before, req.Header, "a request is not changed")
	return got, rsp, err
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
			got, _, err := passed(t, ClientID(func(*http.Request) string { return tt.id }), req)
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
			got, _, err := passed(t, RequireID(tt.endpoint), req)
			if tt.err == "" {
				require.NoError(t, err)
				assert.NotContains(t, got.Header, "L5d-Require-Id")
				return
			}
			require.EqualError(t, err, tt.err)
			require.NotErrorIs(t, err, layer.ErrNotReady)
			assert.Nil(t, got, "it is not sent")
			// And as a client sees it.
			up, _ := application(t, okAnswer)
			c := wireTo(t, serve(t, Handler(RequireID(tt.endpoint)(endpoint(t, up)))))
			first, _, _ := c.ask("GET / HTTP/1.1\nHost: web\nl5d-require-id: " + tt.asked[len(tt.asked)-1] + "\n\n")
			assert.Equal(t, "HTTP/1.1 502 Bad Gateway", first)
			c.over()
		})
	}
}

func TestOverrideAuthority(t *testing.T) {
	up, got := application(t, okAnswer)
	proxy := serve(t, Handler(OverrideAuthority("web.other.example:80")(endpoint(t, up))))
	for _, target := range []string{"/a", "http://web/a"} {
		first, _, _ := wireTo(t, proxy).ask("GET " + target + " HTTP/1.1\nHost: web\nl5d-dst-canonical: web.default:80\n\n")
		assert.Equal(t, "HTTP/1.1 200 OK", first)
		r := <-got
		assert.Equal(t, []string{"Host: web.other.example:80"}, r.fields)
		if target != "/a" {
			assert.Equal(t, "GET http://web.other.example:80/a HTTP/1.1", r.first)
		}
	}
}

func TestStripHeader(t *testing.T) {
	req := request(t, "GET", "http://web/", "")
	strip := StripHeader("l5d-dst-override", "x-b")
	got, _, err := passed(t, strip, req)
	require.NoError(t, err)
	assert.Same(t, req, got)
	req.Header = http.Header{"X-A": {"1"}, "X-B": {"2"}, "L5d-Dst-Override": {"a"}}
	got, _, err = passed(t, strip, req)
	require.NoError(t, err)
	assert.Equal(t, http.Header{"X-A": {"1"}}, got.Header)
}

// Headers of the peer's proxy are not forwarded. For a mesh peer its close closes the
// connection of the client.
func TestProxyErrorsRemovesHeaders(t *testing.T) {
	const answer = "HTTP/1.1 503 Service Unavailable\r\nl5d-proxy-error: no room\r\nl5d-proxy-connection: close\r\nContent-Length: 0\r\n\r\n"
	for name, tt := range map[string]struct {
		meshed bool
		fields []string
	}{
		"meshed":   {true, []string{"Connection: close", "Content-Length: 0"}},
		"unmeshed": {false, []string{"Content-Length: 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			var logged bytes.Buffer
			up, _ := application(t, answer)
			c := wireTo(t, serve(t, Handler(ProxyErrors(slog.New(slog.NewTextHandler(&logged, nil)), tt.meshed)(endpoint(t, up)))))
			first, fields, _ := c.ask("GET / HTTP/1.1\nHost: web\n\n")
			assert.Equal(t, "HTTP/1.1 503 Service Unavailable", first)
			assert.Equal(t, tt.fields, undated(fields))
			assert.Contains(t, logged.String(), `error="no room" status=503 authority=web`)
			if tt.meshed {
				c.over()
			}
		})
	}
}
