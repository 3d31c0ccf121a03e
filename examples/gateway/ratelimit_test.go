package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// limiter is a rate limit service: three requests for each descriptor, and no end of the window.
type limiter struct {
	ratelimitv3.UnimplementedRateLimitServiceServer

	mu    sync.Mutex
	asked map[string]uint32 // by domain and descriptor
	err   error
	hangs bool
}

const limiterQuota = 3

func (l *limiter) ShouldRateLimit(ctx context.Context, r *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hangs {
		<-ctx.Done()
	}
	if l.err != nil {
		return nil, l.err
	}
	answer := &ratelimitv3.RateLimitResponse{
		OverallCode:          ratelimitv3.RateLimitResponse_OK,
		ResponseHeadersToAdd: []*corev3.HeaderValue{{Key: "X-Counted", Value: "yes"}, {Key: "Content-Length", Value: "9"}},
		RequestHeadersToAdd:  []*corev3.HeaderValue{{Key: "X-Quota", Value: "3"}},
	}
	for _, d := range r.GetDescriptors() {
		key := r.GetDomain()
		for _, e := range d.GetEntries() {
			key += " " + e.GetKey() + "=" + e.GetValue()
		}
		l.asked[key]++
		one := &ratelimitv3.RateLimitResponse_DescriptorStatus{
			Code: ratelimitv3.RateLimitResponse_OK, DurationUntilReset: &durationpb.Duration{Seconds: 40, Nanos: 1},
			CurrentLimit: &ratelimitv3.RateLimitResponse_RateLimit{
				Name: "three", RequestsPerUnit: limiterQuota, Unit: ratelimitv3.RateLimitResponse_RateLimit_MINUTE,
			},
			LimitRemaining: limiterQuota - min(l.asked[key], limiterQuota),
		}
		if l.asked[key] > limiterQuota {
			one.Code, answer.OverallCode = ratelimitv3.RateLimitResponse_OVER_LIMIT, ratelimitv3.RateLimitResponse_OVER_LIMIT
		}
		answer.Statuses = append(answer.Statuses, one)
	}
	return answer, nil
}

func (l *limiter) set(err error, hangs bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err, l.hangs = err, hangs
}

func (l *limiter) counts() map[string]uint32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.asked)
}

// startLimiter returns a limiter and its address.
func startLimiter(t *testing.T) (*limiter, string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := &limiter{asked: make(map[string]uint32)}
	s := grpc.NewServer()
	ratelimitv3.RegisterRateLimitServiceServer(s, l)
	go func() { _ = s.Serve(listener) }()
	t.Cleanup(s.Stop)
	return l, listener.Addr().String()
}

