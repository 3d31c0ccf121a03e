package meters

import (
	"context"
	"errors"
	"net/http"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// failureFamilies are the errors of the proxy itself in one direction.
type failureFamilies struct{ http, tcp *family[prometheus.Counter] }

func (m *Meters) failureFamilies(d Direction) failureFamilies {
	return failureFamilies{
		http: permanent(m.counters(string(d)+"_http_errors_total", "Requests that the proxy answered itself, because of an error.")),
		tcp:  m.counters(string(d)+"_tcp_errors_total", "Connections that ended with an error of the proxy."),
	}
}

// HTTPErrors is a layer that counts the errors that the proxy answers itself, by
// [ErrorKind]. Place it above all layers that may fail. Requests that a policy denied do
// not count, and neither do requests whose client left.
//
// Admission: none of its own; Ready is forwarded.
//
// Cancellation: a request canceled by its caller does not count.
//
// Body: not touched. Errors of a response body do not count.
//
// Errors: forwarded. Rejections count, because no layer above sends the request elsewhere.
//
// Cost: an indirect call if there is no error.
func (m *Meters) HTTPErrors(d Direction) Layer {
	count := m.errorsOf(m.failures[d].http, string(d)+" errors", ErrorKind)
	return func(next httplayer.Service) httplayer.Service { return &failing{next, count} }
}

type failing struct {
	httplayer.Service
	count func(netip.AddrPort, error)
}

func (f *failing) Call(ctx context.Context, req *http.Request) (*http.Response, error) {
	rsp, err := f.Service.Call(ctx, req)
	if err != nil {
		f.count(netip.AddrPort{}, err)
	}
	return rsp, err
}

func (f *failing) Next() httplayer.Service { return f.Service }

func (f *failing) Describe() layer.Node { return layer.Node{Name: "metrics"} }

// TCPErrors returns a function that counts the errors that end connections, by
// tcplayer.ErrorKind and by the original destination as target_addr. The label is left out
// for addresses beyond the first thousand. nil and the errors that HTTPErrors does not count
// do not count. The function is safe for concurrent use.
func (m *Meters) TCPErrors(d Direction) func(target netip.AddrPort, err error) {
	return m.errorsOf(m.failures[d].tcp, string(d)+" errors", tcplayer.ErrorKind)
}

func (m *Meters) errorsOf(f *family[prometheus.Counter], limit string, kind func(error) string) func(netip.AddrPort, error) {
	type key struct {
		target netip.AddrPort
		kind   string
	}
	counts := newLookup(func(k key) *handle[prometheus.Counter] {
		labels := Labels{"error": k.kind}
		if !k.target.IsValid() {
			return f.lazy(fixed(labels))
		}
		target := k.target.String()
		return f.lazy(m.limited(limit, target+" "+k.kind, labels.With(Labels{"target_addr": target}), labels))
	})
	return func(target netip.AddrPort, err error) {
		if err == nil || isDenied(err) || isCanceled(err) {
			return
		}
		counts.of(key{target, kind(err)}).get().Inc()
	}
}

const unexpected = "unexpected"

// ErrorKind returns the label error for the error of a request, in linkerd's words:
// "identity required", "gateway loop", "response timeout", or a result of
// tcplayer.ErrorKind. An error with a method ErrorKind() string provides its own, which
// must be one of few.
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

// isShed reports whether err is a rejection for which the client is asked to retry.
func isShed(err error) bool {
	status, _ := httplayer.StatusFromError(err)
	return status == http.StatusServiceUnavailable && errors.Is(err, layer.ErrNotReady) && !errors.Is(err, layer.ErrClosed)
}

// timeoutKind returns the kind of a timeout: of a handshake, or of a response.
func timeoutKind(err error) string {
	var at *layer.Error
	if errors.As(err, &at) && at.Layer == "tls" {
		return "tls detection timeout"
	}
	return "response timeout"
}

// isDenied reports whether a policy denied the request. linkerd counts denials apart from
// errors.
func isDenied(err error) bool {
	var status *httplayer.StatusError
	return errors.As(err, &status) && (status.Code == http.StatusForbidden || status.Code == http.StatusUnauthorized)
}

// isCanceled reports whether err only means that the client left.
func isCanceled(err error) bool {
	return errors.Is(err, context.Canceled) && !errors.Is(err, layer.ErrClosed)
}
