package messages

import (
	"bytes"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// finding is a case in which a proxy does not do what it should.
type finding struct {
	check string
	text  string
	m     message
}

// findings collects findings.
type findings struct {
	test string

	mu   sync.Mutex
	list []finding
	used map[string]int // how often each exception applied
}

func (fs *findings) add(f finding) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, e := range exceptions {
		if e.in(fs.test) && strings.Contains(e.check, f.check) && e.applies(f) {
			fs.used[e.name]++
			return
		}
	}
	fs.list = append(fs.list, f)
}

// fail fails the test if there are findings, and reports them.
func (fs *findings) fail(t *testing.T) {
	t.Helper()
	slices.SortFunc(fs.list, func(a, b finding) int {
		return strings.Compare(a.check+a.text, b.check+b.text)
	})
	counts := make(map[string]int)
	for _, f := range fs.list {
		if counts[f.check]++; counts[f.check] <= shown {
			t.Errorf("%s: %s\n  %s\n  %.600q", f.check, f.text, f.m.name, bytes.TrimSuffix(f.m.input, []byte(sentinel)))
		}
	}
	t.Logf("findings: %v, exceptions: %v", counts, fs.used)
	for _, e := range exceptions {
		if full && e.in(fs.test) && fs.used[e.name] == 0 {
			t.Errorf("the exception %q was not needed", e.name)
		}
	}
}

// shown is how many of a check's findings are reported with their messages.
const shown = 20

// checker compares what the proxies forward.
type checker struct {
	findings

	readers map[string]reader
	seen    sync.Map // messages that were already read again
}

func newChecker(t testing.TB) *checker {
	t.Helper()
	return &checker{
		findings: findings{test: t.Name(), used: make(map[string]int)},
		readers:  map[string]reader{"net/http": netHTTP{}, "h11": newH11(t)},
	}
}

// samePieces checks that it makes no difference whether a message arrives in pieces.
func (c *checker) samePieces(m message, whole, inPieces string) {
	if whole != inPieces {
		c.add(finding{"in pieces", fmt.Sprintf("%.1000s\n  instead of %.1000s", inPieces, whole), m})
	}
}

// answers checks that a request was either forwarded or immediately rejected.
func (c *checker) answers(m message, o forwarded) {
	switch {
	case o.silent:
		c.add(finding{"silent", fmt.Sprintf("after %d requests and statuses %v", len(o.raw), o.statuses), m})
	case o.err != nil:
		c.add(finding{"malformed", o.err.Error(), m})
	case len(o.raw) == 0 && !slices.ContainsFunc(o.statuses, func(status int) bool { return status/100 == 4 || status == 501 || status == 505 }):
		c.add(finding{"not answered", fmt.Sprintf("statuses %v", o.statuses), m})
	}
}

// requests checks that whatever nginx and haproxy forward with the same meaning is forwarded. It
// returns the number of these requests.
func (c *checker) requests(m message, n, h, o forwarded) (both int) {
	for i := range min(len(n.requests), len(h.requests)) {
		a, b := n.requests[i], h.requests[i]
		if !a.sameCore(b) {
			break
		}
		both++
		if i >= len(o.requests) {
			if !o.silent {
				c.add(finding{"not forwarded", fmt.Sprintf("%v: request %d is %s", o.statuses, i, a.core()), m})
			}
			break
		}
		request := o.requests[i]
		if d := request.difference(ignoreOptions(m.input, a), ignoreOptions(m.input, b)); d != "" {
			c.add(finding{"different", d, m})
		}
	}
	return both
}

var connectionLine = regexp.MustCompile(`(?i)connection[ \t]*:([^\r\n]*)`)

// ignoreOptions returns m without the fields that input's Connection field names, because they
// belong to the connection. nginx and haproxy forward them.
func ignoreOptions(input []byte, m meaning) meaning {
	m.Fields = maps.Clone(m.Fields)
	for _, line := range connectionLine.FindAllSubmatch(input, -1) {
		for option := range strings.SplitSeq(string(line[1]), ",") {
			delete(m.Fields, strings.ToLower(strings.Trim(option, " \t")))
		}
	}
	return m
}

