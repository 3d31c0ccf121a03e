package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/examples/tapctl/template"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// No format prints a secret of a request, or a control character of the terminal.
func FuzzSecretsWithheld(f *testing.F) {
	f.Add([]byte("1234"), "/path", "q=", "X-Team", "blue", "body")
	f.Add([]byte{1}, "/\u009b2J\u202e\x7f", "q=", "X-\u009b", "\u009b2J\u202e", "\u009b2J\u202e\x7f")
	f.Add([]byte{0}, "/\x1b[2J", "token=", "Cookie", "a=b; ", "")
	f.Add([]byte("zz"), "//u:p@h/", "", "Referer", "https://u:", "{\"password\":")
	f.Fuzz(func(t *testing.T, token []byte, path, query, name, value, body string) {
		secret := "s3cret" + hex.EncodeToString(token) + "t3rces"
		if open := strings.ToLower(path + name + value); strings.Contains(open, "s3cret") {
			t.Skip("is no secret")
		}
		req, err := http.NewRequest(http.MethodPost, "http://user:"+secret+"@web.default/", strings.NewReader(body+secret))
		require.NoError(t, err)
		req.URL.Path, req.URL.RawQuery = path, query+secret
		req.Header.Add(name, value)
		for _, withheld := range []string{"Authorization", "Cookie", "Proxy-Authorization"} {
			req.Header.Add(withheld, value+secret)
		}
		printed := printed(t, req, value+secret)
		require.NotContains(t, printed, "s3cret")
		for _, r := range printed {
			require.True(t, r == '\n' || unicode.IsPrint(r), "%q in %q", r, printed)
		}
		require.Contains(t, printed, "POST")
	})
}

// printed is all output of tapctl for a request and its response, which sets a cookie.
func printed(t *testing.T, req *http.Request, cookie string) string {
	t.Helper()
	reg := tap.NewRegistry()
	svc := httplayer.NewStack().
		With("tap", tap.Layer(reg, httplayer.HTTP{}, tap.Outbound)).
		Service(layer.Func[*http.Request, *http.Response](func(_ context.Context, req *http.Request) (*http.Response, error) {
			_, _ = io.Copy(io.Discard, req.Body)
			return &http.Response{
				StatusCode: http.StatusOK, Header: http.Header{"Set-Cookie": {cookie}},
				Body: io.NopCloser(strings.NewReader(cookie)), Trailer: http.Header{"Authorization": {cookie}},
			}, nil
		}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	watching, sent := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(sent)
		<-watching
		if rsp, err := svc.Call(ctx, req); err == nil {
			_, _ = io.Copy(io.Discard, rsp.Body)
			rsp.Body.Close()
		}
	}()
	var out bytes.Buffer
	for e, err := range watchOne(ctx, reg, watching) {
		require.NoError(t, err)
		out.WriteString(line(e, false) + "\n" + line(e, true) + "\n")
		require.NoError(t, writeMore(&out, e))
		require.NoError(t, writeJSON(&out, e))
		for _, text := range templates {
			asks, err := template.Parse(text, jsonEvent{})
			require.NoError(t, err)
			require.NoError(t, asks.Execute(&out, newJSONEvent(e)), text)
		}
	}
	<-sent
	return out.String()
}

// templates print all fields of an event, as JSON and as text.
var templates = []string{
	"{}", "{.*}", "{..}", `{range .*.*}{@}{"\n"}{end}`, "{..valueStr} {..valueBin}", "{..method} {..path} {..authority}",
	`{range .requestInitEvent.headers[?(@.name!="host")]}{.name}={.valueStr}{"\n"}{end}`, "{.responseEndEvent.trailers[*].valueStr}",
}

// watchOne closes watching when the registry has its watcher.
func watchOne(ctx context.Context, reg *tap.Registry, watching chan struct{}) func(func(tap.Event, error) bool) {
	go func() {
		for reg.Describe().State.Get("watching") == 0 && ctx.Err() == nil {
			runtime.Gosched()
		}
		close(watching)
	}()
	return reg.Watch(ctx, &tappb.WatchRequest{Limit: 1, Fields: true, Explain: true})
}
