package meters

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"slices"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// failureFamilies contains the metrics of requests and connections that fail with an error of the
// proxy, for one direction.
type failureFamilies struct{ http, tcp, refused *family[*counterValue] }

// failureFamilies makes the metrics for errors in one direction.
func (m *Meters) failureFamilies(d Direction) failureFamilies {
	return failureFamilies{
		http: permanent(m.counters(string(d)+"_http_errors_total", "Requests that the proxy answered itself, because of an error.")),
		tcp:  m.counters(string(d)+"_tcp_errors_total", "Connections that ended with an error of the proxy."),
		refused: permanent(m.counters(string(d)+"_http_refused_total",
			"Requests that were malformed, too large or too slow, so that no other metric has them.")),
	}
}

// HTTPErrors returns a layer that counts requests for which an inner layer returns an error, so
// that the proxy itself responds. The label error is the [ErrorKind]. Requests that a policy
// rejects are not counted. The layer should be outside of all layers that may return errors.
//
// After an error, origin returns the request's original destination, for the label target_addr, and
// the server in its policy, for the labels srv_*. A nil origin adds no labels. After a thousand
// different sets of labels, further requests only have the label error.
//
// Admission: Ready is forwarded.
//
// Cancellation: requests that the client cancels are not counted.
//
// Body: not changed. Errors of a response body are not counted.
//
// Errors: forwarded. Rejections count as errors, because no outer layer sends the request again.
//
// Cost: an indirect call for a request without an error.
func (m *Meters) HTTPErrors(d Direction, origin func(context.Context) (netip.AddrPort, Resource)) Layer {
	if origin == nil {
		// Without origin, errors only have the label error.
		origin = func(context.Context) (netip.AddrPort, Resource) { return netip.AddrPort{}, Resource{} }
	}
	count := m.errorsOf(m.failures[d].http, string(d)+" errors", ErrorKind)
	return func(next httplayer.Service) httplayer.Service { return &failing{measured{next}, count, origin} }
}

// HTTPRefused returns a function for httplayer.WithRefused that counts refused requests by the
// response's status, in the label status_code.
func (m *Meters) HTTPRefused(d Direction) func(context.Context, httplayer.Refusal) {
	// Each status gets its series at the first response that has it.
	counts := newLookup(func(status int) *handle[*counterValue] {
		return m.failures[d].refused.lazy(fixed(Labels{"status_code": statusLabel(status)}))
	})
	return func(_ context.Context, r httplayer.Refusal) { counts.get(r.Status).get().Inc() }
}

// failing counts requests that fail.
type failing struct {
	measured
	count  func(netip.AddrPort, Resource, error)
	origin func(context.Context) (netip.AddrPort, Resource)
}

// Call counts the request if it ends with an error.
func (f *failing) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	rsp, err := f.Service.Call(ctx, req)
	// Only failures need the origin, so requests without an error do not pay for it.
	if err != nil {
		target, server := f.origin(ctx)
		f.count(target, server, err)
	}
	return rsp, err
}

// TCPErrors returns a function that counts errors that end connections. The labels are error, from
// tcplayer.ErrorKind, and target_addr, the original destination. After a thousand different pairs,
// further ones lack target_addr. The function ignores nil, cancellations by the client and
// rejections by a policy. It is safe for concurrent use.
func (m *Meters) TCPErrors(d Direction) func(target netip.AddrPort, err error) {
	count := m.errorsOf(m.failures[d].tcp, string(d)+" errors", tcplayer.ErrorKind)
	return func(target netip.AddrPort, err error) { count(target, Resource{}, err) }
}

// errorsOf returns a function that counts errors in f. The label error is kind's result. If target
// is valid, it becomes the label target_addr, and a server with a kind becomes srv_*. After a
// thousand different sets of labels, further ones only have error. limit is the kind of name with
// which [Meters.limited] enforces this.
func (m *Meters) errorsOf(
	f *family[*counterValue], limit string, kind func(error) string,
) func(target netip.AddrPort, server Resource, err error) {
	// A key of values, not labels, finds the series of a repeated error without building its labels again.
	type key struct {
		target netip.AddrPort
		server Resource
		kind   string
	}
	counts := newLookup(func(k key) *handle[*counterValue] {
		labels := Labels{"error": k.kind}
		// Without a destination, the labels are few and need no limit.
		if !k.target.IsValid() {
			return f.lazy(fixed(labels))
		}
		series := labels.With(Labels{"target_addr": k.target.String()})
		if k.server.Kind != "" {
			series = series.With(Server(k.server, k.target))
		}
		// Beyond the limit, only the kind of error is counted.
		return f.lazy(m.limited(limit, series.key(), series, func(Labels) labelSet { return fixed(labels) }))
	})
	return func(target netip.AddrPort, server Resource, err error) {
		// Linkerd's proxy counts neither of these as errors of the proxy.
		if err == nil || isDenied(err) || isCanceled(err) {
			return
		}
		counts.get(key{target, server, kind(err)}).get().Inc()
	}
}

// unexpected is the label error for errors of no other kind.
const unexpected = "unexpected"

// ErrorKind returns the label error for a failed request. If err has a method ErrorKind() string,
// its result is used. It should have few different results, because each makes a series. Otherwise
// the values are those of linkerd's proxy, such as "identity required" and "response timeout", or
// of tcplayer.ErrorKind.
func ErrorKind(err error) string {
	var kind interface{ ErrorKind() string }
	var identity *httplayer.IdentityError
	var status *httplayer.StatusError
	// The order matters: the specific kinds come first, because tcplayer.ErrorKind only knows connections.
	switch {
	case errors.As(err, &kind):
		return kind.ErrorKind()
	case errors.Is(err, layer.ErrFailFast):
		return "failfast"
	case isShed(err):
		return "loadshed"
	case errors.As(err, &identity):
		return "identity required"
	case errors.As(err, &status) && status.Code == http.StatusLoopDetected:
		return "gateway loop"
	case errors.Is(err, layer.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return timeoutKind(err)
	}
	return tcplayer.ErrorKind(err)
}

// isShed reports whether a layer rejected the request with status 503 because it had no free slot
// or token. Closed services do not count.
func isShed(err error) bool {
	status, _ := httplayer.StatusFromError(err)
	return status == http.StatusServiceUnavailable && errors.Is(err, layer.ErrNotReady) && !errors.Is(err, layer.ErrClosed)
}

// timeoutKind returns the label error for a timeout: "tls detection timeout" for a TLS handshake,
// and otherwise "response timeout".
func timeoutKind(err error) string {
	var layerErr *layer.Error
	if errors.As(err, &layerErr) && layerErr.Layer == "tls" {
		return "tls detection timeout"
	}
	return "response timeout"
}

// isDenied reports whether err has the status of a rejection by a policy: 401, 403, 404 or 429.
// Linkerd's proxy does not count these as errors.
func isDenied(err error) bool {
	var status *httplayer.StatusError
	return errors.As(err, &status) && slices.Contains([]int{
		http.StatusForbidden, http.StatusUnauthorized, http.StatusNotFound, http.StatusTooManyRequests,
	}, status.Code)
}

// isCanceled reports whether the client canceled the request. If err also matches layer.ErrClosed,
// the proxy ended the request instead.
func isCanceled(err error) bool {
	return errors.Is(err, context.Canceled) && !errors.Is(err, layer.ErrClosed)
}
