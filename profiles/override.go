package profiles

import (
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gotower/gotower/layer"
)

// The header fields that change the retries and timeouts of a request: see Overrides of
// [RoutePolicy]. The names are in canonical form, because net/http allocates for other forms.
const (
	overrideHTTP     = "L5d-Retry-Http"
	overrideGRPC     = "L5d-Retry-Grpc"
	overrideLimit    = "L5d-Retry-Limit"
	overrideAttempt  = "L5d-Retry-Timeout"
	overrideTimeout  = "L5d-Timeout"
	overrideRequest  = "L5d-Request-Timeout"
	overrideResponse = "L5d-Response-Timeout"
)

var overrideFields = [...]string{ //nolint:gochecknoglobals // a constant
	overrideHTTP, overrideGRPC, overrideLimit, overrideAttempt, overrideTimeout, overrideRequest, overrideResponse,
}

// overrides is the service of a route with RoutePolicy.Overrides. It sends requests with an
// override field, such as l5d-timeout, to the service in the field overridden. It sends
// other requests to the embedded Service.
type overrides[Req, Rsp any] struct {
	layer.Service[Req, Rsp]
	access     layer.Accessor[Req, Rsp]
	overridden layer.Service[Req, Rsp]
}

func (o *overrides[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	if hasName(o.access.RequestHeader(req), isOverrideField) {
		return o.overridden.Call(ctx, req)
	}
	return o.Service.Call(ctx, req)
}

func isOverrideField(name string) bool {
	const common = "L5d-Timeout"
	return len(name) >= len(common) && (name[0] == 'L' || name[0] == 'l') &&
		slices.ContainsFunc(overrideFields[:], func(field string) bool { return strings.EqualFold(field, name) })
}

func (o *overrides[Req, Rsp]) Next() layer.Service[Req, Rsp] { return o.Service }

func (o *overrides[Req, Rsp]) Describe() layer.Node { return layer.Node{Name: "overrides"} }

// addTimeout adds to st a layer that limits the time of a request to d. A d of 0 means no limit. If
// a.overridden is true, the request may have its own limit in a header field. The argument fields
// has the names of these header fields. The first one with a valid duration replaces d.
func (a *routeStack[Req, Rsp]) addTimeout(st layer.Stack[Req, Rsp], d time.Duration, fields ...string) layer.Stack[Req, Rsp] {
	if !a.overridden {
		return st.Timeout(d)
	}
	return st.DeadlineFromRequest(func(req Req) (time.Duration, bool) {
		header := a.access.RequestHeader(req)
		for _, name := range fields {
			if own, ok := overrideDuration(header.Get(name)); ok {
				return own, own > 0
			}
		}
		return d, d > 0
	})
}

// overriddenRetry retries requests as their override fields specify. It keeps the service that it
// made for the last request, because most clients send the same fields with each request. If the
// next request has other values, overriddenRetry makes a new service.
type overriddenRetry[Req, Rsp any] struct {
	layer.Service[Req, Rsp]
	stack   *routeStack[Req, Rsp]
	options []layer.Option[Rsp]
	last    atomic.Pointer[madeRetry[Req, Rsp]]
}

// madeRetry is a service that overriddenRetry made, and the values of the header fields in
// retryFields for which it made the service.
type madeRetry[Req, Rsp any] struct {
	layer.Service[Req, Rsp]
	values [len(retryFields)]string
}

var retryFields = [...]string{overrideHTTP, overrideGRPC, overrideLimit, overrideAttempt} //nolint:gochecknoglobals // a constant

func (o *overriddenRetry[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	header := o.stack.access.RequestHeader(req)
	var values [len(retryFields)]string
	for i, name := range retryFields {
		values[i] = header.Get(name)
	}
	made := o.last.Load()
	if made == nil || made.values != values {
		made = &madeRetry[Req, Rsp]{Service: o.Service, values: values}
		if r := overrideRetry(header, o.stack.route.Policy.Retry); r != nil {
			made.Service = layer.Retry(o.stack.retryPolicy(r), o.options...)(o.Service)
		}
		o.last.Store(made)
	}
	return made.Service.Call(ctx, req)
}

func (o *overriddenRetry[Req, Rsp]) Next() layer.Service[Req, Rsp] { return o.Service }

func (o *overriddenRetry[Req, Rsp]) Describe() layer.Node { return layer.Node{Name: "retry"} }

// overrideRetry returns the Retry for a request with the given header. It is a copy of the
// policy's Retry (the argument of), in which valid override fields replace values. If the policy
// has no Retry, linkerd's defaults are used instead. Without a valid override field, the result is
// the policy's Retry itself, which may be nil. If the limit of retries is 0 after the overrides,
// the result is nil.
func overrideRetry(header layer.Header, of *Retry) *Retry {
	statuses, byStatus := overrideStatuses(header.Get(overrideHTTP))
	codes, byCode := overrideCodes(header.Get(overrideGRPC))
	limit, err := strconv.ParseUint(header.Get(overrideLimit), 10, 32)
	limited := err == nil
	timeout, timed := overrideDuration(header.Get(overrideAttempt))
	if !byStatus && !byCode && !limited && !timed {
		return of
	}
	r := Retry{Max: 1, MaxBodyBytes: keptBody, Backoff: layer.Backoff{Min: 25 * time.Millisecond, Max: 250 * time.Millisecond, Jitter: 1}}
	if of != nil {
		r = *of
	}
	if byStatus {
		r.Statuses = statuses
	}
	if byCode {
		r.GRPC = codes
	}
	if timed {
		r.AttemptTimeout = timeout
	}
	if limited {
		r.Max = int(min(limit, maxRetries))
	}
	if r.Max == 0 {
		return nil
	}
	return &r
}

// overrideStatuses returns the HTTP statuses of a list such as "5xx,gateway-error,429,500-504". It
// ignores invalid members. The result ok is false only if list is "".
func overrideStatuses(list string) (statuses []Status, ok bool) {
	if list == "" {
		return nil, false
	}
	code := func(s string) int {
		n, err := strconv.Atoi(s)
		if err != nil || n < 100 || n > 599 {
			return 0
		}
		return n
	}
	for condition := range strings.SplitSeq(list, ",") {
		condition = strings.TrimSpace(condition)
		low, high, isRange := strings.Cut(condition, "-")
		switch {
		case strings.EqualFold(condition, "5xx"):
			statuses = append(statuses, Status{500, 599})
		case strings.EqualFold(condition, "gateway-error"):
			statuses = append(statuses, Status{502, 504})
		case !isRange && code(low) > 0:
			statuses = append(statuses, Status{code(low), code(low)})
		case isRange && code(low) > 0 && code(low) <= code(high):
			statuses = append(statuses, Status{code(low), code(high)})
		}
	}
	return statuses, true
}

// overrideCodes returns the gRPC statuses of a list such as "unavailable,internal". It ignores
// unknown names. The result ok is false only if list is "".
func overrideCodes(list string) (codes []GRPCStatus, ok bool) {
	if list == "" {
		return nil, false
	}
	known := [...]struct {
		name string
		code uint32
	}{{"cancelled", 1}, {"deadline-exceeded", 4}, {"resource-exhausted", 8}, {"internal", 13}, {"unavailable", 14}}
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		for _, k := range known {
			if strings.EqualFold(name, k.name) {
				codes = append(codes, GRPCStatus{k.code, k.code})
			}
		}
	}
	return codes, true
}

// overrideDuration parses a whole number with the unit ms, s, m, h or d. 0 needs no unit.
// It returns false if s has another form.
func overrideDuration(s string) (time.Duration, bool) {
	if s = strings.TrimSpace(s); s == "" {
		return 0, false // without the allocation of an error
	}
	end := strings.LastIndexAny(s, "0123456789") + 1
	n, err := strconv.ParseUint(s[:end], 10, 63)
	if err != nil {
		return 0, false
	}
	if s[end:] == "" {
		return 0, n == 0
	}
	for _, unit := range [...]struct {
		name string
		d    time.Duration
	}{{"ms", time.Millisecond}, {"s", time.Second}, {"m", time.Minute}, {"h", time.Hour}, {"d", 24 * time.Hour}} {
		if s[end:] == unit.name {
			return time.Duration(n) * unit.d, n <= uint64(math.MaxInt64/unit.d)
		}
	}
	return 0, false
}
