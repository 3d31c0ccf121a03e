package settings

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// finish checks and completes the settings that depend on several variables.
func (r *reader) finish(s *Settings) {
	r.finishIdentity(s)
	r.finishControl(s)
	r.finishPolicy(s)
	r.finishOrigin(s)
	for _, c := range []struct {
		of string
		*Connect
	}{{"OUTBOUND_CONNECT", &s.Outbound.Connect}, {"INBOUND_CONNECT", &s.Inbound.Connect}, {"CONTROL_CONNECT", &s.Control.Connect}} {
		r.finishBackoff(c.of, c.Connect)
	}
	r.finishKeepAlive(s, "OUTBOUND_CONNECT", &s.Outbound.Connect.Socket)
	r.finishKeepAlive(s, "OUTBOUND_ACCEPT", &s.Outbound.Accept)
	r.finishKeepAlive(s, "INBOUND_CONNECT", &s.Inbound.Connect.Socket)
	r.finishKeepAlive(s, "INBOUND_ACCEPT", &s.Inbound.Accept)
	if s.Outbound.Ingress && !r.has("OUTBOUND_DISABLE_INFORMATIONAL_HEADERS") {
		s.Outbound.Quiet = true
	}
	if s.Tap.Disabled {
		s.Tap.Name = ""
	}
	if s.Identity != nil && s.TapServed() && !r.has("CONTROL_LISTEN_ADDR") {
		s.Tap.Listen = netip.AddrPortFrom(netip.IPv4Unspecified(), s.Tap.Listen.Port()) // all clients of this address use TLS
	}
}

// maxKeepAlive is the limit of Linux. Connections with a longer one would fail.
const maxKeepAlive = 32767 * time.Second

func (r *reader) finishKeepAlive(s *Settings, side string, of *Socket) {
	if of.KeepAlive > maxKeepAlive {
		r.warnReplaced(s, side+"_KEEPALIVE", of.KeepAlive, maxKeepAlive)
		of.KeepAlive = maxKeepAlive
	}
}

// warnReplaced adds a warning that a duration is replaced by another.
func (r *reader) warnReplaced(s *Settings, name string, configured, used time.Duration) {
	s.Warnings = append(s.Warnings, fmt.Sprintf("%s is %v: %v is used instead", r.where(name), configured, used))
}

// TapServed reports whether tap is served: not if TAP_DISABLED is set, and with an
// identity only if TAP_SVC_NAME is set.
func (s *Settings) TapServed() bool {
	return !s.Tap.Disabled && (s.Identity == nil || s.Tap.Name != "")
}

func (r *reader) finishIdentity(s *Settings) {
	if r.has("IDENTITY_DISABLED") {
		r.problem("IDENTITY_DISABLED", "is no longer supported: leave the other IDENTITY variables out")
	}
	if !r.has("IDENTITY_SVC_ADDR", "IDENTITY_SVC_NAME", "IDENTITY_DIR", "IDENTITY_TRUST_ANCHORS", "IDENTITY_TOKEN_FILE",
		"IDENTITY_LOCAL_NAME", "IDENTITY_SERVER_ID", "IDENTITY_SERVER_NAME") {
		s.Identity = nil
		return
	}
	const why = "it is required for an identity"
	i := s.Identity
	r.require(why, "IDENTITY_SVC_ADDR", "IDENTITY_DIR", "IDENTITY_TRUST_ANCHORS", "IDENTITY_TOKEN_FILE")
	if i.Controller.Addr != "" && !isLoopback(i.Controller.Addr) {
		r.require("the authority is not on this machine", "IDENTITY_SVC_NAME")
	}
	switch {
	case r.has("IDENTITY_SERVER_ID", "IDENTITY_SERVER_NAME"):
		r.require(why, "IDENTITY_SERVER_ID", "IDENTITY_SERVER_NAME")
	case r.has("IDENTITY_LOCAL_NAME"):
		i.ServerID = i.ServerName
	default:
		r.require(why, "IDENTITY_LOCAL_NAME")
	}
	if i.MaxRefresh < i.MinRefresh {
		r.problem("IDENTITY_MAX_REFRESH", fmt.Sprintf("%v must be at least IDENTITY_MIN_REFRESH, %v", i.MaxRefresh, i.MinRefresh))
	}
}

