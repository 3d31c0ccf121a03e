package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// countedBackend is a backend that counts its connections and requests. A request for /wait gets the
// first part of its response at once, and the rest when release is closed.
type countedBackend struct {
	address            string
	accepted, requests atomic.Int64
	release            chan struct{}
}

func newCountedBackend(t *testing.T) *countedBackend {
	t.Helper()
	b := &countedBackend{release: make(chan struct{})}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.requests.Add(1)
		w.Header().Set("X-Backend", b.address)
		if r.URL.Path == "/wait" {
			_, _ = io.WriteString(w, "first, ")
			w.(http.Flusher).Flush()
			select {
			case <-b.release:
			case <-r.Context().Done():
			}
		}
		_, _ = io.WriteString(w, "last")
	}))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			b.accepted.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	b.address = s.Listener.Addr().String()
	return b
}

// The load balancer, the queue, the limits and the addresses of a service change while requests run.
// The connections and the statistics stay, and the new settings take effect.
func TestReloadChangesServiceInPlace(t *testing.T) {
	t.Parallel()
	a, b, added := newCountedBackend(t), newCountedBackend(t), newCountedBackend(t)
	text := func(settings string, backends ...*countedBackend) string {
		var addresses []string
		for _, b := range backends {
			addresses = append(addresses, `"`+b.address+`"`)
		}
		return head + fmt.Sprintf(`
services: [{name: web, protocol: HTTP2, static: {addresses: [%s]}, %s}]
routes: [{name: all, backendRefs: [{name: web}]}]
`, strings.Join(addresses, ", "), settings)
	}
	p := start(t, text("loadBalancer: {policy: Random}", a, b))
	// balancer returns the rule and the number of picks of the balancer, as the page for operators shows them
	balancer := func() (rule string, picks int) {
		rsp, err := p.client.Get("http://" + p.addresses["admin"] + "/live")
		require.NoError(t, err)
		defer rsp.Body.Close()
		shown := regexp.MustCompile(`\["pick","([^"]*)"\].*?\["picks",(\d+)\]`)
		for lines := bufio.NewScanner(rsp.Body); picks == 0 && lines.Scan(); {
			if found := shown.FindStringSubmatch(lines.Text()); found != nil {
				rule = found[1]
				picks, err = strconv.Atoi(found[2])
				require.NoError(t, err)
			}
		}
		return rule, picks
	}
	send := func(n int) (from string) {
		for range n {
			from += p.get(t, "GET", "/").Header.Get("X-Backend") + " "
		}
		return from
	}
	until(t, func() bool { // the gateway is loaded
		a, err := p.send(t.Context(), "GET", "http://"+p.addresses["http"]+"/", "")
		return err == nil && a.StatusCode == http.StatusOK
	})
	rsp, err := p.client.Get("http://" + p.addresses["http"] + "/wait")
	require.NoError(t, err)
	defer rsp.Body.Close()
	for a.requests.Load() < 20 || b.requests.Load() < 20 {
		send(1)
	}
	connections := func() []int64 { return []int64{a.accepted.Load(), b.accepted.Load(), added.accepted.Load()} }
	require.Equal(t, []int64{1, 1, 0}, connections())
	rule, before := balancer()
	require.Equal(t, "random", rule)
	require.GreaterOrEqual(t, before, 40)

	p.replace(t, text("loadBalancer: {policy: RoundRobin}", a, b))
	turns := strings.Repeat(a.address+" "+b.address+" ", 20)
	until(t, func() bool { return strings.Contains(send(42), turns) })
	rule, after := balancer()
	assert.Equal(t, "round robin", rule)
	assert.GreaterOrEqual(t, after, before+42)

	p.replace(t, text("queue: {capacity: 7}, circuitBreakers: {maxRequests: 9}, loadBalancer: {policy: RoundRobin}", a, b, added))
	until(t, func() bool { return strings.Contains(send(3), added.address) })
	_, last := balancer()
	assert.Greater(t, last, after)
	assert.Equal(t, []int64{1, 1, 1}, connections())
	for _, backend := range []*countedBackend{a, b, added} {
		close(backend.release)
	}
	body, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	assert.Equal(t, "first, last", string(body), "a response that began before the changes")

	p.replace(t, text("loadBalancer: {policy: RoundRobin}", b, added))
	until(t, func() bool { return !strings.Contains(send(20), a.address) })
	assert.Equal(t, []int64{1, 1, 1}, connections())
}
