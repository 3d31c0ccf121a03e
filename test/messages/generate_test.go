package messages

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// sentinel is the request after each generated one. It ends the connection, and shows where the
// proxy expects the next request. It is long enough to also complete a body that is too short.
const sentinel = "GET /sentinel HTTP/1.1\r\nHost: sentinel\r\nX-Padding: " +
	"pppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppppp\r\nConnection: close\r\n\r\n"

// message is a generated message.
type message struct {
	name  string // the parts that are not plain
	input []byte
	piece int // size of the pieces in which it is sent; 0: not split

	// In a response:
	method string // the request's method
	end    ending
}

// source draws the parts of one message.
type source struct {
	*rand.Rand
	sloppy map[string]bool // parts that are drawn from the sloppy values
	single *string         // the value of the only sloppy part; all others have their first plain value
	drawn  []string
}

// newSource returns the source for the message with this number. The first messages contain one
// sloppy value each, until every one of values has occurred. In the others, up to three parts are
// sloppy.
func newSource(number uint64, values map[string][]string) *source {
	s := &source{Rand: rand.New(rand.NewPCG(number, 0)), sloppy: make(map[string]bool)}
	parts := slices.Sorted(maps.Keys(values))
	rest := number
	for _, part := range parts {
		n := uint64(len(values[part]))
		if rest < n {
			s.sloppy[part], s.single = true, &values[part][rest]
			return s
		}
		rest -= n
	}
	for range [...]int{0, 0, 1, 1, 1, 1, 1, 2, 2, 3}[s.IntN(10)] {
		s.sloppy[parts[s.IntN(len(parts))]] = true
	}
	return s
}

// draw returns one of a part's plain or sloppy values.
func (s *source) draw(part string, plain, sloppy []string) string {
	var v string
	switch {
	case !s.sloppy[part] && s.single != nil:
		return plain[0]
	case !s.sloppy[part]:
		v = plain[s.IntN(len(plain))]
	case s.single != nil:
		v = *s.single
	default:
		v = sloppy[s.IntN(len(sloppy))]
	}
	if s.sloppy[part] || len(v) > 0 && s.IntN(2) == 0 {
		s.drawn = append(s.drawn, fmt.Sprintf("%s %.60q", part, v))
	}
	return v
}

// chance returns true once in n times.
func (s *source) chance(n int) bool { return s.single == nil && s.IntN(n) == 0 }

func (s *source) name(seed uint64) string {
	return fmt.Sprintf("%d: %s", seed, strings.Join(s.drawn, ", "))
}