func (r *reader) finishControl(s *Settings) {
	c := &s.Control
	r.require("host:port of a destination controller", "DESTINATION_SVC_ADDR")
	switch d := c.Destination; {
	case s.Identity == nil && d.Name != "":
		s.Warnings = append(s.Warnings, r.where("DESTINATION_SVC_NAME")+
			" is not verified: without an identity the connection to the controller is cleartext")
	case s.Identity != nil && d.Addr != "" && !isLoopback(d.Addr):
		r.require("the controller is not on this machine", "DESTINATION_SVC_NAME")
	}
	if !r.has("DESTINATION_GET_SUFFIXES") {
		c.GetSuffixes = Suffixes{""}
	}
	outbound := s.Outbound.Connect.Backoff
	if !r.has("CONTROL_CONNECT_EXP_BACKOFF_MIN", "CONTROL_CONNECT_EXP_BACKOFF_MAX") {
		c.Connect.Backoff.Min, c.Connect.Backoff.Max = outbound.Min, outbound.Max
	}
	if !r.has("CONTROL_CONNECT_EXP_BACKOFF_JITTER") {
		c.Connect.Backoff.Jitter = outbound.Jitter
	}
	r.finishStreams(s)
	if c.DNS.MaxTTL > 0 && c.DNS.MaxTTL < c.DNS.MinTTL {
		r.problem("DNS_MAX_TTL", "must be at least "+r.where("DNS_MIN_TTL"))
	}
}

// minStreamLimit is the smallest idle limit and lifetime of a stream.
const minStreamLimit = 10 * time.Second

// finishStreams checks the order of the stream limits; 0 means no limit.
func (r *reader) finishStreams(s *Settings) {
	last, lower := "", time.Duration(0)
	for _, limit := range []struct {
		name string
		time.Duration
		minimum time.Duration
	}{
		{"CONTROL_STREAM_INITIAL_TIMEOUT", s.Control.Streams.Initial, 0},
		{"CONTROL_STREAM_IDLE_TIMEOUT", s.Control.Streams.Idle, minStreamLimit},
		{"CONTROL_STREAM_LIFETIME", s.Control.Streams.Lifetime, minStreamLimit},
	} {
		switch {
		case limit.Duration == 0:
			continue
		case limit.Duration < lower:
			r.problem(limit.name, "must be at least "+r.where(last))
		default:
			last, lower = limit.name, limit.Duration
		}
		if limit.Duration < limit.minimum && !isLoopback(s.Control.Destination.Addr) {
			r.warnReplaced(s, limit.name, limit.Duration, limit.minimum)
		}
	}
}

func (r *reader) finishPolicy(s *Settings) {
	p := s.Inbound.DefaultPolicy
	clusterPolicies := []DefaultPolicy{ClusterAuthenticated, ClusterUnauthenticated, Audit}
	if slices.Contains(clusterPolicies, p) && len(s.Policy.ClusterNetworks) == 0 {
		r.problem("INBOUND_DEFAULT_POLICY", string(p)+" needs POLICY_CLUSTER_NETWORKS")
	}
	if s.Identity != nil {
		return
	}
	const rejectsAll = " without an identity: all connections are rejected, because TLS is not terminated"
	if p == AllAuthenticated || p == ClusterAuthenticated {
		s.Warnings = append(s.Warnings, r.where("INBOUND_DEFAULT_POLICY")+"="+string(p)+rejectsAll)
	}
	for name, ports := range map[string]Ports{
		"INBOUND_PORTS_REQUIRE_IDENTITY": s.Inbound.RequireIdentity, "INBOUND_PORTS_REQUIRE_TLS": s.Inbound.RequireTLS,
	} {
		if len(ports) > 0 {
			s.Warnings = append(s.Warnings, r.where(name)+rejectsAll)
		}
	}
}

// finishOrigin warns that a client can forge a PROXY header.
func (r *reader) finishOrigin(s *Settings) {
	if s.Inbound.Origin.Kind != ProxyProtocol || len(s.Inbound.IPs) > 0 {
		return
	}
	name := "INBOUND_ORIGIN"
	if !r.has(name) {
		name = "ORIGIN"
	}
	s.Warnings = append(s.Warnings, r.where(name)+"=proxy-protocol forwards a client to any address in its PROXY header: set "+
		r.where("INBOUND_IPS")+" to the addresses of this pod, and permit only the load balancer to reach "+r.where("INBOUND_LISTEN_ADDR"))
}

func (r *reader) finishBackoff(of string, c *Connect) {
	minName, maxName := of+"_EXP_BACKOFF_MIN", of+"_EXP_BACKOFF_MAX"
	switch {
	case r.has(minName) != r.has(maxName):
		r.problem(minName, "must be set together with "+r.where(maxName))
	case of == "CONTROL_CONNECT" && !r.has(minName, of+"_EXP_BACKOFF_JITTER"): // the problem is reported for outbound
	default:
		if err := c.Backoff.Validate(); err != nil {
			r.problem(of+"_EXP_BACKOFF_*", err.Error())
		}
	}
}

// isLoopback reports whether host:port is on this machine.
func isLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.IsLoopback()
	}
	return strings.EqualFold(strings.TrimSuffix(host, "."), "localhost")
}
