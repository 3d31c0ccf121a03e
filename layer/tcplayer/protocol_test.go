package tcplayer

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestProtocolOf(t *testing.T) {
	long := strings.Repeat("x", 1024)
	for first, want := range map[string]Protocol{
		"":                              Opaque,
		"GET / HTTP/1.":                 Opaque, // 13 bytes
		"PRI * HTTP/2.":                 Opaque,
		"PRI * HTTP/2.0":                HTTP2,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n":  HTTP2,
		"PRI * HTTP/1.1\r\n":            HTTP1,
		"PRI * HTTP/2.1\r\n":            Opaque,
		"GET / HTTP/1.1":                HTTP1,
		"GET / HTTP/1.0\r\n\r\n":        HTTP1,
		"GET / HTTP/1.0\n\n":            HTTP1,
		"GET / HTTP/1.1\r":              HTTP1,
		"GET / HTTP/1.1\rX":             Opaque,
		"GET / HTTP/1.1 \r\n":           Opaque,
		"GET / HTTP/2.0\r\n\r\n":        Opaque,
		"GET / HTTP/0.9\r\n\r\n":        Opaque,
		"GET / http/1.1\r\n\r\n":        Opaque,
		"GET /index.html\r\n\r\n":       Opaque, // HTTP/0.9
		"GET  / HTTP/1.1\r\n":           Opaque,
		"GET /\x01 HTTP/1.1\r\n":        Opaque,
		"GET /\x7f HTTP/1.1\r\n":        Opaque,
		"GET /\xc3\xa9 HTTP/1.1\r\n":    HTTP1,
		"GÉT / HTTP/1.1\r\n":            Opaque,
		"G(T / HTTP/1.1\r\n":            Opaque,
		"CONNECT web:80 HTTP/1.1\r\n":   HTTP1,
		"OPTIONS * HTTP/1.1\r\nHost: a": HTTP1,
		"\r\n\r\nGET / HTTP/1.1\r\n":    HTTP1,
		"\n\nGET / HTTP/1.1\r\n":        HTTP1,
		"\r\rGET / HTTP/1.1\r\n":        Opaque,
		"\r\n\r\n\r\n\r\n\r\n\r\n\r\n":  HTTP1, // a request may follow
		" GET / HTTP/1.1\r\n":           Opaque,
		"X-ODD.METHOD~!":                HTTP1, // may be the beginning of one
		"GET /" + long:                  HTTP1,
		long:                            HTTP1,
		"SSH-2.0-OpenSSH_9.7\r\n":       Opaque,
		"*1\r\n$4\r\nPING\r\n":          Opaque, // redis
		"EHLO example.com\r\n":          Opaque, // smtp
		"\x16\x03\x01\x00\xf8\x01\x00\x00\xf4\x03\x03abc":          Opaque, // tls
		"\x00\x00\x00\x08\x04\xd2\x16\x2f\x00\x00\x00\x00\x00\x00": Opaque, // postgres
	} {
		assert.Equal(t, want, ProtocolOf([]byte(first)), "%q", first)
	}
	assert.Equal(t, "opaque HTTP/1 HTTP/2", strings.Join([]string{Opaque.String(), HTTP1.String(), HTTP2.String()}, " "))
}

// What is HTTP/1 by all of its bytes is HTTP/1 by any first ones of them, and
// neither panics nor is two things.
func FuzzProtocolOf(f *testing.F) {
	for _, seed := range []string{"GET / HTTP/1.1\r\nHost: web\r\n\r\n", preface + "\r\n\r\nSM\r\n\r\n", "\r\nPOST http://a/b HTTP/1.0\n", "\x16\x03\x01"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got := ProtocolOf(b)
		if (got == HTTP2) != bytes.HasPrefix(b, []byte(preface)) {
			t.Fatalf("%v", got)
		}
		if got != HTTP1 {
			return
		}
		for i := len(preface); i < len(b); i++ {
			if p := ProtocolOf(b[:i]); p != HTTP1 {
				t.Fatalf("%q is %v, and %q is not", b, got, b[:i])
			}
		}
	})
}