// Two gateways share the limits that a service of Envoy's API counts.
func TestGlobalRateLimit(t *testing.T) {
	t.Parallel()
	l, address := startLimiter(t)
	text := `
listeners: [{name: http, address: "127.0.0.1:0", trustedProxies: [127.0.0.0/8]}]
admin: {address: "127.0.0.1:0", tap: "off"}
rateLimitService: {backendRef: {name: limiter}, domain: shop, timeout: 60s, enableXRateLimitHeaders: DraftVersion03}
services:
` + service("limiter", address) + service("a", backend(t, "a")) + `
routes:
- name: users
  matches: [{path: {prefix: /users}}]
  backendRefs: [{name: a}]
  globalRateLimits:
  - actions: [{genericKey: {descriptorValue: users}}, {requestHeaders: {headerName: X-User, descriptorKey: user}}]
- name: clients
  matches: [{path: {prefix: /clients}}]
  backendRefs: [{name: a}]
  globalRateLimits:
  - actions: [{remoteAddress: {}}]
  - actions: [{maskedRemoteAddress: {v4PrefixMaskLen: 8, v6PrefixMaskLen: 48}}, {genericKey: {descriptorKey: k, descriptorValue: v}}]
- {name: rest, backendRefs: [{name: a}], globalRateLimits: [{actions: [{genericKey: {descriptorValue: rest}}]}]}
`
	gateways := []*process{start(t, text), start(t, text)}
	assert.Contains(t, output(t, "explain", gateways[0].file, "GET", "http://a/users"),
		"limits   global limit of generic_key=users, user in the domain shop\n")
	statuses := map[int]int{}
	var refused answer
	for i := range 2 * (limiterQuota + 1) {
		a := gateways[i%2].get(t, "GET", "/users/1", "X-User: emma")
		if statuses[a.StatusCode]++; a.StatusCode == 429 {
			refused = a
		}
	}
	assert.Equal(t, map[int]int{200: limiterQuota, 429: limiterQuota + 2}, statuses)
	assert.Equal(t, []string{"41", "yes", "3, 3;w=60;name=\"three\"", "0", "40"}, []string{
		refused.Header.Get("Retry-After"), refused.Header.Get("X-Counted"), refused.Header.Get("X-Ratelimit-Limit"),
		refused.Header.Get("X-Ratelimit-Remaining"), refused.Header.Get("X-Ratelimit-Reset"),
	})
	assert.Contains(t, refused.body, "too many requests")

	p := gateways[0]
	assert.Equal(t, 200, p.get(t, "GET", "/users/1", "X-User: jane").StatusCode, "another user")
	assert.Empty(t, p.get(t, "GET", "/users/1").Header.Get("X-Ratelimit-Limit"), "no value for the descriptor")
	for _, client := range []string{"192.0.2.1", "192.0.2.2", "2001:db8:1:2::3"} {
		a := p.get(t, "GET", "/clients", "X-Forwarded-For: "+client)
		assert.Equal(t, 200, a.StatusCode)
		assert.Equal(t, "yes", a.Header.Get("X-Counted"))
	}
	assert.Equal(t, map[string]uint32{
		"shop generic_key=users user=emma": 2 * (limiterQuota + 1), "shop generic_key=users user=jane": 1,
		"shop remote_address=192.0.2.1": 1, "shop remote_address=192.0.2.2": 1, "shop remote_address=2001:db8:1:2::3": 1,
		"shop masked_remote_address=192.0.0.0/8 k=v": 2, "shop masked_remote_address=2001:db8:1::/48 k=v": 1,
	}, l.counts())

	// A gRPC call gets RESOURCE_EXHAUSTED.
	conn, err := grpc.NewClient(p.addresses["http"], grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	for range limiterQuota {
		p.get(t, "GET", "/rest")
	}
	_, err = grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))

	// Log and metrics have the refused requests.
	metrics, err := p.send(t.Context(), "GET", "http://"+p.addresses["admin"]+"/metrics", "")
	require.NoError(t, err)
	for _, line := range []string{
		`gateway_global_rate_limit_requests_total{result="over_limit",route="users"} `,
		`gateway_responses_total{code="429",grpc_status="",listener="http",route="users"} `,
	} {
		assert.Contains(t, metrics.body, line)
	}
	until(t, func() bool {
		return strings.Contains(p.log.String(), `global rate limit: generic_key=users,user=emma`)
	})
	for line := range strings.Lines(p.log.String()) {
		var entry struct {
			Status int    `json:"status"`
			Error  string `json:"error"`
			Route  string `json:"route"`
		}
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Status == 429 && entry.Route == "users" {
			assert.Equal(t, "global rate limit: generic_key=users,user=emma", entry.Error)
		}
	}
}

// A service that fails does not limit requests, unless the configuration says so.
func TestGlobalRateLimitFails(t *testing.T) {
	t.Parallel()
	l, address := startLimiter(t)
	const text = `
rateLimitService: {backendRef: {name: limiter}, domain: shop, timeout: %s, failureModeDeny: %t}
services:
%s
routes:
- {name: all, directResponse: {status: 200, body: ok}, globalRateLimits: [{actions: [{genericKey: {descriptorValue: all}}]}]}
`
	working, refusing := service("limiter", address), service("limiter", "127.0.0.1:1")
	get := func(p *process, want int) {
		t.Helper()
		a := p.get(t, "GET", "/")
		assert.Equal(t, want, a.StatusCode)
		assert.Empty(t, a.Header.Get("X-Ratelimit-Limit"), "off by default")
	}
	l.set(status.Error(codes.Internal, "broken"), false)
	p := start(t, head+fmt.Sprintf(text, "60s", false, working))
	get(p, 200)
	until(t, func() bool { return strings.Contains(p.log.String(), "broken") })
	get(start(t, head+fmt.Sprintf(text, "60s", true, working)), 503)
	get(start(t, head+fmt.Sprintf(text, "60s", false, refusing)), 200)
	get(start(t, head+fmt.Sprintf(text, "60s", true, refusing)), 503)
	l.set(nil, true)
	get(start(t, head+fmt.Sprintf(text, "20ms", false, working)), 200)
	get(start(t, head+fmt.Sprintf(text, "20ms", true, working)), 503)

	// A reload changes the service.
	l.set(nil, false)
	p = start(t, head+fmt.Sprintf(text, "60s", true, refusing))
	get(p, 503)
	p.replace(t, head+fmt.Sprintf(text, "60s", true, working))
	until(t, func() bool { return p.get(t, "GET", "/").StatusCode == 429 })
}

// The cancellation of a request is not a failure of the service that counts.
func TestGlobalRateLimitCanceled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the client is gone")
	counter := layer.Func[*http.Request, *http.Response](func(ctx context.Context, _ *http.Request) (*http.Response, error) {
		cancel(gone)
		return nil, context.Cause(ctx)
	})
	svc := &limitService{
		counter: httplayer.RoundTripper(counter), RateLimitService: &config.RateLimitService{Timeout: config.Duration(time.Minute)},
		limits: []config.RateLimitDescriptor{{Actions: []config.RateLimitAction{{GenericKey: &config.GenericKey{DescriptorValue: "a"}}}}},
	}
	_, err := svc.Call(ctx, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody))
	require.ErrorIs(t, err, gone)
}