var (
	methods       = []string{"GET", "GET", "GET", "POST", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "PROPFIND", "QUERY", "HEAD"}
	sloppyMethods = []string{
		"get", "Get", "M-SEARCH", "G!#$%&'*+.^_`|~9", "BASELINE-CONTROL", strings.Repeat("A", 40), "G(T", "G@T", "G\"T", "GE\xc3\x89T", "G\tT",
		"", " GET", "G,T", "TRACE", "CONNECT", "GET\x00", "123", "\x16\x03\x01",
	}
	targets = []string{
		"/", "/", "/a/b", "/a?x=1&y=2", "/a%20b", "/a%2Fb", "/%E6%97%A5?q=%C3%A9", "/-._~!$&'()*+,;=:@", "/a/?", "/index.html?", "/a;p=1/b;q",
		"/a?x=/../b", "http://h/p?q", "http://h", "http://h:80/", "http://h?x",
	}
	sloppyTargets = []string{
		"/caf\xc3\xa9", "/\xe6\x97\xa5\xe6\x9c\xac?\xc3\xa9=\xc3\xa9", "/latin\xe9", "/\x80\xff", "/a|b", "/a^b", "/{id}", "/a\"b", "/a\\b", "/<a>", "/a`b",
		"/?q={\"a\":[1]}", "/a?x=|^`\\<>", "/[x]", "/?a[]=1", "/%", "/%4", "/%zz", "/%41%", "/a?%zz", "/a%00b", "/a%0ab", "/%2e%2e/x",
		"//", "//a/b", "/a//b", "/./a", "/a/./b", "/a/../b", "/a/..", "/..", "/../a", "/;", "/a;b", "/a#frag", "/#", "/a?x#y",
		"*", "**", "a", "a/b", "?x", "", "/a b", "/a  b", "/a\tb", "/a\x00b", "/a\x01b", "/a\x7fb", "/a\x0bb", "/a\rb",
		"HTTP://h/p", "hTTp://H/p", "http://other/p", "http://u@h/p", "http://u:p@h/p", "https://h/p", "ftp://h/p", "http:///p", "http://", "http:/h/p",
		"http://h:abc/p", "http://[::1]:8080/p", "http://h/\xc3\xa9", "http://h\\p", "http://h#f", "h:80", "://h/p", "/http://h/p", "/" + strings.Repeat("a", 9000),
		"/" + strings.Repeat("a/", 15000), "/?" + strings.Repeat("q", 30000), "/~user", "/:80", "/@", "/%C3%28", "/+a+", "/a&b=c",
	}
	versions       = []string{"HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0"}
	sloppyVersions = []string{
		"HTTP/1.2", "HTTP/1.9", "HTTP/2.0", "HTTP/3.0", "HTTP/0.9", "http/1.1", "Http/1.1", "HTTP/1.10", "HTTP/1.11", "HTTP/01.1", "HTTP/1.", "HTTP/1",
		"HTTP/11", "HTTP/1,1", "HTTP/-1.1", "HTTPS/1.1", "HTTP/1.1 ", "HTTP/1.1  ", "HTTP/1.1\t", " HTTP/1.1", "\tHTTP/1.1", "HTTP /1.1", "HTTP/ 1.1", "", "ICAP/1.0", "HTTP/1.1x",
		"HTTP/1.1\x00", "HTTP/\xd9\xa1.1",
	}
	hosts       = []string{"h", "h", "example.com", "h:80", "H.Example:8080", "127.0.0.1", "[::1]", "[::1]:80", "a-b.c_d"}
	sloppyHosts = []string{
		"", "h:", "h:abc", "h:99999", "h:0", "h,i", "h i", "h/x", "u@h", "u:p@h", "http://h", "h?x", "h#x", "h\\x", "caf\xc3\xa9", "h\xff", "[::1", "::1", "[]", "h%41", "h%zz",
		"a|b", "<h>", "h\"x", "{h}", "h\tx", "h;x", "*", ".", "h..i", "h.", "-h", strings.Repeat("h", 300), "none", "twice same", "twice different", "last", "lower", "upper",
	}
	// Header lines, including their line ends.
	fields = []string{
		"", "", "X-A: v\r\n", "x-a: v\r\nX-A: w\r\n", "X-A:v\r\n", "X-A:   v   \r\n", "X-A:\tv\t\r\n", "X-A:\r\n", "X-A: \r\n", "X-A: a, b ,c\r\n", "X-A: \"q, \\\"r\"\r\n",
		"X-A: caf\xc3\xa9\r\n", "X-A: latin\xe9\r\n", "X-A: a\tb\r\n", "Cookie: a=b; c=d\r\nCookie: e=f\r\n", "Accept: */*\r\nAccept: text/html\r\n", "User-Agent: Mozilla/5.0 (X; Y)\r\n",
		"Authorization: Basic dTpw\r\n", "Range: bytes=0-1\r\n", "If-None-Match: \"e\"\r\n", "Referer: http://h/?x=|\r\n", "X-A: " + strings.Repeat("v", 4000) + "\r\n",
		"X-A: :::\r\n", "X-A: a:b\r\n", "X-A: ()<>@,;\\\"/[]?={}\r\n", "X-Request-Id: 1\r\n", "x-b: 1\r\nX-C: 2\r\nx-b: 3\r\n",
	}
	sloppyFields = []string{
		"X_A: v\r\n", "X_A: v\r\nX-A: w\r\n", "X.A: v\r\n", "X!#$%&'*+.^`|~A: v\r\n", "1: v\r\n", "-: v\r\n", "_: v\r\n", strings.Repeat("x", 300) + ": v\r\n",
		"X A: v\r\n", "X-A : v\r\n", "X-A\t: v\r\n", ": v\r\n", "X@A: v\r\n", "X(A): v\r\n", "X\"A: v\r\n", "X/A: v\r\n", "X{A}: v\r\n", "X-\xc3\xa9: v\r\n", "X-\xff: v\r\n", "X-\x00: v\r\n", "X-\x01: v\r\n",
		"nocolon\r\n", "no colon\r\n", ":\r\n", "X-A: a\x01b\r\n", "X-A: a\x00b\r\n", "X-A: a\x7fb\r\n", "X-A: a\x0bb\r\n", "X-A: a\x1bb\r\n", "X-A: a\rb\r\n", "X-A: v\r\r\n", "X-A: \rv\r\n", "X-A: a\nX-B: b\r\n",
		"X-A: v\n", "X-A: v\nX-B: w\n", "X-A: a\r\n b\r\n", "X-A: a\r\n\tb\r\n", "X-A:\r\n b\r\n", "X-A: a\n b\n", "X-A: a\r\n \r\n", " X-A: v\r\n", "\tX-A: v\r\n", " \r\n",
		"X-A: " + strings.Repeat("v", 9000) + "\r\n", "X-A: " + strings.Repeat("v", 20000) + "\r\n", "X-A: " + strings.Repeat("v", 41000) + "\r\n", "X-A: " + strings.Repeat("v", 100_000) + "\r\n",
		repeat("X-%d: v\r\n", 50), repeat("X-%d: v\r\n", 101), repeat("X-%d: v\r\n", 250), repeat("X-%d: v\r\n", 900), repeat("X-A: v%d\r\n", 200), "X-A: v\r\nX-A: v\r\nX-A: v\r\n",
		"X-A: \xf0\x9f\x98\x80\r\n", "X-A: \xc3\x28\r\n", "X-A: \xe2\x80\xa8\r\n", "X-A:\x0bv\r\n", "X-A: v\x0c\r\n", "X-A: \xc2\xa0v\xc2\xa0\r\n", "X-A:v:w\r\n",
		"Content_Length: 3\r\n", "Transfer_Encoding: chunked\r\n", "Content-Length : 0\r\n", "Transfer-Encoding : chunked\r\n", "Host : i\r\n",
	}
	connections = []string{
		"", "", "", "", "Connection: keep-alive\r\n", "Connection: Keep-Alive\r\nKeep-Alive: timeout=5\r\n", "Connection: close\r\n",
		"Connection: close, x-hop\r\nX-Hop: 1\r\n", "Connection: X-Hop\r\nX-Hop: 1\r\n", "TE: trailers\r\nConnection: TE\r\n", "Trailer: X-T\r\n",
	}
	sloppyConnections = []string{
		"Connection: CLOSE\r\n", "Connection:\r\n", "Connection: ,\r\n", "Connection: , close ,,\r\n", "Connection: keep-alive, close\r\n", "Connection: close\r\nConnection: keep-alive\r\n", "Connection: Host\r\n",
		"Connection: Content-Length\r\n", "Connection: close x\r\n", "Connection: \"close\"\r\n", "Connection: a b\r\n", "Connection: \xff\r\n", "Proxy-Connection: keep-alive\r\n", "Proxy-Connection: close\r\n", "Keep-Alive: 300\r\n", "TE: gzip\r\n", "TE: trailers\r\n",
		"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n", "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n",
		"Upgrade: websocket\r\n", "Connection: upgrade\r\n", "Connection: Upgrade\r\nUpgrade: TLS/1.0, foo/2\r\n", "Expect: 100-continue\r\n", "Expect: 100-Continue\r\n", "Expect: foo\r\n", "Expect:\r\n", "Expect: 100-continue, foo\r\n",
		"Max-Forwards: 0\r\n", "Via: 1.1 x\r\n", "X-Forwarded-For: 1.2.3.4\r\n", "Date: x\r\n", "Trailer: Content-Length\r\n",
	}
	bodies = []string{"", "", "", "length 5", "length 5", "length 0", "chunked", "chunked", "chunked"}
	// Content-Length for a body of 5 bytes.
	sloppyLengths = []string{
		"+5", "-5", "0x5", "5,5", "5, 5", "5 5", "05", "0000000000000000000000005", "5;", "5.0", "5e0", "", "99999999999999999999", "9223372036854775808", "18446744073709551621", "five", "\xd9\xa5", "5\x00", "5\x0b", "\"5\"", "5,", ",5", "5, 6", " 5 ", "\t5", "1_0",
	}
	// Framing lines for a body of 5 bytes.
	sloppyFramings = []string{
		"Content-Length: 5\r\nContent-Length: 5\r\n", "Content-Length: 5\r\nContent-Length: 6\r\n", "Content-Length: 5\r\ncontent-length: 5\r\n", "Content-Length: 5\r\nContent-Length: 05\r\n", "Content-Length: 0\r\nContent-Length: 5\r\n",
		"Content-Length:5\r\n", "Content-Length:5 \r\n", "CONTENT-LENGTH: 5\r\n", "Content-Length: 5\n", "Content-Length:\r\n 5\r\n", "Content-Length: 5\r\n \r\n", "Content-Length\r\n", "Content-Length: 7\r\n", "Content-Length: 3\r\n",
		"Transfer-Encoding: identity\r\nContent-Length: 5\r\n", "Transfer-Encoding: \r\nContent-Length: 5\r\n", "Transfer-Encoding:\r\n", "Transfer-Encoding: identity\r\n",
	}
	// Framing lines for a chunked body.
	sloppyCodings = []string{
		"Transfer-Encoding: Chunked\r\n", "transfer-encoding: CHUNKED\r\n", "Transfer-Encoding:chunked\r\n", "Transfer-Encoding: \t chunked \t\r\n", "Transfer-Encoding: chunked\n", "Transfer-Encoding:\r\n chunked\r\n", "Transfer-Encoding: chunked\r\n \r\n",
		"Transfer-Encoding: gzip, chunked\r\n", "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: chunked, chunked\r\n", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: chunked, identity\r\n", "Transfer-Encoding: identity, chunked\r\n",
		"Transfer-Encoding: chunked, gzip\r\n", "Transfer-Encoding: xchunked\r\n", "Transfer-Encoding: chunkedx\r\n", "Transfer-Encoding: chunked;q=1\r\n", "Transfer-Encoding: \"chunked\"\r\n", "Transfer-Encoding: chunked,\r\n", "Transfer-Encoding: ,chunked\r\n", "Transfer-Encoding: chunked \x0b\r\n",
		"Transfer-Encoding: \x0bchunked\r\n", "Transfer-Encoding: chunked\x00\r\n", "Transfer-Encoding: c\xc5\xbfunked\r\n", "Transfer-Encoding: chun\xe2\x84\xaaed\r\n", "Transfer-Encoding\r\n", "Transfer-Encoding: gzip\r\n", "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
		"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n", "Content-Length: 15\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: chunked\r\nContent-Length: x\r\n", "Content-Length: +5\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding : chunked\r\n", "TE: chunked\r\n",
		"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: chunk\r\n", "X: x\rTransfer-Encoding: chunked\r\n", "X: x\nTransfer-Encoding: chunked\r\n",
	}
	chunks = []string{
		"5\r\nhello\r\n0\r\n\r\n", "2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", "5;a=b\r\nhello\r\n0\r\n\r\n", "005\r\nhello\r\n000\r\n\r\n", "a\r\n0123456789\r\n0\r\n\r\n", "A\r\n0123456789\r\n0\r\n\r\n", "0\r\n\r\n",
		"5\r\nhello\r\n0\r\nX-T: t\r\n\r\n", "5\r\nhello\r\n0;last\r\nX-T: t\r\nX-U: u\r\n\r\n", "5;a=\"b c\"\r\nhello\r\n0\r\n\r\n", "5;a\r\nhello\r\n0\r\n\r\n", "5;a=b;c=d\r\nhello\r\n0\r\n\r\n",
	}
	sloppyChunks = []string{
		"5 \r\nhello\r\n0\r\n\r\n", "5\t\r\nhello\r\n0\r\n\r\n", "5  ;a=b\r\nhello\r\n0\r\n\r\n", "5; a = b\r\nhello\r\n0\r\n\r\n", " 5\r\nhello\r\n0\r\n\r\n", "\t5\r\nhello\r\n0\r\n\r\n", "0x5\r\nhello\r\n0\r\n\r\n", "+5\r\nhello\r\n0\r\n\r\n", "-5\r\nhello\r\n0\r\n\r\n",
		"5\nhello\r\n0\r\n\r\n", "5\r\nhello\n0\r\n\r\n", "5\r\nhello\r\n0\n\r\n", "5\r\nhello\r\n0\r\n\n", "5\nhello\n0\n\n", "5\rhello\r\n0\r\n\r\n", "5\r\nhello\r0\r\n\r\n", "5\r\r\nhello\r\n0\r\n\r\n", "5\r\nhello0\r\n\r\n", "5\r\nhelloxx0\r\n\r\n", "5\r\nhello!\r\n0\r\n\r\n",
		"5\r\nhello\r\n\r\n0\r\n\r\n", "5\r\nhello\r\n", "5\r\nhello\r\n0\r\n", "0\r\n", "\r\nhello\r\n0\r\n\r\n", "g\r\nhello\r\n0\r\n\r\n", "5g\r\nhello\r\n0\r\n\r\n", "5_\r\nhello\r\n0\r\n\r\n", "5,\r\nhello\r\n0\r\n\r\n", "FFFFFFFFFFFFFFFF\r\nhello\r\n0\r\n\r\n", "10000000000000005\r\nhello\r\n0\r\n\r\n",
		"fffffffffffffffffff\r\nhello\r\n0\r\n\r\n", strings.Repeat("0", 30) + "5\r\nhello\r\n0\r\n\r\n", strings.Repeat("0", 300) + "5\r\nhello\r\n0\r\n\r\n", "5;" + strings.Repeat("e", 200) + "\r\nhello\r\n0\r\n\r\n", "5;" + strings.Repeat("e", 5000) + "\r\nhello\r\n0\r\n\r\n",
		"5;\r\nhello\r\n0\r\n\r\n", "5;a\rb\r\nhello\r\n0\r\n\r\n", "5;a\nb\r\nhello\r\n0\r\n\r\n", "5;a=\"\r\n\"\r\nhello\r\n0\r\n\r\n", "5;\x00\r\nhello\r\n0\r\n\r\n", "5;\x7f\r\nhello\r\n0\r\n\r\n", "5;\xc3\xa9\r\nhello\r\n0\r\n\r\n", "5\x00\r\nhello\r\n0\r\n\r\n",
		"5\r\nhello\r\n00\r\n\r\n", "5\r\nhello\r\n0 \r\n\r\n", "5\r\nhello\r\n0\r\nX-T : t\r\n\r\n", "5\r\nhello\r\n0\r\nX-T: t\n\r\n", "5\r\nhello\r\n0\r\nX-T: t\n\n", "5\r\nhello\r\n0\r\n X-T: t\r\n\r\n", "5\r\nhello\r\n0\r\nX-T: a\r\n b\r\n\r\n", "5\r\nhello\r\n0\r\nnocolon\r\n\r\n", "5\r\nhello\r\n0\r\nX-T: a\x00b\r\n\r\n", "5\r\nhello\r\n0\r\nX-T: a\rb\r\n\r\n",
		"5\r\nhello\r\n0\r\nContent-Length: 9\r\n\r\n", "5\r\nhello\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n", "5\r\nhello\r\n0\r\nHost: t\r\n\r\n", "5\r\nhello\r\n0\r\nConnection: close\r\n\r\n", "5\r\nhello\r\n0\r\nX-T: " + strings.Repeat("t", 9000) + "\r\n\r\n", "5\r\nhello\r\n0\r\n" + repeat("X-%d: t\r\n", 90) + "\r\n",
		"1;\r\nh\r\n4\r\nello\r\n0\r\n\r\n", strings.Repeat("1\r\nx\r\n", 300) + "0\r\n\r\n", "2\r\n\r\n\r\n0\r\n\r\n", "5\r\n0\r\n\r\n\r\n0\r\n\r\n",
	}
	befores       = []string{""}
	sloppyBefores = []string{"\r\n", "\r\n\r\n", "\n", "\r", " ", "\t", " \r\n", "\r\n\r\n\r\n\r\n\r\n\r\n", "\x00", "\r\n ", "\n\n", "\xef\xbb\xbf", "x\r\n"}
	afters        = []string{""}
	sloppyAfters  = []string{"\r\n", "\n", "\r\n\r\n", "\r", " ", "\r\n\r\n\r\n", "x", "\x00", "\n\n", " \r\n"}
	ends          = []string{"\r\n"}
	sloppyEnds    = []string{
		"\r\r\n", "\r", " \r\n\r\n", "\t\r\n\r\n", "\n\r\n", "\r\n\r", "\x00\r\n\r\n", "\x0b\r\n\r\n", "all lines end with LF", "the first line ends with LF", "the first line ends with CRCRLF", "all lines end with CR", "the headers end with LF",
	}
)

