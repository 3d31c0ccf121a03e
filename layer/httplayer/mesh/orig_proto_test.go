package mesh_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/httplayer/internal/message"
	"github.com/gotower/gotower/layer/httplayer/mesh"
)

// tests.md I4 and J "outbound endpoint".
func TestUpgradeOrigProto(t *testing.T) {
	for name, tt := range map[string]struct {
		req  func(r *http.Request)
		want []string // of l5d-orig-proto
		h2   bool
	}{
		"HTTP/1.1": {func(*http.Request) {}, []string{"HTTP/1.1"}, true},
		"HTTP/1.0": {func(r *http.Request) { r.ProtoMinor, r.Proto = 0, "HTTP/1.0" }, []string{"HTTP/1.0"}, true},
		"absolute": {func(r *http.Request) { r.RequestURI = "http://web/" }, []string{"HTTP/1.1; absolute-form"}, true},
		"absolute, HTTP/1.0": {func(r *http.Request) {
			r.RequestURI, r.ProtoMinor = "http://web/", 0
		}, []string{"HTTP/1.0; absolute-form"}, true},
		"forged":             {func(r *http.Request) { r.Header.Set("L5d-Orig-Proto", "HTTP/1.0") }, []string{"HTTP/1.1"}, true},
		"transfer-encoding":  {func(r *http.Request) { r.TransferEncoding = []string{"chunked"} }, []string{"HTTP/1.1"}, true},
		"HTTP/2 as it is":    {func(r *http.Request) { r.ProtoMajor, r.ProtoMinor = 2, 0 }, nil, true},
		"HTTP/2, forged":     {func(r *http.Request) { r.ProtoMajor = 2; r.Header.Set("L5d-Orig-Proto", "HTTP/1.1") }, nil, true},
		"upgrade goes by h1": {func(r *http.Request) { r.Header.Set("Upgrade", "websocket") }, nil, false},
		"connect goes by h1": {func(r *http.Request) { r.Method = http.MethodConnect }, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			req := request(t, "POST", "http://web/", "hello")
			tt.req(req)
			before := *req
			got, rsp, err := passed(t, mesh.UpgradeOrigProto(), req)
			require.NoError(t, err)
			assert.Equal(t, tt.want, got.Header.Values("L5d-Orig-Proto"))
			assert.Equal(t, tt.h2, got.ProtoMajor == 2)
			if tt.h2 && tt.want != nil {
				assert.Empty(t, got.TransferEncoding)
				assert.Equal(t, []string{"web"}, got.Header["Host"])
				assert.Equal(t, req.ProtoMinor, rsp.ProtoMinor)
				assert.Equal(t, 1, rsp.ProtoMajor)
				assert.Same(t, req, rsp.Request)
			}
			assert.Equal(t, before.ProtoMajor, req.ProtoMajor)
			assert.Equal(t, before.TransferEncoding, req.TransferEncoding)
		})
	}
}

// tests.md J, inbound http: "downgrade forms".
func TestDowngradeOrigProto(t *testing.T) {
	for said, tt := range map[string]struct{ proto, uri, tag string }{
		"HTTP/1.1":                {"HTTP/1.1", "/a?b", "HTTP/1.1"},
		"HTTP/1.0":                {"HTTP/1.0", "/a?b", "HTTP/1.0"},
		"HTTP/1.1; absolute-form": {"HTTP/1.1", "http://web/a?b", "HTTP/1.1"},
		"HTTP/1.0; absolute-form": {"HTTP/1.0", "http://web/a?b", "HTTP/1.0"},
		"HTTP/3":                  {"HTTP/2.0", "/a?b", ""},
		"":                        {"HTTP/2.0", "/a?b", ""},
	} {
		t.Run(said, func(t *testing.T) {
			req := httptest.NewRequest("GET", "/a?b", nil)
			req.Host = "web"
			req.Proto, req.ProtoMajor, req.ProtoMinor = "HTTP/2.0", 2, 0
			req.Header.Set("L5d-Orig-Proto", said)
			got, rsp, err := passed(t, mesh.DowngradeOrigProto(), req)
			require.NoError(t, err)
			assert.Equal(t, tt.proto, got.Proto)
			assert.Equal(t, tt.uri, got.RequestURI)
			assert.NotContains(t, got.Header, "L5d-Orig-Proto")
			assert.Equal(t, tt.tag, rsp.Header.Get("L5d-Orig-Proto"))
		})
	}
}

// In HTTP/1 the field has no effect, and is not forwarded.
func TestDowngradeOrigProtoIgnoresHTTP1(t *testing.T) {
	req := httptest.NewRequest("GET", "/", nil)
	req.Header.Set("L5d-Orig-Proto", "HTTP/1.0")
	got, rsp, err := passed(t, mesh.DowngradeOrigProto(), req)
	require.NoError(t, err)
	assert.Equal(t, "HTTP/1.1", got.Proto)
	assert.NotContains(t, got.Header, "L5d-Orig-Proto")
	assert.NotContains(t, rsp.Header, "L5d-Orig-Proto")
}

