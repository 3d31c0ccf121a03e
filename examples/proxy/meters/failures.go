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

// failureFamilies are what went wrong in the proxy itself, by direction.
type failureFamilies struct {
	http, tcp map[Direction]*family[prometheus.Counter]
}

func (m *Meters) failureFamilies() failureFamilies {
	f := failureFamilies{http: map[Direction]*family[prometheus.Counter]{}, tcp: map[Direction]*family[prometheus.Counter]{}}
	for _, d := range []Direction{Inbound, Outbound} {
		f.http[d] = m.counters(string(d)+"_http_errors_total", "Requests that the proxy answered itself, because of an error.")
		f.tcp[d] = m.counters(string(d)+"_tcp_errors_total", "Connections that ended with an error of the proxy.")
	}
	return f
}

// HTTPErrors is a layer that counts the errors that the proxy answers requests for
// itself, by [ErrorKind]: put it above all that may fail. An error by which a policy
// denied a request is none, and neither is one that says that its client has gone.
//
// Admission: none of its own; Ready is forwarded.
//
// Cancellation: a request that its caller cancelled does not count.
//
// Body: not touched. What breaks off a response does not count.
//
// Errors: passed as they are. Refusals count like others, since nobody above sends a
// request elsewhere.
//
// Cost: nothing but an indirect call while there is no error.
func (m *Meters) HTTPErrors(d Direction) Layer {
	count := m.errorsOf(m.failures.http[d], ErrorKind)
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

// TCPErrors returns what counts the errors that the proxy ends connections with, by
// tcplayer.ErrorKind and by the address that they were for, as target_addr: of a
// thousand at a time, each until a while after its last error, and of none that is
// not valid. What HTTPErrors has for none is none here, and a nil error neither. The
// function is safe for concurrent use.
func (m *Meters) TCPErrors(d Direction) func(target netip.AddrPort, err error) {
	return m.errorsOf(m.failures.tcp[d], tcplayer.ErrorKind)
}

func (m *Meters) errorsOf(f *family[prometheus.Counter], kind func(error) string) func(netip.AddrPort, error) {
	type key struct {
		target netip.AddrPort
		kind   string
	}
	counts := newKeyed(m, func(l *seriesLease, k key) prometheus.Counter {
		labels := Labels{"error": k.kind}
		if k.target.IsValid() {
			labels["target_addr"] = k.target.String()
		}
		return f.bind(l, labels)
	})
	return func(target netip.AddrPort, err error) {
		if err == nil || isDenied(err) || isGone(err) {
			return
		}
		what := kind(err)
		counts.of(key{target, what}, key{kind: what}).Inc()
	}
}

const unexpected = "unexpected"

// ErrorKind returns what the label error says of err that a request failed with,
// in linkerd's words: "identity required", "gateway loop", "response timeout", or
// what tcplayer.ErrorKind says of connections. An error with a method
// ErrorKind() string has its own; give it one of few.
func ErrorKind(err error) string {
	var own interface{ ErrorKind() string }
	var identity *httplayer.IdentityError
	var said *httplayer.StatusError
	switch {
	case errors.As(err, &own):
		return own.ErrorKind()
	case errors.Is(err, layer.ErrFailFast):
		return "failfast"
	case isShed(err):
		return "loadshed"
	case errors.As(err, &identity):
		return "identity required"
	case errors.As(err, &said) && said.Code == http.StatusLoopDetected:
		return "gateway loop"
	case errors.Is(err, layer.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return timeoutKind(err)
	}
	return tcplayer.ErrorKind(err)
}

// isShed reports whether err is a refusal for which a client is told to come again,
// whatever it is that the layer which refused has waited for.
func isShed(err error) bool {
	status, _ := httplayer.StatusOf(err)
	return status == http.StatusServiceUnavailable && errors.Is(err, layer.ErrNotReady) && !errors.Is(err, layer.ErrClosed)
}

// timeoutKind tells a handshake that did not come from a response.
func timeoutKind(err error) string {
	var at *layer.Error
	if errors.As(err, &at) && at.Layer == "tls" {
		return "tls detection timeout"
	}
	return "response timeout"
}

// isDenied reports whether err is an answer that a policy chose. linkerd counts
// those as denials and not as errors.
func isDenied(err error) bool {
	var said *httplayer.StatusError
	return errors.As(err, &said) && (said.Code == http.StatusForbidden || said.Code == http.StatusUnauthorized)
}

// isGone reports whether err says no more than that the client left, which is
// not the proxy's.
func isGone(err error) bool {
	return errors.Is(err, context.Canceled) && !errors.Is(err, layer.ErrClosed)
}
