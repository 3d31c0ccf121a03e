package tcplayer

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// undecided is the result of protocolOf that is not final.
var undecided = Protocol(100)

func TestProtocolOf(t *testing.T) {
	long := strings.Repeat("x", 1024)
	for first, want := range map[string]Protocol{
		"":                              undecided,
		"GET / HTTP/1.":                 undecided,
		"G":                             undecided,
		"PRI * HTTP/2.":                 undecided,
		"PRI * HTTP/2.0":                HTTP2,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n":  HTTP2,
		"PRI * HTTP/1.1\r\n":            HTTP1,
		"PRI * HTTP/2.1\r\n":            HTTP1,
		"GET / HTTP/1.1":                undecided,
		"GET / HTTP/1.0\r\n\r\n":        HTTP1,
		"GET / HTTP/1.0\n\n":            HTTP1,
		"GET / HTTP/1.1\r":              HTTP1,
		"CONNECT web:80 HTTP/1.1\r\n":   HTTP1,
		"OPTIONS * HTTP/1.1\r\nHost: a": HTTP1,
		"GET /\xc3\xa9 HTTP/1.1\r\n":    HTTP1,
		"\r\n\r\nGET / HTTP/1.1\r\n":    HTTP1,
		"\n\nGET / HTTP/1.1\r\n":        HTTP1,
		"\r\n\r\n\r\n\r\n\r\n\r\n\r\n":  undecided, // a request may follow
		strings.Repeat("\r\n", 512):     Opaque,
		"X-ODD.METHOD~!":                undecided,
		"X-ODD.METHOD~! / HTTP/1.1\n":   HTTP1,
		"GET /" + long:                  HTTP1,
		"\r\nGET /" + long:              HTTP1,
		"GET http://a/" + long:          HTTP1,
		"GET " + long:                   Opaque,
		"EHLO " + long:                  Opaque,
		long:                            Opaque,
		// Malformed requests, for an HTTP server to reject.
		"GET / HTTP/1.1\rX\n":     HTTP1,
		"GET / HTTP/1.1 \r\n":     HTTP1,
		"GET / HTTP/1.2\r\n":      HTTP1,
		"GET / HTTP/1.9\r\n":      HTTP1,
		"GET / HTTP/1.10\r\n":     HTTP1,
		"GET / HTTP/01.1\r\n":     HTTP1,
		"GET / HTTP/2.0\r\n\r\n":  HTTP1,
		"GET / HTTP/0.9\r\n\r\n":  HTTP1,
		"GET / http/1.1\r\n\r\n":  HTTP1,
		"get / HTTP/1.1\r\n":      HTTP1,
		"GET /index.html\r\n\r\n": HTTP1, // HTTP/0.9, of which some servers read fields
		"GET  / HTTP/1.1\r\n":     HTTP1,
		"GET\t/\tHTTP/1.1\r\n":    HTTP1,
		"GET /a b HTTP/1.1\r\n":   HTTP1,
		"GET /\x01 HTTP/1.1\r\n":  HTTP1,
		"GET /\x7f HTTP/1.1\r\n":  HTTP1,
		" GET / HTTP/1.1\r\n":     HTTP1,
		"GET foo HTTP/1.1\r\n":    HTTP1,
		"GET  /index.html":        undecided,
		"GET /\x00":               undecided,
		"GET foo HTT":             undecided,
		"half of an answer":       undecided,
		// A byte that cannot begin HTTP.
		"G(T /":              Opaque,
		"GET\v/":             Opaque,
		"G\xc9T / HTTP/1.1":  Opaque,
		"\r\rGET / HTTP/1.1": Opaque,
		"\rG":                Opaque,
		"1GET / HTTP/1.1":    Opaque,
		"HTTP/":              Opaque,
		"PUT /index.html\r":  Opaque,
		"\r\n\v":             Opaque,
	} {
		got, final := protocolOf([]byte(first)[:min(len(first), maxDetect)])
		if !final {
			assert.Equal(t, Opaque, got, "%q", first)
			got = undecided
		}
		assert.Equal(t, want, got, "%q", first)
	}
	// A byte that cannot be the first one of HTTP.
	for c := range 256 {
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && strings.IndexByte(" \t\r\n", byte(c)) < 0 {
			p, final := protocolOf([]byte{byte(c)})
			assert.True(t, final, c)
			assert.Equal(t, Opaque, p, c)
		}
	}
	assert.Equal(t, "opaque HTTP/1 HTTP/2", strings.Join([]string{Opaque.String(), HTTP1.String(), HTTP2.String()}, " "))
}

// A decision does not depend on how the bytes are split into packets: it is made at one byte, and
// later bytes do not change it.
func FuzzProtocolOf(f *testing.F) {
	for _, seed := range []string{
		"GET / HTTP/1.1\r\nHost: web\r\n\r\n", preface + "\r\n\r\nSM\r\n\r\n", "\r\nPOST http://a/b HTTP/1.0\n", "\x16\x03\x01",
		"\vMSH|^~\\&|A\r\x1c\r", "GET /" + strings.Repeat("a", 1100), "PING\r", " \r\r", "PRI * HTTP/2.1\r\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		b = b[:min(len(b), maxDetect)]
		got, final := protocolOf(b)
		switch {
		case (got == HTTP2) != bytes.HasPrefix(b, []byte(preface)):
			t.Fatalf("%q is %v", b, got)
		case !final && got != Opaque:
			t.Fatalf("%q is %v before the decision", b, got)
		case !final && len(b) == maxDetect:
			t.Fatalf("%q is undecided", b)
		}
		for i := range b {
			if p, already := protocolOf(b[:i]); already && (p != got || !final) {
				t.Fatalf("%q is %v, and %q is %v", b[:i], p, b, got)
			}
		}
	})
}
