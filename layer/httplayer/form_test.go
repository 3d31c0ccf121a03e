package httplayer

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestFormOf(t *testing.T) {
	for name, tt := range map[string]struct {
		method, target, proto, host string
		want                        form
		orig                        string
	}{
		"origin":                {"GET", "/a", "HTTP/1.1", "web", originForm, "HTTP/1.1"},
		"asterisk":              {"OPTIONS", "*", "HTTP/1.1", "web", originForm, "HTTP/1.1"},
		"absolute":              {"GET", "http://web/a", "HTTP/1.1", "web", absoluteForm, "HTTP/1.1; absolute-form"},
		"HTTP/1.0":              {"GET", "/a", "HTTP/1.0", "web", dedicated, "HTTP/1.0"},
		"HTTP/1.0 absolute":     {"GET", "http://web/a", "HTTP/1.0", "web", dedicated, "HTTP/1.0; absolute-form"},
		"no host":               {"GET", "/a", "HTTP/1.1", "", dedicated, "HTTP/1.1"},
		"HTTP/2":                {"GET", "/a", "HTTP/2.0", "web", originForm, ""},
		"HTTP/2 without a host": {"GET", "/a", "HTTP/2.0", "", dedicated, ""},
	} {
		t.Run(name, func(t *testing.T) {
			req := httptest.NewRequest(tt.method, tt.target, nil)
			req.Proto, req.Host = tt.proto, tt.host
			req.ProtoMajor, req.ProtoMinor = int(tt.proto[5]-'0'), int(tt.proto[7]-'0')
			assert.Equal(t, tt.want, formOf(req))
			if tt.orig != "" {
				assert.Equal(t, tt.orig, origProto(req))
			}
		})
	}
	own := request(t, "GET", "http://web/a", "")
	assert.Equal(t, originForm, formOf(own), "a request of our own")
}

// poolFormStep is a request in some form, or the end of one.
type poolFormStep struct {
	form form
	end  int // which of the open ones ends first
}

// Whatever forms come in whatever order, an endpoint has no more connections
// than it may, no request is refused while one of them is idle, and a request
// that needs its own connection gets a new one.
func TestPoolOfFormsModel(t *testing.T) {
	up, got := application(t, okAnswer)
	const limit = 3
	rapid.Check(t, func(t *rapid.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		e := NewEndpoint(ctx, up, WithMaxConns(limit), WithConnectTimeout(patience))
		var open []*http.Response
		seen := map[int]form{}
		for _, step := range rapid.SliceOfN(rapid.Custom(func(t *rapid.T) poolFormStep {
			return poolFormStep{
				form(rapid.IntRange(0, int(dedicated)).Draw(t, "form")), rapid.IntRange(-1, limit).Draw(t, "end"),
			}
		}), 1, 15).Draw(t, "steps") {
			if step.end >= 0 && step.end < len(open) {
				_, _ = io.Copy(io.Discard, open[step.end].Body)
				_ = open[step.end].Body.Close()
				open = append(open[:step.end], open[step.end+1:]...)
			}
			rsp, err := e.Call(ctx, formed(step.form))
			if len(open) == limit {
				if err == nil {
					t.Fatalf("admitted beyond %d", limit)
				}
				continue
			}
			if err != nil {
				t.Fatalf("refused with %d open: %v", len(open), err)
			}
			open = append(open, rsp)
			conn := (<-got).conn
			if before, used := seen[conn]; used && (before != step.form || step.form == dedicated) {
				t.Fatalf("form %d by a connection that served %d", step.form, before)
			}
			seen[conn] = step.form
			if conns, _, inFlight := e.h1.usage(); conns > limit || inFlight != len(open) {
				t.Fatalf("%d connections, %d in flight, %d open", conns, inFlight, len(open))
			}
		}
		for _, rsp := range open {
			_ = rsp.Body.Close()
		}
		if _, _, inFlight := e.h1.usage(); inFlight != 0 {
			t.Fatalf("%d in flight after the end", inFlight)
		}
	})
}

// formed is a request that was received in that form.
func formed(f form) *http.Request {
	r := &http.Request{
		Method: http.MethodGet, URL: &url.URL{Path: "/"}, Host: "web", RequestURI: "/", Header: http.Header{},
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
	switch f {
	case absoluteForm:
		r.URL, r.RequestURI = &url.URL{Scheme: "http", Host: "web", Path: "/"}, "http://web/"
	case dedicated:
		r.Host = ""
	}
	return r
}

// However net/http cuts what it writes, it comes out the same.
func FuzzPlainHead(f *testing.F) {
	f.Add("/", "web", "GET", []byte{3, 1, 20}, true, true)
	f.Add("/"+strings.Repeat("a", 5000), "web", "POST", []byte{200, 200}, true, false)
	f.Add("/", "a.b:80", "X", []byte{}, false, true)
	f.Fuzz(func(t *testing.T, target, host, method string, cuts []byte, ten, noHost bool) {
		if strings.ContainsAny(target+host+method, "\r\n") {
			t.Skip()
		}
		const rest = "X-A: 1\r\n\r\nbody\r\n\r\n"
		text := method + " " + target + " HTTP/1.1\r\nHost: " + host + "\r\n" + rest
		want := method + " " + target + " HTTP/1."
		if ten {
			want += "0\r\n"
		} else {
			want += "1\r\n"
		}
		switch {
		case !noHost:
			want += "Host: " + host + "\r\n"
		case !ten:
			want += "Host: \r\n"
		}
		var sink written
		w := &wire{Conn: &sink, head: &plainHead{ten: ten, noHost: noHost}}
		for _, cut := range cuts {
			n := min(int(cut), len(text))
			wrote, err := w.Write([]byte(text[:n]))
			require.NoError(t, err)
			require.Equal(t, n, wrote)
			text = text[n:]
		}
		_, err := w.Write([]byte(text))
		require.NoError(t, err)
		require.Equal(t, want+rest, sink.String())
		require.EqualValues(t, sink.Len(), w.sent.Load())
	})
}

type written struct {
	net.Conn
	bytes.Buffer
}

func (w *written) Write(p []byte) (int, error) { return w.Buffer.Write(p) }
func (w *written) Read(p []byte) (int, error)  { return w.Buffer.Read(p) }

// What passes for an authority is a host and a port, and nothing else.
func FuzzAuthorityForm(f *testing.F) {
	for _, s := range []string{"web:443", "[::1]:80", "web", "/", "http://web/", "a:b:1", "web:0", "web:+1", "me@web:80", ":80", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if !isAuthorityForm(s) {
			return
		}
		host, port, err := net.SplitHostPort(s)
		require.NoError(t, err)
		require.NotEmpty(t, host)
		n, err := strconv.Atoi(port)
		require.NoError(t, err)
		require.True(t, n > 0 && n < 1<<16)
		require.NotContains(t, s, "/")
		require.NotContains(t, s, "@")
	})
}

// FuzzDowngradeOrigProto: whatever a peer says, the application does not see it,
// and gets a version that exists.
func FuzzDowngradeOrigProto(f *testing.F) {
	for _, s := range []string{"HTTP/1.1", "HTTP/1.0; absolute-form", "HTTP/1.1;absolute-form", "HTTP/2", "", "; ", "HTTP/1.1; x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, said string) {
		svc := DowngradeOrigProto()(serviceFunc(func(_ context.Context, r *http.Request) (*http.Response, error) {
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
