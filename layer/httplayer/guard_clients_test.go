package httplayer

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestGuardOrdinaryBytes sends what old and new clients send, byte for byte.
func TestGuardOrdinaryBytes(t *testing.T) {
	guard := NewGuard()
	addr := guarded(t, endpoint(t, serve(t, http.HandlerFunc(shapes)), WithHTTP1()), guard)
	for name, tt := range map[string]struct {
		sent string
		want []string
	}{
		"HTTP/1.0":               {"GET /length HTTP/1.0\r\n\r\n", []string{"hello"}},
		"HTTP/1.0 with a host":   {"GET /length HTTP/1.0\r\nHost: a\r\nUser-Agent: ab/2.3\r\nAccept: */*\r\n\r\n", []string{"hello"}},
		"HTTP/1.0 post":          {"POST /echo HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello", []string{"hello"}},
		"HTTP/1.0 kept":          {"GET /length HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\nGET /length HTTP/1.0\r\n\r\n", []string{"hello", "hello"}},
		"empty line behind POST": {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab\r\nGET /length HTTP/1.1\r\nHost: a\r\n\r\n", []string{"ab", "hello"}},
		"no space behind colons": {"POST /echo HTTP/1.1\r\nHost:a\r\nContent-Length:2\r\nAccept:\r\n\r\nab", []string{"ab"}},
		"UTF-8":                  {"GET /length?\u00fc=<> HTTP/1.1\r\nHost: a\r\nUser-Agent: m\u00fcller\tx\r\n\r\n", []string{"hello"}},
		"IPv6":                   {"GET /length HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", []string{"hello"}},
		"underscore in a host":   {"GET /length HTTP/1.1\r\nHost: my_host.default\r\n\r\n", []string{"hello"}},
		"trailer": {"POST /echo HTTP/1.1\r\nHost: a\r\nTrailer: Sum\r\nTransfer-Encoding: chunked\r\n\r\n" +
			"5\r\nhello\r\n0\r\nSum: 7\r\n\r\n", []string{"hello"}},
		"pipelining": {strings.Repeat("GET /length HTTP/1.1\r\nHost: a\r\n\r\nPOST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab", 50),
			strings.Fields(strings.Repeat("hello ab ", 50))},
		"large head": {"GET /length HTTP/1.1\r\nHost: a\r\nCookie: " + strings.Repeat("c=d; ", 10_000) + "\r\n\r\n", []string{"hello"}},
		"any bytes in a body": {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\n\r\n\x00\r\n\r\nGET / \x7f" +
			"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nc\r\n\x00\r\n\r\nGET / \x7f\r\n0\r\n\r\n",
			[]string{"\x00\r\n\r\nGET / \x7f", "\x00\r\n\r\nGET / \x7f"}},
	} {
		t.Run(name, func(t *testing.T) {
			conn, in := guardDial(t, addr)
			go say(conn, tt.sent)
			for _, want := range tt.want {
				status, body, _ := guardAnswer(t, in)
				assert.Equal(t, http.StatusOK, status)
				assert.Equal(t, want, body)
			}
		})
	}
	assert.Empty(t, cuts(guard))
}

func TestGuardGoClient(t *testing.T) {
	guard := NewGuard()
	addr := guarded(t, endpoint(t, serve(t, http.HandlerFunc(shapes)), WithHTTP1()), guard)
	c := client(t, false)
	c.Transport.(*http.Transport).ExpectContinueTimeout = 1e9
	large := strings.Repeat("0123456789abcdef", 1<<16)
	for range 3 {
		for _, length := range []int64{-1, int64(len(large))} {
			req := request(t, http.MethodPost, "http://"+addr+"/echo", "")
			req.Body, req.ContentLength = io.NopCloser(strings.NewReader(large)), length
			if length < 0 {
				req.Trailer = http.Header{"Sum": {"44"}}
			} else {
				req.Header.Set("Expect", "100-continue")
			}
			rsp, err := c.Do(req)
			require.NoError(t, err)
			assert.Equal(t, large, read(t, rsp))
			if length < 0 {
				assert.Equal(t, "44", rsp.Trailer.Get("Sum"))
			}
		}
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodDelete, "PROPFIND"} {
			rsp, err := c.Do(request(t, method, "http://"+addr+"/length", ""))
			require.NoError(t, err)
			assert.Equal(t, http.StatusOK, rsp.StatusCode)
			read(t, rsp)
		}
	}
	assert.Empty(t, cuts(guard))
}

func TestGuardCurl(t *testing.T) {
	t.Parallel()
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("NOT RUN: there is no curl on this machine")
	}
	guard := NewGuard()
	addr := guarded(t, endpoint(t, serve(t, http.HandlerFunc(shapes)), WithHTTP1()), guard)
	root := "http://" + addr
	large := strings.Repeat("0123456789abcdef", 1<<17)
	for name, tt := range map[string]struct{ args, in, want string }{
		"get":           {root + "/length", "", "hello"},
		"several":       {root + "/length " + root + "/chunks " + root + "/length", "", "hello0,1,2,hello"},
		"HTTP/1.0":      {"-0 " + root + "/length", "", "hello"},
		"HTTP/1.0 post": {"-0 --data-binary @- " + root + "/echo", "hello", "hello"},
		"post":          {"--data-binary @- " + root + "/echo", large, large},
		"expect":        {"-H Expect:100-continue --data-binary @- " + root + "/echo", "hello", "hello"},
		"chunks":        {"-H Transfer-Encoding:chunked --data-binary @- " + root + "/echo", large, large},
		"upload":        {"-T - " + root + "/echo", large, large},
		"proxy":         {"-x " + root + " http://web.default/what", "", "GET web.default http://web.default/what"},
		"proxy, port":   {"-x " + root + " http://web.default:80/what", "", "GET web.default"},
		"h2c upgrade":   {"--http2 " + root + "/length", "", "hello"},
		"h2":            {"--http2-prior-knowledge " + root + "/length", "", "hello"},
		"form":          {"-F a=b -F c=@- " + root + "/echo", "hello", "hello"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10e9)
			defer cancel()
			cmd := exec.CommandContext(ctx, curl, append([]string{"-sS", "--noproxy", ""}, strings.Fields(tt.args)...)...)
			cmd.Stdin = strings.NewReader(tt.in)
			var errs bytes.Buffer
			cmd.Stderr = &errs
			out, err := cmd.Output()
			if strings.Contains(errs.String(), "installed libcurl version doesn't support") {
				t.Skip("NOT RUN: ", errs.String())
			}
			require.NoError(t, err, errs.String())
			assert.Contains(t, string(out), tt.want)
		})
	}
	assert.Empty(t, cuts(guard))
}
