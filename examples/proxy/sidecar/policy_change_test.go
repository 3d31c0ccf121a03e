package sidecar_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/outbound"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
)

// countedServer counts its connections and requests. A request for /wait gets the first part of its
// response immediately, and the rest when the client leaves or release is closed.
type countedServer struct {
	accepted, requests atomic.Int64
	failing            atomic.Bool
	release            chan struct{}
	addr               string
}

func newCountedServer(t *testing.T) *countedServer {
	t.Helper()
	s := &countedServer{release: make(chan struct{})}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		switch {
		case s.failing.Load():
			w.WriteHeader(http.StatusInternalServerError)
		case r.URL.Path == "/wait":
			_, _ = io.WriteString(w, "first, ")
			w.(http.Flusher).Flush()
			select {
			case <-s.release:
			case <-r.Context().Done():
			}
		}
		_, _ = io.WriteString(w, "last")
	}))
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.accepted.Add(1)
		}
	}
	srv.Start()
	t.Cleanup(srv.Close)
	s.addr = srv.Listener.Addr().String()
	return s
}

// A new policy changes the queue, the balancer and the circuit breakers while requests run.
// Connections and statistics are kept, and the new policy takes effect.
func TestPolicyChangesInPlace(t *testing.T) {
	t.Parallel()
	servers := []*countedServer{newCountedServer(t), newCountedServer(t)}
	tn := newPolicyProxy(t, map[string][]string{serviceName("web"): {servers[0].addr, servers[1].addr}})
	tn.set(shopPolicy(nil, ruleTo("web")))

	c := h2Client(t, tn.Addr)
	var waiting []*http.Response // on both servers, so that both have one request in flight
	for servers[0].requests.Load() == 0 || servers[1].requests.Load() == 0 {
		rsp, err := c.Get("http://web.example/wait")
		require.NoError(t, err)
		defer rsp.Body.Close()
		waiting = append(waiting, rsp)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	failed := make(chan string, 1)
	sent := make(chan struct{})
	var wrong atomic.Int64
	go func() {
		defer close(sent)
		for ctx.Err() == nil {
			r, err := c.Get("http://web.example/")
			if err != nil {
				failed <- err.Error()
				return
			}
			if r.StatusCode != http.StatusOK {
				wrong.Add(1)
			}
			_, _ = io.Copy(io.Discard, r.Body)
			_ = r.Body.Close()
		}
	}()
	total := func() int64 { return servers[0].requests.Load() + servers[1].requests.Load() }
	more := func(n int64) {
		t.Helper()
		before := total()
		require.Eventually(t, func() bool { return total() >= before+n }, time.Minute, time.Millisecond)
	}
	more(100)
	accepted := []int64{servers[0].accepted.Load(), servers[1].accepted.Load()}
	require.Equal(t, []int64{1, 1}, accepted)
	balancer, queue, picks := stateOf(t, tn)
	require.Contains(t, queue, "capacity=100")
	require.Equal(t, 1, strings.Count(balancer, "balance "), balancer)

	failures := &outbound.FailureAccrual_ConsecutiveFailures{MaxFailures: 3, Backoff: &outbound.ExponentialBackoff{
		MinBackoff: durationpb.New(time.Hour), MaxBackoff: durationpb.New(time.Hour),
	}}
	accrual := &outbound.FailureAccrual{Kind: &outbound.FailureAccrual_ConsecutiveFailures_{ConsecutiveFailures: failures}}
	tn.set(shopPolicy(accrual, ruleTo("web", func(r *outbound.HttpRoute_Rule) {
		b := r.GetBackends().GetRandomAvailable().GetBackends()[0].GetBackend().GetBackend()
		b.GetQueue().Capacity = 77
		b.GetBalancer().GetPeakEwma().Decay = durationpb.New(3 * time.Second)
	})))
	require.Eventually(t, func() bool {
		_, queue, _ := stateOf(t, tn)
		return strings.Contains(queue, "capacity=77")
	}, time.Minute, 10*time.Millisecond)
	more(200)
	balancer, _, later := stateOf(t, tn)
	assert.Greater(t, later, picks+100, "picks before and after")
	assert.Equal(t, 1, strings.Count(balancer, "balance "), balancer)
	assert.Equal(t, 2, strings.Count(balancer, "breaker "), balancer)

	busy, idle := servers[0], servers[1] // on a slow machine, one of the servers may receive nearly all requests
	if busy.requests.Load() < idle.requests.Load() {
		busy, idle = idle, busy
	}
	busy.failing.Store(true) // the new breaker opens after three failures
	require.Eventually(t, func() bool { return wrong.Load() == 3 }, time.Minute, time.Millisecond)
	stays := busy.requests.Load()
	before := idle.requests.Load()
	require.Eventually(t, func() bool { return idle.requests.Load() >= before+200 }, time.Minute, time.Millisecond)
	assert.Equal(t, stays, busy.requests.Load())
	cancel()
	<-sent
	for _, s := range servers {
		close(s.release)
	}
	for _, rsp := range waiting {
		body, err := io.ReadAll(rsp.Body)
		require.NoError(t, err, "the response began before the change")
		assert.Equal(t, "first, last", string(body))
	}
	assert.EqualValues(t, 3, wrong.Load())
	assert.Empty(t, failed)
	now := []int64{servers[0].accepted.Load(), servers[1].accepted.Load()}
	assert.Equal(t, accepted, now, "connections")
}

// stateOf returns the service's balancers, breakers and queues in the proxy's tree of layers, and
// how many picks the balancer has made.
func stateOf(t *testing.T, tn *policyProxy) (balancers, queues string, picks int) {
	t.Helper()
	direct := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	_, tree := get(t, direct, "http://"+tn.Admin+"/stack")
	for line := range strings.Lines(tree) {
		switch name, _, _ := strings.Cut(strings.TrimSpace(line), " "); {
		case name == "breaker", name == "balance" && strings.Contains(line, serviceName("web")):
			balancers += line
		case name == "queue":
			queues += line
		}
	}
	if found := regexp.MustCompile(`balance .* picks=(\d+)`).FindStringSubmatch(balancers); found != nil {
		picks, _ = strconv.Atoi(found[1])
	}
	return balancers, queues, picks
}
