package messages

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// forwarded is what a proxy did with a client's bytes.
type forwarded struct {
	requests []meaning // what the recorder received, up to the first message that cannot be parsed
	raw      [][]byte
	statuses []int // those that the client received
	output   []byte
	silent   bool
	err      error // the recorder received bytes that are not a request
}

// sendRequest sends a request through l.
func sendRequest(t testing.TB, l link, m message) (f forwarded) {
	t.Helper()
	l.back.begin(okScript)
	f.output, f.silent = exchange(t, l.addr, m.input, m.piece)
	f.raw = l.back.end()
	for _, raw := range f.raw {
		m, err := parseRequest(raw)
		if err != nil {
			f.err = fmt.Errorf("%w: %.300q", err, raw)
			break
		}
		f.requests = append(f.requests, m)
	}
	for _, line := range statusLine.FindAllSubmatch(f.output, -1) {
		status, _ := strconv.Atoi(string(line[1]))
		f.statuses = append(f.statuses, status)
	}
	return f
}

var statusLine = regexp.MustCompile(`HTTP/1\.[01] (\d\d\d)`)

// received is what the client received as the response.
type received struct {
	meaning

	informs []meaning
	output  []byte
	silent  bool
	err     error // the client received bytes that are not a response
}

// rejects reports whether the proxy itself responded. No script uses that status.
func (r received) rejects() bool {
	return r.err != nil || r.Status < 100 || r.Status == 502 || r.Status == 504
}

// sendResponse sends a response through l.
func sendResponse(t testing.TB, l link, m message) (r received) {
	t.Helper()
	request := m.method + " / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
	l.back.begin(script{m.input, m.piece, m.end})
	r.output, r.silent = exchange(t, l.addr, []byte(request), 0)
	l.back.end()
	r.meaning, r.informs, r.err = parseResponse(r.output, m.method)
	return r
}

// inPieces returns m split into small pieces, unless it is long.
func (m message) inPieces(i uint64) (message, bool) {
	m.piece = int(i%7) + 1
	return m, len(m.input) < 4096
}

// summary describes everything that must not depend on how the bytes arrive. Whether the client
// receives 100 Continue does depend on it: a server may leave it out if some of the body is there
// already (RFC 9110, section 10.1.1).
func (f forwarded) summary() string {
	final := slices.DeleteFunc(slices.Clone(f.statuses), func(status int) bool { return status == http.StatusContinue })
	text := fmt.Sprint(final, f.err)
	for _, m := range f.requests {
		m.Names = nil
		text += fmt.Sprintf(" %+v", m)
	}
	return text
}

func (r received) summary() string {
	if r.rejects() || !r.Whole {
		return "rejected" // the headers may have been forwarded before, or not
	}
	text := ""
	for _, m := range append(r.informs, r.meaning) {
		m.Names = nil
		text += fmt.Sprintf(" %+v", m)
	}
	return text
}

// each calls f for the numbers below n, on all lanes concurrently.
func each(lanes []lane, n int, f func(l lane, i uint64)) {
	var wg sync.WaitGroup
	var next atomic.Uint64
	for _, l := range lanes {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < uint64(n); i = next.Add(1) - 1 {
				f(l, i)
			}
		})
	}
	wg.Wait()
}

// needPeers skips the test if nginx, haproxy or h11 is missing.
func needPeers(t *testing.T) {
	t.Helper()
	for _, name := range []string{nginx, haproxy} {
		if !installed(name) {
			t.Skipf("needs %s: bash .ci/messages.sh", name)
		}
	}
	if pythonWithH11() == "" {
		t.Skip("needs h11: bash .ci/messages.sh")
	}
}

// cases returns the number of generated requests, and of generated responses.
func cases() int {
	if full {
		return 2500
	}
	return 200
}

// step is the difference between two messages' numbers, so that the short form includes some of
// each kind.
func step() uint64 { return uint64(2500 / cases()) }

// lanesInTest is how many cases run concurrently. They mostly wait.
const lanesInTest = 24

func TestRequests(t *testing.T) {
	needPeers(t)
	lanes, c := newLanes(t, lanesInTest), newChecker(t)
	var both, counted atomic.Int64
	each(lanes, cases(), func(l lane, i uint64) {
		m := newRequest(i * step())
		n, h, o := sendRequest(t, l[nginx], m), sendRequest(t, l[haproxy], m), sendRequest(t, l[ours], m)
		c.answers(m, o)
		if inPieces, ok := m.inPieces(i); ok {
			c.samePieces(m, o.summary(), sendRequest(t, l[ours], inPieces).summary())
		}
		both.Add(int64(c.requests(m, n, h, o)))
		for j, raw := range o.raw {
			if j < len(o.requests) && o.requests[j].Authority != "sentinel" {
				counted.Add(1)
				c.sameRequest(t, l, m, raw, o.requests[j])
			}
		}
	})
	t.Logf("%d inputs; nginx and haproxy agree on %d requests, of which each is forwarded or an exception; %d forwarded requests were read again",
		cases(), both.Load(), counted.Load())
	require.Positive(t, both.Load())
	require.Positive(t, counted.Load())
	c.fail(t)
}

func TestResponses(t *testing.T) {
	needPeers(t)
	lanes, c := newLanes(t, lanesInTest), newChecker(t)
	var both, counted atomic.Int64
	each(lanes, cases(), func(l lane, i uint64) {
		m := newResponse(i * step())
		n, h, o := sendResponse(t, l[nginx], m), sendResponse(t, l[haproxy], m), sendResponse(t, l[ours], m)
		if inPieces, ok := m.inPieces(i); ok {
			c.samePieces(m, o.summary(), sendResponse(t, l[ours], inPieces).summary())
		}
		both.Add(int64(c.responses(m, n, h, o)))
		if !o.rejects() && o.Whole {
			counted.Add(1)
			c.sameResponse(t, l, m, o)
		}
	})
	t.Logf("%d inputs; nginx and haproxy agree on %d responses, of which each is forwarded or an exception; %d forwarded responses were read again",
		cases(), both.Load(), counted.Load())
	require.Positive(t, both.Load())
	require.Positive(t, counted.Load())
	c.fail(t)
}
