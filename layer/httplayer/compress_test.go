package httplayer

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// longText is a body that is longer than the default of MinBytes.
var longText = strings.Repeat("a text that repeats itself ", 100)

// decoded returns body without its coding.
func decoded(t *testing.T, coding string, body io.Reader) string {
	t.Helper()
	switch coding {
	case "gzip":
		r, err := gzip.NewReader(body)
		require.NoError(t, err)
		body = r
	case "zstd":
		r, err := zstd.NewReader(body)
		require.NoError(t, err)
		defer r.Close()
		body = r
	}
	b, err := io.ReadAll(body)
	require.NoError(t, err)
	return string(b)
}

// TestCompressRules has a row for each rule of RFC 9110 about transformed content.
func TestCompressRules(t *testing.T) {
	type header = map[string]string
	for name, tt := range map[string]struct {
		request  header
		status   int // 0 is 200
		response header
		body     string // "" is longText
		coding   string // wanted
		want     header // wanted fields; "" is absent
	}{
		"gzip":                        {request: header{"Accept-Encoding": "gzip"}, coding: "gzip", want: header{"Vary": "Accept-Encoding", "Content-Length": ""}},
		"zstd":                        {request: header{"Accept-Encoding": "gzip, deflate, br, zstd"}, coding: "zstd"},
		"no field":                    {want: header{"Vary": "Accept-Encoding"}},
		"empty field":                 {request: header{"Accept-Encoding": ""}, want: header{"Vary": "Accept-Encoding"}},
		"other coding":                {request: header{"Accept-Encoding": "br"}, want: header{"Vary": "Accept-Encoding"}},
		"q 0":                         {request: header{"Accept-Encoding": "gzip;q=0, zstd; q=0.000"}},
		"q order":                     {request: header{"Accept-Encoding": "zstd;q=0.5, GZIP ;Q=0.8"}, coding: "gzip"},
		"x-gzip":                      {request: header{"Accept-Encoding": "x-gzip"}, coding: "gzip"},
		"any":                         {request: header{"Accept-Encoding": "*"}, coding: "zstd"},
		"any but zstd":                {request: header{"Accept-Encoding": "*, zstd;q=0"}, coding: "gzip"},
		"none of any":                 {request: header{"Accept-Encoding": "*;q=0"}},
		"malformed q":                 {request: header{"Accept-Encoding": "gzip;q=x"}},
		"identity preferred":          {request: header{"Accept-Encoding": "identity, gzip;q=0.5"}},
		"identity refused":            {request: header{"Accept-Encoding": "gzip, identity;q=0"}, body: "short", coding: "gzip"},
		"all but gzip refused":        {request: header{"Accept-Encoding": "gzip, *;q=0"}, response: header{"Content-Type": "image/png"}, coding: "gzip", want: header{"Vary": "Accept-Encoding"}},
		"identity refused, no coding": {request: header{"Accept-Encoding": "br, identity;q=0"}},

		"strong tag":         {request: header{"Accept-Encoding": "gzip"}, response: header{"Etag": `"a"`}, coding: "gzip", want: header{"Etag": `W/"a"`}},
		"weak tag":           {request: header{"Accept-Encoding": "gzip"}, response: header{"Etag": `W/"a"`}, coding: "gzip", want: header{"Etag": `W/"a"`}},
		"tag not compressed": {response: header{"Etag": `"a"`}, want: header{"Etag": `"a"`}},
		"304 of the weak tag": {
			request: header{"Accept-Encoding": "gzip", "If-None-Match": `"x", W/"a"`}, status: 304, response: header{"Etag": `"a"`, "Content-Type": ""},
			want: header{"Etag": `W/"a"`, "Vary": "Accept-Encoding"},
		},
		"304 of the strong tag": {
			request: header{"Accept-Encoding": "gzip", "If-None-Match": `"a"`}, status: 304, response: header{"Etag": `"a"`, "Content-Type": ""},
			want: header{"Etag": `"a"`, "Vary": "Accept-Encoding"},
		},
		"304 of an image": {status: 304, response: header{"Content-Type": "image/png"}, want: header{"Vary": ""}},

		"no-transform":         {request: header{"Accept-Encoding": "gzip"}, response: header{"Cache-Control": "max-age=5, No-Transform"}, want: header{"Vary": ""}},
		"request no-transform": {request: header{"Accept-Encoding": "gzip", "Cache-Control": "no-transform"}},
		"206": {
			request: header{"Accept-Encoding": "gzip", "Range": "bytes=0-9"}, status: 206,
			response: header{"Content-Range": "bytes 0-9/100", "Accept-Ranges": "bytes", "Etag": `"a"`},
			want:     header{"Etag": `"a"`, "Accept-Ranges": "bytes", "Vary": "Accept-Encoding"},
		},
		"416":              {request: header{"Accept-Encoding": "gzip"}, status: 416, response: header{"Content-Range": "bytes */100"}},
		"accept-ranges":    {request: header{"Accept-Encoding": "gzip"}, response: header{"Accept-Ranges": "bytes"}, coding: "gzip", want: header{"Accept-Ranges": ""}},
		"vary kept":        {request: header{"Accept-Encoding": "gzip"}, response: header{"Vary": "Origin"}, coding: "gzip", want: header{"Vary": "Origin, Accept-Encoding"}},
		"vary once":        {request: header{"Accept-Encoding": "gzip"}, response: header{"Vary": "Origin, accept-encoding"}, coding: "gzip", want: header{"Vary": "Origin, accept-encoding"}},
		"vary any":         {request: header{"Accept-Encoding": "gzip"}, response: header{"Vary": "*"}, coding: "gzip", want: header{"Vary": "*"}},
		"encoded":          {request: header{"Accept-Encoding": "gzip"}, response: header{"Content-Encoding": "br", "Etag": `"a"`}, want: header{"Content-Encoding": "br", "Etag": `"a"`, "Vary": ""}},
		"identity encoded": {request: header{"Accept-Encoding": "gzip"}, response: header{"Content-Encoding": "identity"}, coding: "gzip"},
		"content digest":   {request: header{"Accept-Encoding": "gzip"}, response: header{"Content-Digest": "sha-256=:AAAA:"}, want: header{"Vary": ""}},
		"repr digest":      {request: header{"Accept-Encoding": "gzip"}, response: header{"Repr-Digest": "sha-256=:AAAA:"}},
		"digest":           {request: header{"Accept-Encoding": "gzip"}, response: header{"Digest": "md5=AAAA"}},
		"md5":              {request: header{"Accept-Encoding": "gzip"}, response: header{"Content-Md5": "AAAA"}},
		"short":            {request: header{"Accept-Encoding": "gzip"}, body: "short", want: header{"Content-Length": "5"}},
		"image":            {request: header{"Accept-Encoding": "gzip"}, response: header{"Content-Type": "image/png"}, want: header{"Vary": ""}},
		"no type":          {request: header{"Accept-Encoding": "gzip"}, response: header{"Content-Type": ""}},
		"parameter":        {request: header{"Accept-Encoding": "gzip"}, response: header{"Content-Type": "Text/HTML; charset=utf-8"}, coding: "gzip"},
		"event stream":     {request: header{"Accept-Encoding": "gzip"}, response: header{"Content-Type": "text/event-stream"}},
		"grpc":             {request: header{"Accept-Encoding": "gzip, *;q=0"}, response: header{"Content-Type": "application/grpc-web"}, want: header{"Vary": ""}},
		"204":              {request: header{"Accept-Encoding": "gzip"}, status: 204, want: header{"Vary": ""}},
		"205":              {request: header{"Accept-Encoding": "gzip"}, status: 205},
		"error":            {request: header{"Accept-Encoding": "gzip"}, status: 500, coding: "gzip"},
	} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			t.Run(name+" "+method, func(t *testing.T) {
				req := request(t, method, "http://web/", "")
				req.Header = make(http.Header)
				for name, value := range tt.request {
					req.Header.Set(name, value)
				}
				body := tt.body
				if body == "" {
					body = longText
				}
				rsp, err := Compress(CompressPolicy{})(serviceFunc(func(_ context.Context, r *http.Request) (*http.Response, error) {
					rsp := newResponse(r, max(tt.status, 200), http.Header{"Content-Type": {"text/plain"}})
					if tt.status != http.StatusNoContent && tt.status != http.StatusNotModified {
						replyText(rsp, body)
					}
					for name, value := range tt.response {
						if rsp.Header[name] = []string{value}; value == "" {
							delete(rsp.Header, name)
						}
					}
					return rsp, nil
				})).Call(t.Context(), req)
				require.NoError(t, err)
				if tt.coding != "" || len(tt.response["Content-Encoding"]) == 0 {
					assert.Equal(t, tt.coding, rsp.Header.Get("Content-Encoding"))
				}
				for name, value := range tt.want {
					assert.Equal(t, value, strings.Join(rsp.Header[name], ", "), name)
				}
				if tt.coding != "" {
					assert.Empty(t, rsp.Header["Content-Length"])
					assert.EqualValues(t, -1, rsp.ContentLength)
				}
				if rsp.Body != http.NoBody {
					assert.Equal(t, body, decoded(t, tt.coding, rsp.Body))
				}
				require.NoError(t, rsp.Body.Close())
			})
		}
	}
	for _, p := range []CompressPolicy{{MinBytes: -1}, {ContentTypes: []string{"text/*"}}, {ContentTypes: []string{"Text/html"}}} {
		require.Error(t, p.Validate())
		require.Panics(t, func() { Compress(p) })
	}
}

