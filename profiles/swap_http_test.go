package profiles_test

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/profiles"
)

// moody answers a part of the requests for /moody badly, or not at all, and the
// others with their bodies, at times slowly.
func moody(w http.ResponseWriter, r *http.Request) {
	bad := r.URL.Path == "/moody" && rand.IntN(2) == 0
	grpc := r.Header.Get("Content-Type") != ""
	pause := time.NewTimer(rand.N(10 * time.Millisecond))
	defer pause.Stop()
	switch mood := rand.IntN(4); {
	case mood == 0:
		<-pause.C
	case bad && mood == 1:
		message(w, "a part")
		panic(http.ErrAbortHandler)
	case bad && mood == 2:
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	body, err := io.ReadAll(r.Body)
	switch {
	case err != nil:
		return
	case bad && grpc:
		ends(w, "14")
		return
	}
	_, _ = w.Write(body)
	if grpc {
		ends(w, "0")
	}
}

// version is another profile for each i: its first route is always the same.
func version(i int) *profiles.Profile {
	even := profiles.Route{Name: "even", Match: profiles.Path("/even"), Retry: &profiles.Retry{}, Timeout: time.Minute, Hedge: 5 * time.Millisecond}
	other := profiles.Route{
		Name: "moody", Match: profiles.PathPrefix("/"), Labels: map[string]string{"i": strconv.Itoa(i)},
		Mirrors: []profiles.Mirror{{Authority: "shadow:80", Fraction: 0.5}},
	}
	if i%2 == 0 {
		other.Retry = &profiles.Retry{}
	}
	switch i % 6 {
	case 1:
		other.Faults = []profiles.Fault{{Fraction: 0.3, Status: 503, TTL: time.Hour}, {Fraction: 0.3, Delay: time.Millisecond, TTL: time.Hour}}
	case 2:
		other.Hedge, other.AttemptTimeout = 2*time.Millisecond, 4*time.Millisecond
	case 3:
		other.Redirect, other.Timeout = &profiles.Redirect{Host: "elsewhere"}, 5*time.Millisecond
	case 4:
		other.ResponseHeader.Set, other.Limit = pairs("X-A", "b"), 2
	}
	p := &profiles.Profile{Routes: []profiles.Route{even, other}, RetryBudget: &profiles.RetryBudget{
		Ratio: 0.5, MinPerSecond: 50, TTL: time.Duration(1+i%3) * time.Second,
	}}
	if i%3 == 2 {
		p.Targets = []profiles.Target{{"a:80", 1}, {"b:80", 3}}
	}
	return p
}

// Real connections with all features of routes, retries by trailers, and callers that
// cancel or stop reading: no request of the unchanged route is lost or gets a wrong
// response, and every request that began has ended.
func TestSwapUnderLoadOfHTTP(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(moody))
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetHTTP1(true)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	defer srv.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var source profiles.Static
	source.Set(target, version(0))
	var counts tallies
	var even atomic.Int64
	config := profiles.Config{Target: target, Source: &source, Metrics: counts.instruments, InitialWait: time.Minute}
	r := profiles.New(ctx, config, httplayer.HTTP{}, func(string) httplayer.Service {
		return httplayer.NewEndpoint(ctx, srv.Listener.Addr().String())
	}, profiles.WithRouteLayers(httplayer.HTTP{}))
	var stop atomic.Bool
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for !stop.Load() {
				if rand.IntN(2) == 0 {
					even.Add(1)
					evenly(ctx, t, r)
				} else {
					moodily(ctx, t, r)
				}
				_ = layer.Describe(r).String()
			}
		})
	}
	ticks := time.NewTicker(25 * time.Millisecond)
	defer ticks.Stop()
	for i := range 24 {
		<-ticks.C
		source.Set(target, version(i+1))
	}
	stop.Store(true)
	group.Wait()
	assert.Equal(t, even.Load(), counts.of("even: requests"))
	assert.EventuallyWithT(t, func(c *assert.CollectT) { counts.balanced(c) }, 20*time.Second, 10*time.Millisecond)
}

// upload is a request by HTTP/1.1, or a gRPC one, with a body that is read once.
func upload(ctx context.Context, t *testing.T, path, body string) *http.Request {
	t.Helper()
	req := streamed(t, path, strings.NewReader(body), -1).WithContext(ctx)
	if rand.IntN(2) == 0 {
		req.ProtoMajor, req.ProtoMinor = 2, 0
		req.Header.Set("Content-Type", "application/grpc")
	}
	return req
}

func evenly(ctx context.Context, t *testing.T, r *httpRouter) {
	t.Helper()
	body := strings.Repeat("y", rand.IntN(50_000))
	rsp, err := r.Call(ctx, upload(ctx, t, "/even", body))
	if !assert.NoError(t, err) {
		return
	}
	defer rsp.Body.Close()
	got, err := io.ReadAll(rsp.Body)
	assert.NoError(t, err)
	assert.Equal(t, len(body), strings.Count(string(got), "y"))
	assert.Len(t, got, len(body))
}

// moodily goes, or closes the body early, in half of the cases.
func moodily(ctx context.Context, t *testing.T, r *httpRouter) {
	t.Helper()
	if rand.IntN(4) == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, rand.N(10*time.Millisecond))
		defer cancel()
	}
	explained, _ := layer.Explain(ctx)
	rsp, err := r.Call(explained, upload(ctx, t, "/moody", strings.Repeat("y", rand.IntN(100_000))))
	if err != nil {
		return
	}
	defer rsp.Body.Close()
	rsp.Header.Set("X-Mine", "1")
	if rand.IntN(4) > 0 {
		_, _ = io.Copy(io.Discard, rsp.Body)
	}
}
