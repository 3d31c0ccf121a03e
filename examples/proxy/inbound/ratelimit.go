package inbound

import (
	"fmt"
	"net/http"
	"sync"

	pb "github.com/linkerd/linkerd2-proxy-api/go/inbound"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/examples/proxy/meters"
	"github.com/gotower/gotower/layer/httplayer"
)

// rateLimit limits the requests per second to one port. A limit of n also permits bursts of n
// requests.
type rateLimit struct {
	total     *rate.Limiter            // for all requests; nil: no limit
	overrides map[string]*rate.Limiter // by identity, instead of perClient
	perClient rate.Limit               // for each identity, with "" for clients without one; 0: no limit

	byTotal, byIdentity *meters.Permit // metrics for rejected requests

	mu      sync.Mutex
	clients map[string]*rate.Limiter // by identity, with the limit perClient; guarded by mu
}

// maxLimited limits how many clients' limiters are kept in memory. When there are more, all of them
// are dropped, and each client may send another burst.
const maxLimited = 10_000

// rateLimitOf converts msg, a rate limit of server. It returns nil if msg is nil. A limit of 0
// means no limit.
func rateLimitOf(msg *pb.HttpLocalRateLimit, server meters.Resource) (*rateLimit, error) {
	if msg == nil {
		return nil, nil //nolint:nilnil // no limit
	}
	l := &rateLimit{
		overrides: make(map[string]*rate.Limiter), clients: make(map[string]*rate.Limiter),
		total: limiterOf(msg.GetTotal()), perClient: rate.Limit(msg.GetIdentity().GetRequestsPerSecond()),
	}
	// An unnamed limit keeps the zero resource, and its metrics have no name.
	var resource meters.Resource
	if msg.GetMetadata() != nil {
		var err error
		if resource, err = resourceOf(msg.GetMetadata(), nil, ""); err != nil {
			return nil, fmt.Errorf("rate limit: %w", err)
		}
	}
	l.byTotal = &meters.Permit{Server: server, RateLimit: resource, Scope: "total"}
	l.byIdentity = &meters.Permit{Server: server, RateLimit: resource, Scope: "identity"}
	for _, o := range msg.GetOverrides() {
		if limiter := limiterOf(o.GetLimit()); limiter != nil {
			// All identities of one override share its limiter, and so its limit.
			for _, id := range o.GetClients().GetIdentities() {
				l.overrides[id.GetName()] = limiter
			}
		}
	}
	return l, nil
}

// limiterOf returns a limiter for msg, or nil if msg means no limit.
func limiterOf(msg *pb.HttpLocalRateLimit_Limit) *rate.Limiter {
	n := msg.GetRequestsPerSecond()
	if n == 0 {
		return nil
	}
	// The burst is capped at 1<<30, because a larger uint32 is no int on 32-bit systems.
	return rate.NewLimiter(rate.Limit(n), int(min(n, 1<<30)))
}

// take counts a request from the client with the identity id. If a limit rejects it, take returns
// an error, and the labels for metrics.
func (l *rateLimit) take(id string) (*meters.Permit, error) {
	if l.total != nil && !l.total.Allow() {
		return l.byTotal, rateError("total", l.total.Limit())
	}
	if limiter := l.overrides[id]; limiter != nil {
		if !limiter.Allow() {
			return l.byIdentity, rateError("override", limiter.Limit())
		}
		return nil, nil //nolint:nilnil // not rejected
	}
	if l.perClient > 0 && !l.client(id).Allow() {
		return l.byIdentity, rateError("per-identity", l.perClient)
	}
	return nil, nil //nolint:nilnil // not rejected
}

// client returns the limiter for the identity id, and creates it if necessary. If maxLimited limiters
// exist already, it drops all of them first.
func (l *rateLimit) client(id string) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	limiter := l.clients[id]
	if limiter == nil {
		if len(l.clients) >= maxLimited {
			clear(l.clients)
		}
		// The burst is capped at 1<<30, so that it fits into an int on all systems.
		limiter = rate.NewLimiter(l.perClient, int(min(l.perClient, 1<<30)))
		l.clients[id] = limiter
	}
	return limiter
}

// rateError returns the error for a request that exceeds limit. subject names the limit.
func rateError(subject string, limit rate.Limit) error {
	return &httplayer.StatusError{
		Code: http.StatusTooManyRequests, GRPC: uint32(codes.ResourceExhausted),
		Reason: fmt.Sprintf("%s rate limit exceeded: %vrps", subject, float64(limit)),
	}
}
