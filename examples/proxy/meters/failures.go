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

// failureFamilies has the metrics of requests and connections that fail with an error of
// the proxy, for one direction.
type failureFamilies struct{ http, tcp *family[*counterValue] }

func (m *Meters) failureFamilies(d Direction) failureFamilies {
	return failureFamilies{
		http: permanent(m.counters(string(d)+"_http_errors_total", "Requests that the proxy answered itself, because of an error.")),
		tcp:  m.counters(string(d)+"_tcp_errors_total", "Connections that ended with an error of the proxy."),
	}
}

// HTTPErrors returns a layer that counts the requests for which an inner layer returns an
// error. The proxy itself responds to these requests. The label error is the [ErrorKind].
// Requests that a policy rejects are not counted. Place the layer outside all layers that
// may return an error.
//
// Admission: Ready is forwarded.
//
// Cancellation: a request that the client cancels is not counted.
//
// Body: not changed. Errors of a response body are not counted.
//
// Errors: forwarded. A rejection is counted as an error, because no outer layer sends the
// request again.
//
// Cost: an indirect call for a request without an error.
func (m *Meters) HTTPErrors(d Direction) Layer {
	count := m.errorsOf(m.failures[d].http, string(d)+" errors", ErrorKind)
	return func(next httplayer.Service) httplayer.Service { return &failing{measured{next}, count} }
}

// failing is a service that counts the errors of requests.
type failing struct {
	measured
	count func(netip.AddrPort, error)
}

func (f *failing) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	rsp, err := f.Service.Call(ctx, req)
	if err != nil {
		f.count(netip.AddrPort{}, err)
	}
	return rsp, err
}

// TCPErrors returns a function that counts errors that end connections. The labels are
// error, from tcplayer.ErrorKind, and target_addr, the original destination. After a
// thousand pairs of these labels, further pairs have no target_addr. The function does not
// count nil, cancellations by the client, and rejections by a policy. The function is safe
// for concurrent use.
func (m *Meters) TCPErrors(d Direction) func(target netip.AddrPort, err error) {
	return m.errorsOf(m.failures[d].tcp, string(d)+" errors", tcplayer.ErrorKind)
}

// errorsOf returns a function that counts errors in f by two labels. The label error is the
// result of the callback kind. The label target_addr is the original destination, if it is
// valid. After a thousand pairs of these labels, further pairs have no target_addr.
// [Meters.limited] applies this limit, under the name in the argument limit.
func (m *Meters) errorsOf(f *family[*counterValue], limit string, kind func(error) string) func(netip.AddrPort, error) {
	type key struct {
		target netip.AddrPort
		kind   string
	}
	counts := newLookup(func(k key) *handle[*counterValue] {
		labels := Labels{"error": k.kind}
		if !k.target.IsValid() {
			return f.lazy(fixed(labels))
		}
		target := k.target.String()
		own := labels.With(Labels{"target_addr": target})
		return f.lazy(m.limited(limit, target+" "+k.kind, own, func(Labels) labelSet { return fixed(labels) }))
	})
	return func(target netip.AddrPort, err error) {
		if err == nil || isDenied(err) || isCanceled(err) {
			return
		}
		counts.of(key{target, kind(err)}).get().Inc()
	}
}

// unexpected is the value of the label error for an error of no other kind.
const unexpected = "unexpected"

// ErrorKind returns the value of the label error for err, the error of a request. If err
// has a method ErrorKind() string, the value is its result. The method must have few
// different results, because each makes a series. For other errors, the values are those
// of linkerd's proxy, such as "identity required" and "response timeout", or those of
// tcplayer.ErrorKind.
func ErrorKind(err error) string {
	var own interface{ ErrorKind() string }
	var identity *httplayer.IdentityError
	var status *httplayer.StatusError
	switch {
	case errors.As(err, &own):
		return own.ErrorKind()
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

// isShed reports whether a layer rejected the request with status 503, because the layer
// had no free slot or token. The result is false for a service that is closed.
func isShed(err error) bool {
	status, _ := httplayer.StatusFromError(err)
	return status == http.StatusServiceUnavailable && errors.Is(err, layer.ErrNotReady) && !errors.Is(err, layer.ErrClosed)
}

// timeoutKind returns the value of the label error for err, which is a timeout. The value
// is "tls detection timeout" if a TLS handshake timed out, and "response timeout"
// otherwise.
func timeoutKind(err error) string {
	var at *layer.Error
	if errors.As(err, &at) && at.Layer == "tls" {
		return "tls detection timeout"
	}
	return "response timeout"
}

// isDenied reports whether err has the status of a rejection by a policy: 401, 403, 404
// or 429. Linkerd's proxy does not count such requests as errors.
func isDenied(err error) bool {
	var status *httplayer.StatusError
	return errors.As(err, &status) && slices.Contains([]int{
		http.StatusForbidden, http.StatusUnauthorized, http.StatusNotFound, http.StatusTooManyRequests,
	}, status.Code)
}

// isCanceled reports whether err means that the client has canceled the request. It
// returns false if err also matches layer.ErrClosed, because the proxy then ended the
// request.
func isCanceled(err error) bool {
	return errors.Is(err, context.Canceled) && !errors.Is(err, layer.ErrClosed)
}
