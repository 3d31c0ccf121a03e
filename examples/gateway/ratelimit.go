package main

import (
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	descriptorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/internal/grpcunary"
	"github.com/gotower/gotower/internal/lograte"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// rateLimitByClient returns a layer that limits each client as l configures, or nil if l does not.
func rateLimitByClient(l *config.RateLimit) httplayer.Layer {
	if l == nil || l.Per != "Client" {
		return nil
	}
	return httplayer.RateLimitByClient(l.RequestsPerSecond, l.Bucket())
}

// rateLimitByHeader returns a layer that limits each value of a header field as l configures, or nil if
// l does not.
func rateLimitByHeader(l *config.RateLimit) httplayer.Layer {
	if l == nil || l.Per != "Header" {
		return nil
	}
	name := http.CanonicalHeaderKey(string(l.Header))
	// With a random seed, clients cannot choose values that share a hash.
	seed := maphash.MakeSeed()
	key := func(req *http.Request) uint64 { // a hash, because clients may send long values
		return maphash.String(seed, req.Header.Get(name))
	}
	return layer.RateLimitBy[uint64, *http.Request, *http.Response](key, l.RequestsPerSecond, l.Bucket(), 0)
}

// limits counts rateLimitService's decisions by route and result. log is rate-limited, so that an
// outage does not cause a line per request.
type limits struct {
	decisions *prometheus.CounterVec
	log       *slog.Logger
}

// newLimits registers the counter with r.
func newLimits(r prometheus.Registerer, log *slog.Logger) limits {
	decisions := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "gateway_global_rate_limit_requests_total",
		Help: "Requests for which rateLimitService was asked by result: ok, over_limit, or error if it failed.",
	}, []string{"route", "result"})
	r.MustRegister(decisions)
	return limits{decisions, slog.New(lograte.New(log.Handler()))}
}

// globalRateLimit returns a layer that asks counter, rateLimitService's service, whether each
// request is within r.GlobalRateLimits. It returns nil if there are none.
func (g *gateway) globalRateLimit(route string, r *config.Route, counter httplayer.Service) httplayer.Layer {
	c := r.RateLimitService()
	if c == nil {
		return nil
	}
	// The counters are looked up once, and not for each request.
	result := func(name string) prometheus.Counter { return g.limits.decisions.WithLabelValues(route, name) }
	return func(next httplayer.Service) httplayer.Service {
		return &limitService{
			Service: next, RateLimitService: c, counter: httplayer.RoundTripper(counter), limits: r.GlobalRateLimits, log: g.limits.log,
			ok: result("ok"), over: result("over_limit"), failed: result("error"),
		}
	}
}

// limitService is the service of a route with a rate limit service.
type limitService struct {
	httplayer.Service
	*config.RateLimitService

	counter          http.RoundTripper            // sends questions to the rate limit service
	limits           []config.RateLimitDescriptor // what the route tells that service about a request
	log              *slog.Logger
	ok, over, failed prometheus.Counter // the service's decisions, and its failures
}

// Call asks the rate limit service about req, and sends req unless it is over the limit. If that service
// fails, FailureModeDeny decides whether req is sent.
func (s *limitService) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	descriptors := s.descriptors(req)
	// No limit applies to the request.
	if len(descriptors) == 0 {
		return s.Service.Call(ctx, req)
	}
	answer, err := s.ask(ctx, &ratelimitv3.RateLimitRequest{Domain: s.Domain, Descriptors: descriptors})
	// The order matters: a request that the client has given up is no failure of the rate limit service.
	switch {
	case err != nil && ctx.Err() != nil: // for example, the client has left
		return nil, err
	case err != nil:
		s.failed.Inc()
		s.log.Warn("the rate limit service failed", "service", s.BackendRef.Name, "denied", s.FailureModeDeny, "err", err)
		if s.FailureModeDeny {
			return nil, &httplayer.StatusError{Code: http.StatusServiceUnavailable, Reason: "rate limit service: " + err.Error()}
		}
		return s.Service.Call(ctx, req)
	case answer.GetOverallCode() == ratelimitv3.RateLimitResponse_OVER_LIMIT:
		s.over.Inc()
		return nil, s.overLimit(descriptors, answer)
	}
	s.ok.Inc()
	if fields := additions(answer.GetRequestHeadersToAdd()); len(fields.Add) > 0 {
		req = httplayer.HTTP{}.EditRequest(req, fields)
	}
	rsp, err := s.Service.Call(ctx, req)
	if err == nil {
		s.addHeaders(rsp.Header, answer)
	}
	return rsp, err
}

// descriptors returns the descriptors that apply to req.
func (s *limitService) descriptors(req *http.Request) (all []*descriptorv3.RateLimitDescriptor) {
	// Each limit's descriptor has one entry for each action. Without one of the values, the limit does not apply.
	for i := range s.limits {
		d := &descriptorv3.RateLimitDescriptor{}
		for j := range s.limits[i].Actions {
			a := &s.limits[i].Actions[j]
			value := limitValue(a, req)
			if value == "" {
				d = nil
				break
			}
			d.Entries = append(d.Entries, &descriptorv3.RateLimitDescriptor_Entry{Key: a.Key(), Value: value})
		}
		if d != nil {
			all = append(all, d)
		}
	}
	return all
}

