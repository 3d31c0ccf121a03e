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
		"GET / HTTP/1.":                 HTTP1, // 13 bytes
		"G":                             HTTP1,
		"PRI * HTTP/2.":                 HTTP1,
		"PRI * HTTP/2.0":                HTTP2,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n":  HTTP2,
		"PRI * HTTP/1.1\r\n":            HTTP1,
		"PRI * HTTP/2.1\r\n":            HTTP1,
		"GET / HTTP/1.1":                HTTP1,
		"GET / HTTP/1.0\r\n\r\n":        HTTP1,
		"GET / HTTP/1.0\n\n":            HTTP1,
		"GET / HTTP/1.1\r":              HTTP1,
		"CONNECT web:80 HTTP/1.1\r\n":   HTTP1,
		"OPTIONS * HTTP/1.1\r\nHost: a": HTTP1,
		"GET /\xc3\xa9 HTTP/1.1\r\n":    HTTP1,
		"\r\n\r\nGET / HTTP/1.1\r\n":    HTTP1,
		"\n\nGET / HTTP/1.1\r\n":        HTTP1,
		"\r\n\r\n\r\n\r\n\r\n\r\n\r\n":  HTTP1, // a request may follow
		"X-ODD.METHOD~!":                HTTP1, // may be the beginning of one
		"GET /" + long:                  HTTP1,
		long:                            HTTP1,
		// Malformed requests, for an HTTP server to reject.
		"GET / HTTP/1.1\rX\n":                             Opaque, // three words, the last is not a version
		"GET / HTTP/1.1 \r\n":                             HTTP1,
		"GET / HTTP/1.2\r\n":                              HTTP1,
		"GET / HTTP/1.9\r\n":                              HTTP1,
		"GET / HTTP/1.10\r\n":                             HTTP1,
		"GET / HTTP/01.1\r\n":                             HTTP1,
		"GET / HTTP/2.0\r\n\r\n":                          HTTP1,
		"GET / HTTP/0.9\r\n\r\n":                          HTTP1,
		"GET / http/1.1\r\n\r\n":                          HTTP1,
		"get / HTTP/1.1\r\n":                              HTTP1,
		"GET /index.html\r\n\r\n":                         HTTP1, // HTTP/0.9, of which some servers read fields
		"GET  / HTTP/1.1\r\n":                             HTTP1,
		"GET  /index.html":                                HTTP1,
		"GET\t/\tHTTP/1.1\r\n":                            HTTP1,
		"GET\v/\xa0HTTP/1.1\n":                            HTTP1,
		"GET /a b HTTP/1.1\r\n":                           HTTP1,
		"GET /\x01 HTTP/1.1\r\n":                          HTTP1,
		"GET /\x00":                                       HTTP1,
		"GET /\x7f HTTP/1.1\r\n":                          HTTP1,
		"G(T / HTTP/1.1\r\n":                              HTTP1,
		" GET / HTTP/1.1\r\n":                             HTTP1,
		"\r\rGET / HTTP/1.1\r\n":                          HTTP1,
		"GÉT / HTTP/1.1\r\n":                              Opaque,
		"PUT /index.html\r\n":                             Opaque,
		"HTTP/1.1\r\n":                                    Opaque,
		"SSH-2.0-OpenSSH_9.7\r\n":                         Opaque,
		"OPTIONS rtsp://a/b RTSP/1.0\r\n":                 Opaque,
		"INVITE sip:a@b SIP/2.0\r\n":                      Opaque,
		"*1\r\n$4\r\nPING\r\n":                            Opaque, // redis
		"GET key\r\n":                                     Opaque, // redis, inline
		"get /key\r\n":                                    Opaque, // memcached
		"EHLO example.com\r\n":                            Opaque, // smtp
		"<134>1 - - a: GET / HTTP/1.1\n":                  Opaque, // syslog
		"Nov 23 web \"GET / HTTP/1.1\" 200\n":             Opaque,
		"Nov 23 web \"GET / HTTP/1.1\"\n":                 Opaque,
		"{\"line\": \"GET / HTTP/1.1\n":                   Opaque,
		"half of an answer":                               HTTP1, // its line has not ended
		"GET foo HTT":                                     HTTP1,
		"GET foo HTTP/1.1\r\n":                            HTTP1,
		"AMQP\x00\x00\x09\x01":                            Opaque,
		"\x16\x03\x01\x00\xf8\x01\x00\x00\xf4\x03\x03abc": Opaque, // tls
		"\x00\x00\x00\x08\x04\xd2\x16\x2f\x00\x00\x00\x00\x00\x00": Opaque, // postgres
	} {
		assert.Equal(t, want, detectedProtocol([]byte(first)), "%q", first)
	}
	assert.Equal(t, "opaque HTTP/1 HTTP/2", strings.Join([]string{Opaque.String(), HTTP1.String(), HTTP2.String()}, " "))
}

// If all bytes are HTTP/1, each prefix of them is HTTP/1.
func FuzzProtocolOf(f *testing.F) {
	for _, seed := range []string{"GET / HTTP/1.1\r\nHost: web\r\n\r\n", preface + "\r\n\r\nSM\r\n\r\n", "\r\nPOST http://a/b HTTP/1.0\n", "\x16\x03\x01"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got := detectedProtocol(b)
		if (got == HTTP2) != bytes.HasPrefix(b, []byte(preface)) {
			t.Fatalf("%v", got)
		}
		if got != HTTP1 {
			return
		}
		for i := 1; i < len(b); i++ {
			if p, final := protocolOf(b[:i]); p != HTTP1 {
				t.Fatalf("%q is %v, and %q is not", b, got, b[:i])
			} else if final && !bytes.Contains(b[:i], []byte{'\n'}) {
				t.Fatalf("%q may go on", b[:i])
			}
		}
	})
}

func detectedProtocol(first []byte) Protocol {
	p, _ := protocolOf(first)
	return p
}