// sameRequest checks that each parser reads raw, the bytes of a forwarded request, as it was sent.
func (c *checker) sameRequest(t testing.TB, l lane, m message, raw []byte, sent meaning) {
	t.Helper()
	if _, ok := c.seen.LoadOrStore(string(raw), true); ok {
		return
	}
	for name, r := range c.readers {
		got, err := r.request(raw)
		c.sameMeaning(message{name: m.name, input: raw}, name, sent, got, err)
	}
	for _, name := range []string{nginx, haproxy} {
		f := sendRequest(t, l[name], message{input: append(slices.Clone(raw), sentinel...)})
		err := f.err
		switch {
		case err != nil:
		case len(f.requests) == 0:
			err = fmt.Errorf("statuses %v", f.statuses)
		case len(f.requests) > 2 || len(f.requests) == 2 && f.requests[1].Target != "/sentinel":
			c.add(finding{"read differently", fmt.Sprintf("%s reads %d requests", name, len(f.requests)), message{name: m.name, input: raw}})
			continue
		}
		got := meaning{}
		if err == nil {
			got = f.requests[0]
		}
		c.sameMeaning(message{name: m.name, input: raw}, name, sent, got, err)
	}
}

// responses checks that a response that nginx and haproxy forward with the same meaning is
// forwarded, and that all others are answered immediately. It returns 1 for the former.
func (c *checker) responses(m message, n, h, o received) (both int) {
	if o.silent {
		c.add(finding{"silent", fmt.Sprintf("after %.100q", o.output), m})
		return 0
	}
	if o.err != nil {
		c.add(finding{"malformed", fmt.Sprintf("%v: %.300q", o.err, o.output), m})
		return 0
	}
	if n.rejects() || h.rejects() || n.Status != h.Status {
		return 0
	}
	if !n.Whole && !h.Whole { // if a body ends early, each forwards a different part
		if o.Whole && !o.rejects() {
			c.add(finding{"completed", o.core() + ", while nginx and haproxy report an early end", m})
		}
		return 0
	}
	if !n.sameCore(h.meaning) {
		return 0
	}
	if o.rejects() {
		c.add(finding{"not forwarded", n.core(), m})
		return 1
	}
	if d := o.difference(ignoreOptions(m.input, n.meaning), ignoreOptions(m.input, h.meaning)); d != "" {
		c.add(finding{"different", d, m})
	}
	return 1
}

// sameResponse checks that each parser reads the bytes of a forwarded response as they were sent.
func (c *checker) sameResponse(t testing.TB, l lane, m message, o received) {
	t.Helper()
	key := m.method + string(o.output)
	if _, ok := c.seen.LoadOrStore(key, true); ok {
		return
	}
	again := message{name: m.name, input: o.output, method: m.method, end: closes}
	for name, r := range c.readers {
		got, err := r.response(o.output, m.method)
		c.sameMeaning(again, name, o.meaning, got, err)
	}
	for _, name := range []string{nginx, haproxy} {
		r := sendResponse(t, l[name], again)
		err := r.err
		if err == nil && r.rejects() {
			err = fmt.Errorf("status %d", r.Status)
		}
		c.sameMeaning(again, name, o.meaning, r.meaning, err)
	}
}

// sameMeaning checks that a parser reads a message as it was sent. It may ignore the reason phrase
// and trailers.
func (c *checker) sameMeaning(m message, name string, sent, got meaning, err error) {
	if err != nil {
		c.add(finding{"not read", fmt.Sprintf("%s: %v", name, err), m})
		return
	}
	if len(got.Trailers) == 0 {
		got.Trailers = sent.Trailers
	}
	sent, got = withoutLength(sent), withoutLength(got)
	if name == nginx {
		// By default, nginx drops fields with other characters in their names.
		for field := range sent.Fields {
			if strings.Trim(field, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" && got.Fields[field] == nil {
				delete(sent.Fields, field)
			}
		}
	}
	if !got.sameCore(sent) || !sameFields(got.Fields, sent.Fields) || !sameFields(got.Trailers, sent.Trailers) {
		c.add(finding{"read differently", fmt.Sprintf("%s reads %s with %.500q %q instead of %s with %.500q %q",
			name, got.core(), got.Fields, got.Trailers, sent.core(), sent.Fields, sent.Trailers), m})
	}
}

// withoutLength returns m, a response to HEAD, without Content-Length.
func withoutLength(m meaning) meaning {
	m.Fields = maps.Clone(m.Fields)
	delete(m.Fields, "content-length")
	return m
}

func sameFields(a, b map[string][]string) bool {
	return maps.EqualFunc(a, b, func(a, b []string) bool { return slices.Equal(a, b) })
}
