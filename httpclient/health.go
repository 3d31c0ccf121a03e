package httpclient

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/gotower/gotower/discover"
	"github.com/gotower/gotower/internal/authority"
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
// endpoint. The host of the request is the target, or its domain if the target is a name of SRV
// records. The endpoint is healthy if the status is 2xx. CheckHTTP panics if path is not a path
// with an optional query.
func CheckHTTP(path string) HealthCheck {
	u, err := url.ParseRequestURI(path)
	if err != nil || !strings.HasPrefix(path, "/") {
		panic(fmt.Sprintf("httpclient: CheckHTTP: path is %q, must begin with /", path))
	}
	return func(ctx context.Context, t discover.Target, svc httplayer.Service) error {
		at := *u
		at.Scheme, at.Host = "http", authority.Domain(t.Name)
		req := &http.Request{Method: http.MethodGet, URL: &at, Host: at.Host, Header: make(http.Header), ProtoMajor: 1, ProtoMinor: 1}
		rsp, err := send(ctx, svc, req)
		if err != nil {
			return err
		}
		defer rsp.Body.Close()
		_, _ = io.CopyN(io.Discard, rsp.Body, drainLimit) // so that the connection can be reused
		if rsp.StatusCode/100 != 2 {
			return errors.New("status " + rsp.Status)
		}
		return nil
	}
}

const drainLimit = 64 << 10

// CheckGRPC returns a check that calls the method Check of grpc.health.v1.Health for the
// given service. "" means the whole server. The endpoint is healthy if the response is
// SERVING.
func CheckGRPC(service string) HealthCheck {
	// HealthCheckRequest has one field, the service, with the number 1.
	message := []byte{}
	if service != "" {
		message = binary.AppendUvarint([]byte{0x0a}, uint64(len(service)))
		message = append(message, service...)
	}
	frame := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	return func(ctx context.Context, t discover.Target, svc httplayer.Service) error {
		host := authority.Domain(t.Name)
		req := &http.Request{
			Method: http.MethodPost, URL: &url.URL{Scheme: "http", Host: host, Path: "/grpc.health.v1.Health/Check"}, Host: host,
			Header: http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}}, ProtoMajor: 2,
			Body: io.NopCloser(strings.NewReader(string(frame))), ContentLength: int64(len(frame)),
		}
		rsp, err := send(ctx, svc, req)
		if err != nil {
			return err
		}
		defer rsp.Body.Close()
		answer, err := io.ReadAll(io.LimitReader(rsp.Body, drainLimit))
		if err != nil {
			return err
		}
		status := rsp.Trailer.Get("Grpc-Status")
		if status == "" {
			status = rsp.Header.Get("Grpc-Status")
		}
		// HealthCheckResponse has one field, the status, with the number 1. 1 is SERVING.
		switch {
		case status != "0":
			return fmt.Errorf("grpc-status %q, HTTP status %d", status, rsp.StatusCode)
		case string(answer) != "\x00\x00\x00\x00\x02\x08\x01":
			return fmt.Errorf("the answer is % x, must be SERVING", answer)
		}
		return nil
	}
}

// CheckTCP returns a check that connects to the address of the endpoint. The endpoint is
// healthy if the connection succeeds.
func CheckTCP() HealthCheck {
	return func(ctx context.Context, t discover.Target, _ httplayer.Service) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", t.Endpoint.Addr.String())
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// send sends the request of a check to svc. It closes the request body if svc rejects the
// request.
func send(ctx context.Context, svc httplayer.Service, req *http.Request) (*http.Response, error) {
	return httplayer.RoundTripper(svc).RoundTrip(req.WithContext(ctx))
}
