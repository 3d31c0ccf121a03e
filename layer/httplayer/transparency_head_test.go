package httplayer

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const okAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// The requests that the application receives, by the row of tests.md.
func TestTransparencyA1ToA18Requests(t *testing.T) {
	for name, tt := range map[string]struct {
		sent, first string
		fields      []string
		body        string
	}{
		"A1 HTTP/1 request": {"GET /a?b=c HTTP/1.1\nHost: web\nX-A: 1\n\n", "GET /a?b=c HTTP/1.1", []string{"Host: web", "X-A: 1"}, ""},
		"A8 hop-by-hop headers are stripped": {
			"GET / HTTP/1.1\nHost: web\nConnection: X-Mine, close, Keep-Alive\nX-Mine: 1\nKeep-Alive: 5\nProxy-Connection: keep-alive\nX-Yours: 2\n\n",
			"GET / HTTP/1.1", []string{"Host: web", "X-Yours: 2"}, "",
		},
		"A9 HTTP/1.0 with Host": {"GET /a HTTP/1.0\nHost: web\n\n", "GET /a HTTP/1.0", []string{"Host: web"}, ""},
		"A9 HTTP/1.0 with a body": {
			"POST /a HTTP/1.0\nHost: web\nContent-Length: 5\n\nhello", "POST /a HTTP/1.0", []string{"Content-Length: 5", "Host: web"}, "hello",
		},
		"A10 an absolute target that differs from Host": {
			"GET http://web.default/a?b HTTP/1.1\nHost: other\n\n", "GET http://web.default/a?b HTTP/1.1", []string{"Host: web.default"}, "",
		},
		"A10 an absolute target without a path": {
			"GET http://web.default HTTP/1.1\nHost: web.default\n\n", "GET http://web.default/ HTTP/1.1", []string{"Host: web.default"}, "",
		},
		"A12 l5d-orig-proto is not leaked": {
			"GET / HTTP/1.1\nHost: web\nl5d-orig-proto: HTTP/1.0; absolute-form\n\n", "GET / HTTP/1.1", []string{"Host: web"}, "",
		},
		"A13 an upgrade to h2c is stripped": {
			"GET / HTTP/1.1\nHost: web\nConnection: Upgrade, HTTP2-Settings\nUpgrade: h2c\nHTTP2-Settings: AAMAAABkAAQAAP__\n\n",
			"GET / HTTP/1.1", []string{"Host: web"}, "",
		},
		"A16 a body with a length": {
			"POST / HTTP/1.1\nHost: web\nContent-Length: 5\n\nhello", "POST / HTTP/1.1", []string{"Content-Length: 5", "Host: web"}, "hello",
		},
		"A16 a body in chunks": {
			"POST / HTTP/1.1\nHost: web\nTransfer-Encoding: chunked\n\n5\nhello\n0\n\n",
			"POST / HTTP/1.1", []string{"Host: web", "Transfer-Encoding: chunked"}, "hello",
		},
		"A17 nothing is added to GET":    {"GET / HTTP/1.1\nHost: web\n\n", "GET / HTTP/1.1", []string{"Host: web"}, ""},
		"A17 nothing is added to POST":   {"POST / HTTP/1.1\nHost: web\n\n", "POST / HTTP/1.1", []string{"Host: web"}, ""},
		"A17 nothing is added to PUT":    {"PUT / HTTP/1.1\nHost: web\n\n", "PUT / HTTP/1.1", []string{"Host: web"}, ""},
		"A17 nothing is added to PATCH":  {"PATCH / HTTP/1.1\nHost: web\n\n", "PATCH / HTTP/1.1", []string{"Host: web"}, ""},
		"A17 nothing is added to DELETE": {"DELETE / HTTP/1.1\nHost: web\n\n", "DELETE / HTTP/1.1", []string{"Host: web"}, ""},
		"A18 a length of 0": {
			"POST / HTTP/1.1\nHost: web\nContent-Length: 0\n\n", "POST / HTTP/1.1", []string{"Content-Length: 0", "Host: web"}, "",
		},
		"OPTIONS *": {"OPTIONS * HTTP/1.1\nHost: web\n\n", "OPTIONS * HTTP/1.1", []string{"Host: web"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			oneAndTwo(t, func(t *testing.T, through func(testing.TB, string, ...EndpointOption) string) {
				if strings.Contains(t.Name(), "A12") && strings.HasSuffix(t.Name(), "/one") {
					t.Skip("a proxy by itself has nothing to say about it")
				}
				up, got := application(t, okAnswer)
				first, fields, body := wireTo(t, through(t, up)).ask(tt.sent)
				r := <-got
				assert.Equal(t, tt.first, r.first)
				if strings.HasPrefix(name, "A17 nothing is added to P") && strings.HasSuffix(t.Name(), "/two") {
					// The HTTP/2 client of net/http sends Content-Length: 0 where others do
					// not.
					r.fields = slices.DeleteFunc(r.fields, func(f string) bool { return f == "Content-Length: 0" })
				}
				assert.Equal(t, tt.fields, r.fields)
				assert.Equal(t, tt.body, r.body)
				version, _, _ := strings.Cut(tt.first[strings.LastIndex(tt.first, " ")+1:], "\n")
				assert.Equal(t, version+" 200 OK", first, "A9: the client's version")
				if version == proto11 && !strings.Contains(tt.sent, "close") {
					assert.Equal(t, []string{"Content-Length: 2"}, undated(fields))
				}
				assert.Equal(t, "ok", body)
			})
		})
	}
}