// A refused stream is a rejection, so the request may be sent to another endpoint.
func TestUpgradeOrigProtoRejections(t *testing.T) {
	refusal := &layer.Error{Layer: "endpoint", Kind: layer.ErrNotReady, Err: &message.ResetError{Code: message.CodeRefusedStream}}
	svc := mesh.UpgradeOrigProto()(layer.Func[*http.Request, *http.Response](func(context.Context, *http.Request) (*http.Response, error) { return nil, refusal }))
	_, err := svc.Call(t.Context(), request(t, "GET", "http://web/", ""))
	assert.Same(t, refusal, err)
}

func TestTargetForm(t *testing.T) {
	for name, tt := range map[string]struct {
		method, target, proto, host string
		orig                        string
	}{
		"origin":                {"GET", "/a", "HTTP/1.1", "web", "HTTP/1.1"},
		"asterisk":              {"OPTIONS", "*", "HTTP/1.1", "web", "HTTP/1.1"},
		"absolute":              {"GET", "http://web/a", "HTTP/1.1", "web", "HTTP/1.1; absolute-form"},
		"HTTP/1.0":              {"GET", "/a", "HTTP/1.0", "web", "HTTP/1.0"},
		"HTTP/1.0 absolute":     {"GET", "http://web/a", "HTTP/1.0", "web", "HTTP/1.0; absolute-form"},
		"no host":               {"GET", "/a", "HTTP/1.1", "", "HTTP/1.1"},
		"HTTP/2":                {"GET", "/a", "HTTP/2.0", "web", ""},
		"HTTP/2 without a host": {"GET", "/a", "HTTP/2.0", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			req := httptest.NewRequest(tt.method, tt.target, nil)
			req.Proto, req.Host = tt.proto, tt.host
			req.ProtoMajor, req.ProtoMinor = int(tt.proto[5]-'0'), int(tt.proto[7]-'0')
			got, _, err := passed(t, mesh.UpgradeOrigProto(), req)
			require.NoError(t, err)
			assert.Equal(t, tt.orig, got.Header.Get("L5d-Orig-Proto"))
		})
	}
}

// An HTTP/1 client cannot get a reset: both proxies make it a failure of the endpoint.
func TestOrigProtoHidesResets(t *testing.T) {
	reset := &message.ResetError{Code: message.CodeEnhanceYourCalm, Remote: true}
	failing := layer.Func[*http.Request, *http.Response](func(context.Context, *http.Request) (*http.Response, error) { return nil, reset })
	upgraded := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	downgraded := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	downgraded.ProtoMajor, downgraded.ProtoMinor = 2, 0
	downgraded.Header.Set("L5d-Orig-Proto", "HTTP/1.1")
	for name, tt := range map[string]struct {
		svc httplayer.Service
		req *http.Request
	}{
		"upgrade_orig_proto":   {mesh.UpgradeOrigProto()(failing), upgraded},
		"downgrade_orig_proto": {mesh.DowngradeOrigProto()(failing), downgraded},
	} {
		_, err := tt.svc.Call(t.Context(), tt.req)
		require.EqualError(t, err, name+": "+reset.Error())
		_, isReset := errors.AsType[*message.ResetError](err)
		assert.False(t, isReset, name)
		status, code := httplayer.StatusFromError(err)
		assert.Equal(t, http.StatusBadGateway, status)
		assert.EqualValues(t, 14, code)
		assert.Equal(t, layer.Retryable, httplayer.Classify(layer.Outcome[*http.Response]{Err: err}))
	}
}

// FuzzDowngradeOrigProto checks that the application never receives l5d-orig-proto and
// always receives a valid version.
func FuzzDowngradeOrigProto(f *testing.F) {
	for _, s := range []string{"HTTP/1.1", "HTTP/1.0; absolute-form", "HTTP/1.1;absolute-form", "HTTP/2", "", "; ", "HTTP/1.1; x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, said string) {
		svc := mesh.DowngradeOrigProto()(layer.Func[*http.Request, *http.Response](func(_ context.Context, r *http.Request) (*http.Response, error) {
			require.NotContains(t, r.Header, "L5d-Orig-Proto")
			require.Contains(t, []string{"HTTP/1.0", "HTTP/1.1", "HTTP/2.0"}, r.Proto)
			return &http.Response{StatusCode: http.StatusOK}, nil
		}))
		req := httptest.NewRequest("GET", "/", nil)
		req.Proto, req.ProtoMajor, req.ProtoMinor = "HTTP/2.0", 2, 0
		req.Header["L5d-Orig-Proto"] = []string{said}
		rsp, err := svc.Call(t.Context(), req)
		require.NoError(t, err)
		require.NotContains(t, rsp.Header.Get("L5d-Orig-Proto"), "absolute")
	})
}
