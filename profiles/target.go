package profiles

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/gotower/gotower/internal/authority"
	"github.com/gotower/gotower/internal/panics"
	"github.com/gotower/gotower/layer"
)

// Target is one part of a split.
type Target struct {
	Authority string // a DNS name and a port: "web-v2.default.svc.cluster.local:80"
	Weight    uint32 // share of the requests; a target with 0 receives none
}

// Validate returns the reason why a Router would leave the target out of a split, or nil if
// the target is valid. The authority must be a DNS name, not an IP address, with a port
// from 1 to 65535.
func (t Target) Validate() error {
	i := strings.LastIndexByte(t.Authority, ':')
	if i < 0 {
		return fmt.Errorf("target %q: no port", t.Authority)
	}
	if port, err := strconv.ParseUint(t.Authority[i+1:], 10, 16); err != nil || port == 0 {
		return fmt.Errorf("target %q: port is not from 1 to 65535", t.Authority)
	}
	if !isName(t.Authority[:i]) {
		return fmt.Errorf("target %q: not a DNS name", t.Authority)
	}
	return nil
}

// isName reports whether s is a DNS name: labels of letters, digits, '-' and '_', with an optional
// dot at the end. The last label must not have only digits, as in an IPv4 address.
func isName(s string) bool {
	s = strings.TrimSuffix(s, ".")
	if s == "" || len(s) > 253 {
		return false
	}
	last := ""
	for label := range strings.SplitSeq(s, ".") {
		if !isLabel(label) {
			return false
		}
		last = label
	}
	return strings.Trim(last, "0123456789") != ""
}

func isLabel(s string) bool {
	if s == "" || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !isAlphanumeric(c) && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

func isAlphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// Endpoint is the address of a destination that has only one address, such as the IP
// address of a pod.
type Endpoint struct {
	Addr   netip.AddrPort
	Labels map[string]string // for metrics and tap ("pod", "zone")
	Weight uint32            // 10 000 is one unit; 0 means unspecified; a Router ignores it

	Protocol   Protocol // the protocol that the endpoint supports
	ServerName string   // TLS server name; "" means cleartext
	Identity   string   // TLS identity expected of the peer (DNS-like name or URI)
	Authority  string   // replaces the authority of requests; "" keeps it
	OpaquePort uint16   // port that accepts linkerd's opaque transport; 0 means none

	// PingInterval and PingTimeout configure the keep-alive of HTTP/2 connections. A PING
	// is sent when nothing was received for PingInterval. The connection is closed if the
	// answer takes longer than PingTimeout. A PingInterval of 0 means no PING.
	PingInterval time.Duration
	PingTimeout  time.Duration
}

// Protocol is a hint about the protocol of an [Endpoint].
type Protocol uint8

// The protocol hints.
const (
	UnknownProtocol Protocol = iota
	H2Protocol               // HTTP/2
	OpaqueProtocol           // forwarded without protocol detection
)

// String returns the address.
func (e *Endpoint) String() string { return e.Addr.String() }

// Validate returns the reason why a Router would ignore the endpoint, or nil if the
// endpoint is valid.
func (e *Endpoint) Validate() error {
	switch {
	case !e.Addr.IsValid() || e.Addr.Port() == 0:
		return fmt.Errorf("endpoint %v: want an IP address and a port", e.Addr)
	case e.Protocol > OpaqueProtocol:
		return fmt.Errorf("endpoint %v: unknown protocol %d", e.Addr, e.Protocol)
	case (e.ServerName == "") != (e.Identity == ""):
		return fmt.Errorf("endpoint %v: a TLS server name needs an identity, and the reverse", e.Addr)
	case e.Authority != "" && !authority.Valid(e.Authority):
		return fmt.Errorf("endpoint %v: authority %q is not a host with an optional port", e.Addr, e.Authority)
	}
	return nil
}

// WithForward sends requests to the [Endpoint] of the profile if [Profile.Dispatch] returns
// [ToEndpoint]. The targets of the profile are not used then. Routes still apply, unlike in
// linkerd's proxy, because linkerd's controller sends no routes together with an endpoint. An
// invalid endpoint is ignored. Without this option a Router ignores all endpoints.
//
// mk makes the service of an endpoint. It is called for each endpoint that is not deeply equal to
// the previous one. mk must release the services of earlier endpoints.
func WithForward[Req, Rsp any](mk layer.MakeService[*Endpoint, Req, Rsp]) Option[Req, Rsp] {
	return func(o *options[Req, Rsp]) { o.forward = mk }
}

// endpointService is an endpoint, and the service that the function of WithForward made for it. A
// Router keeps them until a profile has another endpoint.
type endpointService[Req, Rsp any] struct {
	endpoint *Endpoint
	svc      layer.Service[Req, Rsp]
}

// forwardOf returns a split that has only the endpoint of p. It returns false if requests
// must not be forwarded to an endpoint. It calls drop for an invalid endpoint. The caller
// must hold mu.
func (r *Router[Req, Rsp]) forwardOf(p *Profile, drop func(error)) (s split[Req, Rsp], ok bool) {
	if r.forward == nil || p.Endpoint == nil {
		return s, false
	}
	if err := p.Endpoint.Validate(); err != nil {
		drop(err)
		return s, false
	}
	d := p.Dispatch(r.target)
	if d.To != ToEndpoint {
		return s, false
	}
	if r.forwarded.endpoint == nil || !reflect.DeepEqual(r.forwarded.endpoint, d.Endpoint) {
		var svc layer.Service[Req, Rsp]
		err := panics.Contain(func() { svc = r.forward(d.Endpoint) })
		if svc == nil {
			drop(fmt.Errorf("endpoint: %w", cmp.Or(err, errors.New("WithForward returned no service"))))
			return s, false
		}
		r.forwarded = endpointService[Req, Rsp]{d.Endpoint, svc}
	}
	s.apex = d.Authority
	s.add(Target{Authority: d.Authority, Weight: 1}, r.forwarded.svc)
	return s, true
}