// Through servers: trailers arrive, an event is not held back, and an error ends the body.
func TestCompressStreams(t *testing.T) {
	next := make(chan struct{})
	up := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("Trailer", "X-Sum")
		for range 2 {
			_, _ = io.WriteString(w, "event\n")
			flush(w)
			select {
			case <-next:
			case <-r.Context().Done():
				return
			}
		}
		if r.URL.Path == "/breaks" {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("X-Sum", "2")
	}))
	f := servingBy(t, Handler(NewStack().With("compress", Compress(CompressPolicy{})).Service(endpoint(t, up))))
	for _, h2 := range []bool{false, true} {
		for _, path := range []string{"/", "/breaks"} {
			for _, coding := range []string{"gzip", "zstd"} {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+f.addr+path, http.NoBody)
				require.NoError(t, err)
				req.Header.Set("Accept-Encoding", coding)
				rsp, err := client(t, h2).Do(req)
				require.NoError(t, err)
				assert.Equal(t, coding, rsp.Header.Get("Content-Encoding"))
				var body io.Reader
				if coding == "gzip" {
					body, err = gzip.NewReader(rsp.Body)
				} else {
					body, err = zstd.NewReader(rsp.Body, zstd.WithDecoderConcurrency(1))
				}
				require.NoError(t, err)
				lines := bufio.NewReader(body)
				for range 2 {
					line, err := lines.ReadString('\n')
					require.NoError(t, err)
					assert.Equal(t, "event\n", line)
					next <- struct{}{}
				}
				_, err = lines.ReadByte()
				if path == "/breaks" {
					require.Error(t, err)
					assert.NotEqual(t, io.EOF, err)
				} else {
					require.Equal(t, io.EOF, err)
					_, _ = io.Copy(io.Discard, rsp.Body)
					assert.Equal(t, http.Header{"X-Sum": {"2"}}, rsp.Trailer)
				}
				rsp.Body.Close()
			}
		}
	}
}

// A body may be closed at any time, and its encoder is used again.
func TestCompressClose(t *testing.T) {
	gone := errors.New("gone")
	for range 3 {
		src, feed := io.Pipe()
		b := &compressedBody{ReadCloser: src, coding: "gzip"}
		ended := make(chan error, 1)
		go func() {
			_, err := io.Copy(io.Discard, b)
			ended <- err
		}()
		_, err := feed.Write([]byte(longText))
		require.NoError(t, err)
		require.NoError(t, b.Close())
		require.Error(t, <-ended)
		_, err = b.Read(make([]byte, 1))
		require.ErrorIs(t, err, http.ErrBodyReadAfterClose)

		b = &compressedBody{ReadCloser: io.NopCloser(io.MultiReader(strings.NewReader(longText), failingReader{gone})), coding: "gzip"}
		var out bytes.Buffer
		_, err = io.Copy(&out, b)
		require.ErrorIs(t, err, gone)
		require.NoError(t, b.Close())
	}
}

type failingReader struct{ err error }

func (f failingReader) Read([]byte) (int, error) { return 0, f.err }
