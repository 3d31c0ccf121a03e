package httpclient

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/internal/authority"
	"github.com/gotower/gotower/internal/grpcunary"
	"github.com/gotower/gotower/layer/httplayer"
)

// HealthCheck is a function that checks one endpoint. It returns nil if the endpoint is healthy.
type HealthCheck = discover.HealthCheck[*http.Request, *http.Response]

// WithHealthCheck checks each endpoint in the background. An endpoint that fails its check
// gets no requests while another endpoint is healthy. The zero policy checks each endpoint
// every 5 s. A nil check or an invalid policy panics.
func WithHealthCheck(check HealthCheck, p discover.HealthPolicy) Option {
	if check == nil {
		panic("httpclient: nil HealthCheck")
	}
	if err := p.Validate(); err != nil {
		panic("httpclient: " + err.Error())
	}
	return func(o *options) { o.healthCheck, o.healthPolicy = check, p }
}

// CheckHTTP returns a check that sends a GET request for path, such as "/healthz", to the
// endpoint. It is [CheckRequest] with this path and the defaults.
func CheckHTTP(path string) HealthCheck { return CheckRequest(HTTPCheck{Path: path}) }

// HTTPCheck describes the request of [CheckRequest] and the response that is expected.
type HTTPCheck struct {
	Path   string // path with an optional query, such as "/healthz"
	Method string // the default is GET

	// Host is the request's host, for servers that know only their public name. The default is the
	// target, or its domain if the target is a name of SRV records.
	Host string

	Header   http.Header // fields of the request; must not be modified later
	Statuses []int       // the statuses of a healthy endpoint; the default is 200 to 299
}

// CheckRequest returns a check that sends an HTTP request without a body to the endpoint. The endpoint
// is healthy if the response status is one of those expected. Redirects are not followed. CheckRequest
// panics if c.Path is not a path with an optional query.
func CheckRequest(c HTTPCheck) HealthCheck {
	u, err := url.ParseRequestURI(c.Path)
	if err != nil || !strings.HasPrefix(c.Path, "/") {
		panic(fmt.Sprintf("httpclient: CheckRequest: path is %q, must begin with /", c.Path))
	}
	c.Statuses = slices.Clone(c.Statuses)
	return func(ctx context.Context, t discover.Target, svc httplayer.Service) error {
		// Checks of several endpoints run at the same time, so each has its own URL.
		target := *u
		target.Scheme, target.Host = "http", cmp.Or(c.Host, authority.Domain(t.Name))
		header := c.Header.Clone()
		if header == nil {
			header = make(http.Header)
		}
		req := &http.Request{
			Method: cmp.Or(c.Method, http.MethodGet), URL: &target, Host: target.Host, Header: header, ProtoMajor: 1, ProtoMinor: 1,
		}
		rsp, err := httplayer.RoundTripper(svc).RoundTrip(req.WithContext(ctx))
		if err != nil {
			return err
		}
		defer rsp.Body.Close()
		_, _ = io.CopyN(io.Discard, rsp.Body, drainLimit) // so that the connection can be reused
		if healthy := slices.Contains(c.Statuses, rsp.StatusCode) || len(c.Statuses) == 0 && rsp.StatusCode/100 == 2; !healthy {
			return errors.New("status " + rsp.Status)
		}
		return nil
	}
}

const drainLimit = 64 << 10 // the bytes of a response that are read, so that the connection can be reused

// CheckGRPC returns a check that calls the method Check of grpc.health.v1.Health for the
// given service. "" means the whole server. The endpoint is healthy if the response is
// SERVING.
func CheckGRPC(service string) HealthCheck {
	// HealthCheckRequest consists of one field, the service, with the number 1.
	message := []byte{}
	if service != "" {
		message = binary.AppendUvarint([]byte{0x0a}, uint64(len(service)))
		message = append(message, service...)
	}
	return func(ctx context.Context, t discover.Target, svc httplayer.Service) error {
		answer, err := grpcunary.Call(ctx, httplayer.RoundTripper(svc), authority.Domain(t.Name), "/grpc.health.v1.Health/Check", message)
		if err != nil {
			return err
		}
		// HealthCheckResponse consists of one field, the status, with the number 1. 1 is SERVING.
		if string(answer) != "\x08\x01" {
			return fmt.Errorf("the answer is % x, must be SERVING", answer)
		}
		return nil
	}
}

// CheckTCP returns a check that connects to the endpoint's address. The endpoint is healthy if
// the connection succeeds.
func CheckTCP() HealthCheck {
	return func(ctx context.Context, t discover.Target, _ httplayer.Service) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", t.Endpoint.Addr.String())
		if err != nil {
			return err
		}
		return conn.Close()
	}
}
