package inbound

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/tcplayer"
)

// Gateway is the proxy's outbound side, as seen by a cluster's gateway: it receives what arrives
// from other clusters. Targets have the form name:port. All methods are safe for concurrent use.
type Gateway interface {
	// Request sends req to target.
	Request(ctx context.Context, target string, req *http.Request) (*http.Response, error)

	// Forward forwards conn's bytes to an endpoint of target, and closes conn.
	Forward(ctx context.Context, target string, conn net.Conn) (tcplayer.ByteCount, error)
}

// gateway returns the server for connections whose transport header contains a name. They make the
// proxy its cluster's gateway, as INBOUND_GATEWAY_SUFFIXES does for linkerd's proxy. The policy of
// the proxy's own port applies, because clients in other clusters are not the target's clients.
func (in *Inbound) gateway() tcplayer.Server {
	// accepted checks nothing yet: it adds the port's policy to the context, and counts the client.
	accepted := connections().With("policy", in.withPolicy).With("metrics", in.clientMetrics(false)) // TLS has been terminated
	// Opaque connections are admitted as a whole. HTTP requests are checked one by one in in.http.
	opaque := accepted.With("policy of connections", in.admission).Service(layer.Func[net.Conn, tcplayer.ByteCount](
		func(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
			h, _ := tcplayer.TransportHeaderFromContext(ctx)
			return in.Gateway.Forward(ctx, target(h), conn)
		}))
	requests := accepted.Service(in.http)
	return layer.Func[net.Conn, tcplayer.ByteCount](func(ctx context.Context, conn net.Conn) (tcplayer.ByteCount, error) {
		h, _ := tcplayer.TransportHeaderFromContext(ctx)
		if h.Protocol != tcplayer.Opaque {
			return requests.Call(ctx, conn) // rejects a wrong name with 404
		}
		if in.Gateway == nil || !in.GatewaySuffixes.Contains(h.Name) {
			// A connection's last server closes it, and here it ends.
			_ = conn.Close()
			return tcplayer.ByteCount{}, &layer.Error{Layer: "gateway", Reason: "this proxy is not a gateway to " + h.Name}
		}
		return opaque.Call(ctx, conn)
	})
}

// target returns the target in h, or "" if h has no name.
func target(h tcplayer.TransportHeader) string {
	if h.Name == "" {
		return ""
	}
	return net.JoinHostPort(h.Name, strconv.Itoa(int(h.Port)))
}

// gatewayConn returns conn with this proxy's address as its original destination, which determines
// its policy and metrics.
func gatewayConn(conn net.Conn) net.Conn {
	local, ok := conn.LocalAddr().(*net.TCPAddr)
	if !ok {
		return conn
	}
	addr := local.AddrPort()
	return tcplayer.OverrideAddrs(conn, netip.AddrPort{}, netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()))
}

// Errors for requests to a gateway, with the text of linkerd's proxy.
var (
	errGatewayDomain = &httplayer.StatusError{Code: http.StatusNotFound, GRPC: uint32(codes.NotFound), Reason: "bad gateway domain"}
	errGatewayLoop   = &httplayer.StatusError{
		Code: http.StatusLoopDetected, GRPC: uint32(codes.Aborted), Reason: "gateway loop detected", Close: true,
	}
)

// toTarget sends c's permitted request to the target in its connection's transport header. It adds
// the header Forwarded, by which it recognizes and rejects requests that have passed this gateway
// before.
func (in *Inbound) toTarget(ctx context.Context, req *http.Request, c *client) (*http.Response, error) {
	host, port, err := net.SplitHostPort(c.target)
	// HTTP clients learn by 404 that this proxy is no gateway to the name.
	if err != nil || in.Gateway == nil || !in.GatewaySuffixes.Contains(host) {
		return nil, errGatewayDomain
	}
	// The request comes from this proxy itself, or has passed it before.
	if c.id == in.ID || passed(req.Header["Forwarded"], in.ID) {
		return nil, errGatewayLoop
	}
	// HTTP omits the default port 80 in the Host.
	if port != "80" {
		host = c.target
	}
	// Copy the request and its header, because the caller still owns them.
	forwarded := *req
	forwarded.Header = req.Header.Clone()
	forwarded.Header["Forwarded"] = append(forwarded.Header["Forwarded"], "by="+in.ID+";for="+c.id+";host="+host+";proto=https")
	// In HTTP/1, the Host names the target. An HTTP/2 request keeps its authority.
	if forwarded.ProtoMajor == 1 {
		forwarded.Host = host
	}
	return in.Gateway.Request(ctx, c.target, &forwarded)
}

// passed reports whether the proxy with the identity id added one of the Forwarded fields.
func passed(fields []string, id string) bool {
	for _, field := range fields {
		// Elements are separated by commas and their pairs by semicolons.
		for pair := range strings.FieldsFuncSeq(field, func(r rune) bool { return r == ';' || r == ',' }) {
			if identity, ok := strings.CutPrefix(strings.TrimSpace(pair), "by="); ok && identity == id {
				return true
			}
		}
	}
	return false
}
