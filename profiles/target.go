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

// Validate says why a Router would leave the target out, or returns nil: the
// authority must be a DNS name and a port from 1 to 65535; an IP address is
// not a name. A weight of 0 is valid.
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

// isName reports whether s is a DNS name: labels of letters, digits, '-' and
// '_' (service names have them), with an optional dot at the end. A last label
// of digits alone is that of an IPv4 address.
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

// Endpoint is the one place where a destination is served, such as the pod
// whose address was asked for.
type Endpoint struct {
	Addr   netip.AddrPort
	Labels map[string]string // for metrics and tap ("pod", "zone")
	Weight uint32            // 10 000 is one unit, 0 means not said; for those who put it beside others

	Protocol   Protocol // what it is known to speak
	ServerName string   // TLS server name; "" means cleartext
	Identity   string   // TLS identity expected of the peer (DNS-like name or URI)
	Authority  string   // authority to send instead of the request's; "" means none
	OpaquePort uint16   // port that takes opaque transport; 0 means none

	// PingInterval and PingTimeout are the keep-alive of HTTP/2 connections. A PING
	// is sent after an interval in which nothing was received, and a connection is
	// closed if the answer takes longer than the timeout. 0 means no PING.
	PingInterval time.Duration
	PingTimeout  time.Duration
}

// Protocol is a hint of what an [Endpoint] speaks.
type Protocol uint8

// The protocol hints.
const (
	UnknownProtocol Protocol = iota // nothing is known
	H2Protocol                      // HTTP/2
	OpaqueProtocol                  // not to be parsed
)

// String returns the address.
func (e *Endpoint) String() string { return e.Addr.String() }

// Validate says why nobody can be forwarded to e as it says, or returns nil.
func (e *Endpoint) Validate() error {
	switch {
	case !e.Addr.IsValid() || e.Addr.Port() == 0:
		return fmt.Errorf("endpoint %v: want an IP address and a port", e.Addr)
	case e.Protocol > OpaqueProtocol:
		return fmt.Errorf("endpoint %v: protocol %d is not known", e.Addr, e.Protocol)
	case (e.ServerName == "") != (e.Identity == ""):
		return fmt.Errorf("endpoint %v: a TLS server name and an identity go together", e.Addr)
	case e.Authority != "" && !authority.Valid(e.Authority):
		return fmt.Errorf("endpoint %v: authority %q is not a host, with a port or without", e.Addr, e.Authority)
	}
	return nil
}

// WithForward has requests go to the profile's [Endpoint] where [Profile.Dispatch]
// says [ToEndpoint]: without a split, and without a balancer unless mk makes
// one. The routes act there as elsewhere; linkerd's proxy, whose controller
// sends no routes with an endpoint, would not look at them.
//
// mk is asked once for each endpoint that is not deeply equal to that of the
// profile before, so that a service is kept while its endpoint stays; to let go
// of those that went out of use is its own matter. An endpoint that is not
// valid is left out. Without this option a Router does not look at endpoints.
func WithForward[Req, Rsp any](mk layer.MakeService[*Endpoint, Req, Rsp]) Option[Req, Rsp] {
	return optionFunc[Req, Rsp](func(o *options[Req, Rsp]) { o.forward = mk })
}

// forwarded is the endpoint that requests went to last.
type forwarded[Req, Rsp any] struct {
	endpoint *Endpoint
	svc      layer.Service[Req, Rsp]
}

// forwardOf returns the split that has nothing but p's endpoint, or false if
// requests do not go there. It is called with mu held.
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
			drop(fmt.Errorf("endpoint: %w", cmp.Or(err, errors.New("no service was made for it"))))
			return s, false
		}
		r.forwarded = forwarded[Req, Rsp]{d.Endpoint, svc}
	}
	s.apex = d.Authority
	s.add(Target{Authority: d.Authority, Weight: 1}, r.forwarded.svc)
	return s, true
}