func repeat(format string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// requestParts contains the sloppy values for each part of a request.
var requestParts = map[string][]string{
	"method": sloppyMethods, "target": sloppyTargets, "version": sloppyVersions, "host": sloppyHosts, "field": sloppyFields, "connection": sloppyConnections,
	"length": sloppyLengths, "framing": sloppyFramings, "coding": sloppyCodings, "chunks": sloppyChunks, "before": sloppyBefores, "after": sloppyAfters, "end": sloppyEnds,
	"pipelined": {"", "\r\n", "\n"},
}

// newRequest generates the request with this number.
func newRequest(number uint64) message {
	s := newSource(number, requestParts)
	line := s.draw("method", methods, sloppyMethods) + " " + s.draw("target", targets, sloppyTargets)
	if version := s.draw("version", versions, sloppyVersions); version != "" {
		line += " " + version
	}
	header := s.drawHost() + s.draw("field", fields, sloppyFields) + s.draw("connection", connections, sloppyConnections)
	framing, body := s.drawBody()
	header += framing
	for s.chance(2) {
		header += s.draw("another field", fields, nil)
	}
	input := s.draw("before", befores, sloppyBefores) + s.drawHead(line, header) + body + s.draw("after", afters, sloppyAfters)
	if s.sloppy["pipelined"] {
		input += "POST /second HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc" + s.draw("pipelined", nil, requestParts["pipelined"])
	}
	return message{name: s.name(number), input: []byte(input + sentinel)}
}

// drawHead returns the headers of a message with this first line and these header lines.
func (s *source) drawHead(line, header string) string {
	switch end := s.draw("end", ends, sloppyEnds); end {
	case "all lines end with LF":
		return line + "\n" + strings.ReplaceAll(header, "\r\n", "\n") + "\n"
	case "the first line ends with LF":
		return line + "\n" + header + "\r\n"
	case "the first line ends with CRCRLF":
		return line + "\r\r\n" + header + "\r\n"
	case "all lines end with CR":
		return line + "\r" + strings.ReplaceAll(header, "\r\n", "\r") + "\r"
	case "the headers end with LF":
		return line + "\r\n" + header + "\n"
	default:
		return line + "\r\n" + header + end
	}
}

func (s *source) drawHost() string {
	switch host := s.draw("host", hosts, sloppyHosts); host {
	case "none":
		return ""
	case "twice same":
		return "Host: h\r\nHost: h\r\n"
	case "twice different":
		return "Host: h\r\nHost: i\r\n"
	case "last":
		return "X-First: 1\r\nHost: h\r\n"
	case "lower":
		return "host:h\r\n"
	case "upper":
		return "HOST: h\r\n"
	default:
		return "Host: " + host + "\r\n"
	}
}

// drawBody returns framing lines and the body.
func (s *source) drawBody() (framing, body string) {
	switch {
	case s.sloppy["length"]:
		return "Content-Length: " + s.draw("length", nil, sloppyLengths) + "\r\n", "hello"
	case s.sloppy["framing"]:
		return s.draw("framing", nil, sloppyFramings), "hello"
	case s.sloppy["coding"]:
		return s.draw("coding", nil, sloppyCodings), s.draw("chunks", chunks, sloppyChunks)
	case s.sloppy["chunks"]:
		return "Transfer-Encoding: chunked\r\n", s.draw("chunks", nil, sloppyChunks)
	}
	switch s.draw("body", bodies, nil) {
	case "length 5":
		return "Content-Length: 5\r\n", "hello"
	case "length 0":
		return "Content-Length: 0\r\n", ""
	case "chunked":
		return "Transfer-Encoding: chunked\r\n", s.draw("chunks", chunks, nil)
	}
	return "", ""
}
