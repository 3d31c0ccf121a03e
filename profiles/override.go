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

// These header fields change a request's retries and timeouts: see Overrides in [Route].
// The names are in canonical form, because net/http allocates for other forms.
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

// overrides is the service of a route with Overrides. It sends requests with an
// override field, such as l5d-timeout, to the service in the field overridden. It sends
// other requests to the embedded Service.
type overrides[Req, Rsp any] struct {
	layer.Service[Req, Rsp]
	access     layer.Accessor[Req, Rsp]
	overridden layer.Service[Req, Rsp]
}

func (o *overrides[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	header := o.access.RequestHeader(req)
	if slices.ContainsFunc(overrideFields[:], func(name string) bool { return len(header.Values(name)) > 0 }) {
		return o.overridden.Call(ctx, req)
	}
	return o.Service.Call(ctx, req)
}

func (o *overrides[Req, Rsp]) Next() layer.Service[Req, Rsp] { return o.Service }

func (o *overrides[Req, Rsp]) Describe() layer.Node { return layer.Node{Name: "overrides"} }

// addTimeout adds to st a layer that limits a request's time to d, unless d is 0. If a.overridden
// is true, a request may set its own limit in one of the header fields in fields. The first one
// with a valid duration replaces d.
func (a *routeStack[Req, Rsp]) addTimeout(
	st layer.Stack[Req, Rsp], d time.Duration, opts []layer.Option[Rsp], fields ...string,
) layer.Stack[Req, Rsp] {
	if !a.overridden {
		return st.With("timeout", layer.Timeout[Req](d, opts...))
	}
	return st.With("deadline_in", layer.DeadlineFromRequest(func(req Req) (time.Duration, bool) {
		header := a.access.RequestHeader(req)
		for _, name := range fields {
			if limit, ok := overrideDuration(header.Get(name)); ok {
				return limit, limit > 0
			}
		}
		return d, d > 0
	}, opts...))
}

// overriddenRetry retries requests as their override fields specify. It keeps the service that it
// made for the last request, because most clients send the same fields with each request, and
// makes a new one when the values differ.
type overriddenRetry[Req, Rsp any] struct {
	layer.Service[Req, Rsp]
	stack *routeStack[Req, Rsp]
	grpc  bool // whether the requests are gRPC requests
	last  atomic.Pointer[madeRetry[Req, Rsp]]
}

// madeRetry is a service that overriddenRetry made, and the values of the header fields in
// retryFields for which it made the service.
type madeRetry[Req, Rsp any] struct {
	layer.Service[Req, Rsp]
	values [len(retryFields)]string
}

var retryFields = [...]string{overrideHTTP, overrideGRPC, overrideLimit, overrideAttempt} //nolint:gochecknoglobals // a constant

// Call sends req through a retry layer with the values in req's override fields.
func (o *overriddenRetry[Req, Rsp]) Call(ctx context.Context, req Req) (Rsp, error) {
	header := o.stack.access.RequestHeader(req)
	var values [len(retryFields)]string
	for i, name := range retryFields {
		values[i] = header.Get(name)
	}
	// Most requests have the same values as the one before, so its service is usually the right one.
	retry := o.last.Load()
	if retry == nil || retry.values != values {
		a := o.stack
		r, timeout := overrideRetry(header, a.route.Retry, a.route.AttemptTimeout)
		st := a.addRetry(layer.NewStack[Req](a.options(a.protocol.Classify)...), r, timeout, o.grpc)
		retry = &madeRetry[Req, Rsp]{Service: st.Service(o.Service), values: values}
		o.last.Store(retry)
	}
	return retry.Service.Call(ctx, req)
}

func (o *overriddenRetry[Req, Rsp]) Next() layer.Service[Req, Rsp] { return o.Service }

func (o *overriddenRetry[Req, Rsp]) Describe() layer.Node { return layer.Node{Name: "retry"} }

// overrideRetry returns the Retry and the AttemptTimeout for a request with the given header. These are
// copies of retry and timeout, with values replaced by valid override fields. If retry is nil, linkerd's
// defaults are used instead. Without a valid override field, the results are retry and timeout themselves.
// If the overrides leave no retries, the result is nil.
func overrideRetry(header layer.Header, retry *Retry, timeout time.Duration) (*Retry, time.Duration) {
	statuses, byStatus := overrideStatuses(header.Get(overrideHTTP))
	codes, byCode := overrideCodes(header.Get(overrideGRPC))
	limit, err := strconv.ParseUint(header.Get(overrideLimit), 10, 32)
	limited := err == nil
	attempt, timed := overrideDuration(header.Get(overrideAttempt))
	if !byStatus && !byCode && !limited && !timed {
		return retry, timeout
	}
	r := Retry{
		Max: 1, NonIdempotent: true, WithoutBudget: true, Statuses: []Status{}, LastUnlimited: true,
		Backoff: layer.Backoff{Min: 25 * time.Millisecond, Max: 250 * time.Millisecond, Jitter: 1},
	}
	if retry != nil {
		r = *retry
	}
	if byStatus {
		r.Statuses = statuses
	}
	if byCode {
		r.GRPC = codes
	}
	if timed {
		timeout = attempt
	}
	if limited {
		if r.Max = int(min(limit, maxRetries)); r.Max == 0 {
			if r.LastUnlimited {
				timeout = 0
			}
			return nil, timeout
		}
	}
	return &r, timeout
}

// overrideStatuses returns the HTTP statuses of a list such as "5xx,gateway-error,429,500-504". It
// ignores invalid members. The result ok is false only if list is "".
func overrideStatuses(list string) (statuses []Status, ok bool) {
	if list == "" {
		return nil, false
	}
	statuses = []Status{}
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
	codes = []GRPCStatus{}
	rows := [...]struct {
		name string
		code uint32
	}{{"cancelled", 1}, {"deadline-exceeded", 4}, {"resource-exhausted", 8}, {"internal", 13}, {"unavailable", 14}}
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		for _, k := range rows {
			if strings.EqualFold(name, k.name) {
				codes = append(codes, GRPCStatus{k.code, k.code})
			}
		}
	}
	return codes, true
}

// overrideDuration parses a whole number with the unit ms, s, m, h or d. 0 needs no unit. It
// returns false if s looks different.
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