// limitValue returns the value that a contributes to a descriptor for req, or "" if there is
// none.
func limitValue(a *config.RateLimitAction, req *http.Request) string {
	// Exactly one of the fields is set.
	switch {
	case a.GenericKey != nil:
		return a.GenericKey.DescriptorValue
	case a.RequestHeaders != nil:
		// Protobuf texts must be valid UTF-8.
		return strings.ToValidUTF8(strings.Join(req.Header.Values(string(a.RequestHeaders.HeaderName)), ","), "\uFFFD")
	}
	client := accessor{}.Source(req).Addr().WithZone("")
	if !client.IsValid() {
		return ""
	}
	if a.RemoteAddress != nil {
		return client.String()
	}
	return network(client, a.MaskedRemoteAddress).String()
}

// network returns the network of the client's address, whose size depends on the IP version.
func network(client netip.Addr, masks *config.MaskedRemoteAddress) netip.Prefix {
	bits := masks.V6PrefixMaskLen
	if client.Is4() {
		bits = masks.V4PrefixMaskLen
	}
	prefix, _ := client.Prefix(bits) // was checked with the configuration
	return prefix
}

// overLimit returns the error for a request that is over a limit. Its reason names the
// descriptors.
func (s *limitService) overLimit(descriptors []*descriptorv3.RateLimitDescriptor, answer *ratelimitv3.RateLimitResponse) error {
	header := make(http.Header)
	// wait is the longest time after which a limit permits requests again, at least 1 s.
	wait := time.Second
	var reasons []string
	// The statuses are in the order of the descriptors.
	for i, status := range answer.GetStatuses() {
		if status.GetCode() != ratelimitv3.RateLimitResponse_OVER_LIMIT {
			continue
		}
		wait = max(wait, status.GetDurationUntilReset().AsDuration())
		if i < len(descriptors) {
			entries := make([]string, 0, len(descriptors[i].GetEntries()))
			for _, e := range descriptors[i].GetEntries() {
				entries = append(entries, e.GetKey()+"="+e.GetValue())
			}
			reasons = append(reasons, strings.Join(entries, ","))
		}
	}
	s.addHeaders(header, answer)
	// The service may have set Retry-After itself. Otherwise, round wait up to whole seconds.
	if header.Get("Retry-After") == "" {
		header.Set("Retry-After", strconv.Itoa(int((wait+time.Second-1)/time.Second)))
	}
	return &httplayer.StatusError{
		Code: http.StatusTooManyRequests, GRPC: uint32(codes.ResourceExhausted), Header: header,
		Reason: "global rate limit: " + strings.Join(reasons, "; "), Detail: "too many requests",
	}
}

// addHeaders adds the response header fields that the counting service sent, and those that
// EnableXRateLimitHeaders asks for.
func (s *limitService) addHeaders(header http.Header, answer *ratelimitv3.RateLimitResponse) {
	for _, f := range additions(answer.GetResponseHeadersToAdd()).Add {
		header.Add(f.Name, f.Value)
	}
	if s.EnableXRateLimitHeaders == "Off" {
		return
	}
	// The headers describe the limit that will be reached first, and the quotas list all of them.
	var tightest *ratelimitv3.RateLimitResponse_DescriptorStatus
	var quotas strings.Builder
	for _, status := range answer.GetStatuses() {
		limit := status.GetCurrentLimit()
		if limit == nil {
			continue
		}
		if tightest == nil || status.GetLimitRemaining() < tightest.GetLimitRemaining() {
			tightest = status
		}
		// Units without a known length have no window.
		if window := seconds(limit.GetUnit()); window > 0 {
			fmt.Fprintf(&quotas, ", %d;w=%d", limit.GetRequestsPerUnit(), window)
			if limit.GetName() != "" {
				fmt.Fprintf(&quotas, ";name=%q", limit.GetName())
			}
		}
	}
	if tightest != nil {
		header.Set("X-Ratelimit-Limit", strconv.Itoa(int(tightest.GetCurrentLimit().GetRequestsPerUnit()))+quotas.String())
		header.Set("X-Ratelimit-Remaining", strconv.Itoa(int(tightest.GetLimitRemaining())))
		header.Set("X-Ratelimit-Reset", strconv.Itoa(int(tightest.GetDurationUntilReset().GetSeconds())))
	}
}

// seconds returns the length of a limit's window, or 0 if the unit is unknown.
func seconds(unit ratelimitv3.RateLimitResponse_RateLimit_Unit) int {
	const day = 24 * 60 * 60
	windows := []int{0, 1, 60, 60 * 60, day, 30 * day, 365 * day, 7 * day} // ordered like the protocol's units
	if int(unit) < 0 || int(unit) >= len(windows) {
		return 0
	}
	return windows[unit]
}

// additions returns the header fields that the counting service adds, without those that must not
// be changed.
func additions(list []*corev3.HeaderValue) (fields layer.HeaderMutation) {
	for _, h := range list {
		field := layer.HeaderField{Name: h.GetKey(), Value: h.GetValue()}
		// Fields such as Host or Content-Length must not be changed.
		if (layer.HeaderMutation{Add: []layer.HeaderField{field}}).Validate() == nil {
			fields.Add = append(fields.Add, field)
		}
	}
	return fields
}

// ask calls the method ShouldRateLimit of the counting service, through the gateway's own balanced services.
func (s *limitService) ask(ctx context.Context, question *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout.D())
	defer cancel()
	message, err := proto.Marshal(question)
	if err != nil {
		return nil, err
	}
	data, err := grpcunary.Call(
		ctx, s.counter, string(s.BackendRef.Name), ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName, message)
	if err != nil {
		return nil, err
	}
	answer := new(ratelimitv3.RateLimitResponse)
	return answer, proto.Unmarshal(data, answer)
}