// The responses that the client receives.
func TestTransparencyA8ToA21Responses(t *testing.T) {
	for name, tt := range map[string]struct {
		method, answer string
		first          string
		fields         []string
		body           string
	}{
		"A8 hop-by-hop headers are stripped": {
			"GET", "HTTP/1.1 200 OK\nConnection: X-Mine, keep-alive\nX-Mine: 1\nKeep-Alive: 1\nProxy-Connection: x\nUpgrade: h2c\nContent-Length: 2\n\nok",
			"200 OK", []string{"Content-Length: 2"}, "ok",
		},
		"A12 l5d-orig-proto is not leaked": {
			"GET", "HTTP/1.1 200 OK\nl5d-orig-proto: HTTP/1.0\nContent-Length: 2\n\nok", "200 OK", []string{"Content-Length: 2"}, "ok",
		},
		"A18 a length of 0":      {"GET", "HTTP/1.1 200 OK\nContent-Length: 0\n\n", "200 OK", []string{"Content-Length: 0"}, ""},
		"A19 204":                {"GET", "HTTP/1.1 204 No Content\n\n", "204 No Content", []string{}, ""},
		"A19 304":                {"GET", "HTTP/1.1 304 Not Modified\n\n", "304 Not Modified", []string{}, ""},
		"A20 HEAD":               {"HEAD", "HTTP/1.1 200 OK\nContent-Length: 500\n\n", "200 OK", []string{"Content-Length: 500"}, ""},
		"A21 to the end of file": {"GET", "HTTP/1.1 200 OK\nConnection: close\n\nto the end", "200 OK", []string{"Transfer-Encoding: chunked"}, "to the end"},
	} {
		t.Run(name, func(t *testing.T) {
			oneAndTwo(t, func(t *testing.T, through func(testing.TB, string, ...EndpointOption) string) {
				if strings.Contains(t.Name(), "A12") && strings.HasSuffix(t.Name(), "/one") {
					t.Skip("a proxy by itself has nothing to say about it")
				}
				up, _ := application(t, strings.ReplaceAll(tt.answer, "\n", "\r\n"))
				first, fields, body := wireTo(t, through(t, up)).ask(tt.method + " / HTTP/1.1\nHost: web\n\n")
				assert.Equal(t, "HTTP/1.1 "+tt.first, first)
				want := tt.fields
				if slices.Contains(fields, "Content-Length: 10") && strings.Contains(name, "A21") {
					want = []string{"Content-Length: 10"} // all of the body had arrived
				}
				assert.Equal(t, want, undated(fields))
				assert.Equal(t, tt.body, body)
			})
		})
	}
}

func TestTransparencyA19Informational(t *testing.T) {
	oneAndTwo(t, func(t *testing.T, through func(testing.TB, string, ...EndpointOption) string) {
		up, _ := application(t, "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n"+okAnswer)
		c := wireTo(t, through(t, up))
		say(c, "GET / HTTP/1.1\r\nHost: web\r\n\r\n")
		hint, err := http.ReadResponse(c.in, nil)
		require.NoError(t, err)
		assert.Equal(t, 103, hint.StatusCode)
		assert.Equal(t, http.Header{"Link": {"</a.css>"}}, hint.Header)
		rsp, err := http.ReadResponse(c.in, nil)
		require.NoError(t, err)
		assert.Equal(t, 200, rsp.StatusCode)
		assert.Equal(t, "ok", read(t, rsp))
	})
}
