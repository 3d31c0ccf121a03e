package httplayer

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// followed is what a scan of b made of it, byte by byte.
func followed(b []byte) (ends []int, s *guardScan, at int) {
	s = &guardScan{step: (*guardScan).preface}
	start := reflect.ValueOf(guardStep((*guardScan).start)).Pointer()
	for at < len(b) {
		n := s.scan(b[at : at+1])
		if s.bad != 0 {
			return ends, s, at + n
		}
		at++
		if reflect.ValueOf(s.step).Pointer() == start && !s.has(afterBlank) {
			ends = append(ends, at)
		}
	}
	return ends, s, at
}

// scanned scans b in one piece, but for where HTTP may end.
func scanned(s *guardScan, b []byte) (n int) {
	for n < len(b) && s.bad == 0 {
		n += s.scan(b[n:])
	}
	return n
}

// checkGuard compares the guard with a strict parser and with net/http.
func checkGuard(t require.TestingT, b []byte) {
	ends, s, at := followed(b)
	if s.kind == guardH2 {
		require.True(t, bytes.HasPrefix(b, []byte(h2Preface)))
		return
	}
	found, wrong := newStrict().parse(b)
	var want []int
	for _, m := range found {
		want = append(want, m.End)
	}
	if s.kind != guardUndecided {
		require.Equal(t, want, ends, "%q: %v at %d", b, s.bad, at)
		require.False(t, wrong && s.bad == 0, "let through: %q", b)
	}
	for i, end := range readEnds(b) {
		if i < len(ends) {
			require.Equal(t, ends[i], end, "net/http reads %q in another way", b)
		}
	}
	whole := &guardScan{step: (*guardScan).preface}
	require.Equal(t, at, scanned(whole, b), "in one piece")
	require.Equal(t, s.bad, whole.bad)
}

// readEnds is where net/http takes requests to end.
func readEnds(b []byte) (ends []int) {
	left := bytes.NewReader(b)
	in := bufio.NewReader(left)
	post := false
	for {
		if post {
			next, _ := in.Peek(4)
			_, _ = in.Discard(len(next) - len(bytes.TrimLeft(next, "\r\n")))
		}
		req, err := http.ReadRequest(in)
		if err != nil {
			return ends
		}
		if _, err = io.Copy(io.Discard, req.Body); err != nil {
			return ends
		}
		post = req.Method == http.MethodPost
		ends = append(ends, len(b)-left.Len()-in.Buffered())
	}
}

func FuzzGuard(f *testing.F) {
	for _, a := range corpus(f) {
		f.Add(append(a.bytes, sentinel...))
	}
	f.Add([]byte(h2Preface + "\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) { checkGuard(t, b) })
}

// TestGuardAgreesWithAStrictParser makes requests out of pieces that are right
// and pieces that are nearly so.
func TestGuardAgreesWithAStrictParser(t *testing.T) {
	pick := func(t *rapid.T, what string, right string, wrong ...string) string {
		if rapid.IntRange(0, 24).Draw(t, what+" is wrong") > 0 {
			return right
		}
		return rapid.SampledFrom(wrong).Draw(t, what)
	}
	fields := []string{
		"Content-Length: 3", "Transfer-Encoding: chunked", "Content-Length: 3", "Transfer-Encoding: chunked", "X: y", "Connection: close",
		"Expect: 100-continue", "Host: a", "X:", "Content-Length: 03", "Content-length:3", "TRANSFER-ENCODING:CHUNKED",
		"Content-Length: +3", "Content-Length: 3,3", "Transfer-Encoding: chunked ", "X : y", "X: a\x00b", " X: y", "Content_Length: 3", "X: a\rb", "X",
	}
	rapid.Check(t, func(t *rapid.T) {
		var b []byte
		for range rapid.IntRange(1, 4).Draw(t, "requests") {
			eol := func() string { return pick(t, "line end", "\r\n", "\n", "\r", "\r\r\n", "") }
			b = append(b, pick(t, "before", "", "\r\n", "\n", " ")...)
			b = append(b, rapid.SampledFrom([]string{"GET", "POST", "CONNECT"}).Draw(t, "method")+pick(t, "space", " ", "  ", "\t")...)
			b = append(b, rapid.SampledFrom([]string{"/", "*", "http://a", "http://A:80/x?y", "http://b/", "https://a:80?"}).Draw(t, "target")...)
			b = append(b, pick(t, "version", " HTTP/1.1", " HTTP/1.0", " HTTP/1.2", " HTTP/2.0", "")+eol()+pick(t, "host", "Host: a", "Host: a:80 ", "Host: b", "Host: a,b", "X: y")+eol()...)
			for range rapid.IntRange(0, 2).Draw(t, "fields") {
				b = append(b, rapid.SampledFrom(fields).Draw(t, "field")+eol()...)
			}
			b = append(b, eol()...)
			if rapid.Bool().Draw(t, "chunks") {
				for range rapid.IntRange(0, 2).Draw(t, "chunks") {
					b = append(b, pick(t, "size", "3", "003", "0x3", "3 ", "-3", "")+pick(t, "extension", "", ";a", ";a=b", ";a=\"b;\\\"\"", ";", ";a b", ";a=", ";a=\"")+eol()...)
					b = append(b, pick(t, "data", "abc", "ab", "abcd", "\r\n\r")+eol()...)
				}
				b = append(b, "0"+eol()+pick(t, "trailer", "", "X: y\r\n", "Host: a\r\n", " x\r\n")+eol()...)
			} else if rapid.Bool().Draw(t, "body") {
				b = append(b, "a\r\n"...)
			}
		}
		checkGuard(t, b)
	})
}

// TestGuardReadsInPieces shows that how the bytes come does not matter.
func TestGuardReadsInPieces(t *testing.T) {
	all := corpus(t)
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SampledFrom(all).Draw(t, "attack")
		_, whole, at := followed(a.bytes)
		s := &guardScan{step: (*guardScan).preface}
		got := 0
		for rest := a.bytes; len(rest) > 0 && s.bad == 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "piece")
			got += scanned(s, rest[:n])
			rest = rest[n:]
		}
		assert.Equal(t, at, got)
		assert.Equal(t, whole.bad, s.bad)
	})
}
