package reliability

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"       //nolint:depguard // its Framer, to attack with
	"golang.org/x/net/http2/hpack" //nolint:depguard // for the Framer
)

// The client sends a header block that never ends (CVE-2023-45288).
func TestContinuationFlood(t *testing.T) {
	tn := newTestProxy(t)
	before, attackers := heap(), size(4, 64)
	var most int64
	// An unindexed field of 16 bytes, repeated.
	part := []byte(strings.Repeat("\x00\x06x-fill\x07flooded", frameSize/16))
	tn.under(t, func() {
		for range attackers {
			c := dialRaw(t, tn.addr)
			err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: part, EndStream: true})
			for err == nil && c.written() < 64*mib {
				err = c.WriteContinuation(1, false, part)
			}
			most = max(most, c.written())
			c.close()
		}
	})
	growth := grown(t, before)
	t.Logf("%d attackers, cut off after at most %.1f MiB each; heap: %+.1f MiB", attackers, float64(most)/mib, growth)
	assert.Less(t, most, int64(16*mib), "what the sockets hold included")
	assert.Less(t, growth, 4.0)
}

// A header is small on the wire and large when it is decoded: it refers to a single field in the
// table thousands of times.
func TestHPACKBomb(t *testing.T) {
	tn := newTestProxy(t)
	bombs := size(20, 1000)
	fields := make([]hpack.HeaderField, 14_000) // all but the first take a byte each
	field := hpack.HeaderField{Name: "x-bomb", Value: strings.Repeat("b", 4000)}
	for i := range fields {
		fields[i] = field
	}
	bomb := func() (kept float64) {
		c := dialRaw(t, tn.addr)
		defer c.close()
		before := heap()
		require.NoError(t, c.request(1, "GET", "/bomb", true, fields...))
		require.Eventually(t, func() bool { return c.answer(1) != "" || hungUp(c) }, patience, time.Millisecond)
		if answer := c.answer(1); answer != "" {
			require.Equal(t, "431", answer)
		}
		return grown(t, before)
	}
	bomb() // for allocations that occur only once
	before := heap()
	var most float64
	for range bombs {
		most = max(most, bomb())
	}
	growth := grown(t, before)
	t.Logf("%d bombs of 18 kB that are 56 MB: refused; heap: at most %+.1f MiB each, %+.1f MiB afterwards", bombs, most, growth)
	assert.Less(t, most, 4.0)
	assert.Less(t, growth, 4.0)
	assert.Zero(t, tn.requests.Load(), "none of them upstream")
}

// Headers that are too large are rejected with 431, in HTTP/2 too if the sum of all fields is too
// large. A single HTTP/2 field that is too large, or a block that continues after that, closes the
// connection.
func TestHeadersTooLarge(t *testing.T) {
	tn := newTestProxy(t)
	large := func(n int) []hpack.HeaderField {
		return []hpack.HeaderField{{Name: "x-large", Value: strings.Repeat("x", n)}}
	}
	many := make([]hpack.HeaderField, 16384)
	for i := range many {
		many[i] = hpack.HeaderField{Name: fmt.Sprintf("x%d", i), Value: "12345"}
	}
	for name, tt := range map[string]struct {
		fields []hpack.HeaderField
		h2     string
	}{
		"200 KiB":      {large(200 << 10), "200"},
		"300 of 1 KiB": {slices.Repeat(large(1<<10), 300), "431 or closed"},
		"512 KiB":      {large(512 << 10), "431 or closed"},
		"16384 small":  {many, "431 or closed"},
	} {
		t.Run(name, func(t *testing.T) {
			before := tn.requests.Load()
			h1, h2 := overH1(t, tn, tt.fields), overH2(t, tn, tt.fields)
			t.Logf("%s: %s over HTTP/1.1, %s over HTTP/2", name, h1, h2)
			assert.Contains(t, tt.h2, h2)
			if tt.h2 == "200" {
				assert.Equal(t, "200", h1)
				return
			}
			assert.Equal(t, "431", h1)
			assert.Equal(t, before, tn.requests.Load(), "nothing of it upstream")
		})
	}
}

func overH2(t *testing.T, tn *testProxy, fields []hpack.HeaderField) string {
	t.Helper()
	c := dialRaw(t, tn.addr)
	defer c.close()
	_ = c.request(1, "GET", "/", true, fields...) // it may be refused before all is sent
	require.Eventually(t, func() bool { return c.answer(1) != "" || hungUp(c) }, patience, time.Millisecond)
	if answer := c.answer(1); answer != "" {
		return answer
	}
	return "closed"
}

func overH1(t *testing.T, tn *testProxy, fields []hpack.HeaderField) string {
	t.Helper()
	conn, err := net.Dial("tcp", tn.addr)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	var b strings.Builder
	b.WriteString("GET / HTTP/1.1\r\nHost: web.test\r\n")
	for _, f := range fields {
		fmt.Fprintf(&b, "%s: %s\r\n", f.Name, f.Value)
	}
	b.WriteString("\r\n")
	_, _ = io.WriteString(conn, b.String()) // the same
	rsp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	rsp.Body.Close()
	return strconv.Itoa(rsp.StatusCode)
}
