package settings

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// finish validates settings that depend on each other, and sets defaults that depend on other
// settings. It runs after all variables have been read.
func (r *reader) finish(s *Settings) {
	// The order matters: the identity may be removed here, and later checks depend on it.
	r.finishIdentity(s)
	r.finishControl(s)
	r.finishPolicy(s)
	r.finishController(s, s.Traces.Collector, "TRACE_COLLECTOR_SVC_NAME")
	r.finishOrigin(s)
	for _, c := range []struct {
		prefix string
		*Connect
	}{{"OUTBOUND_CONNECT", &s.Outbound.Connect}, {"INBOUND_CONNECT", &s.Inbound.Connect}, {"CONTROL_CONNECT", &s.Control.Connect}} {
		r.finishBackoff(c.prefix, c.Connect)
	}
	r.finishKeepAlive(s, "OUTBOUND_CONNECT", &s.Outbound.Connect.Socket)
	r.finishKeepAlive(s, "OUTBOUND_ACCEPT", &s.Outbound.Accept)
	r.finishKeepAlive(s, "INBOUND_CONNECT", &s.Inbound.Connect.Socket)
	r.finishKeepAlive(s, "INBOUND_ACCEPT", &s.Inbound.Accept)
	// In ingress mode, clients outside the cluster receive responses, so internal headers are left out by default.
	if s.Outbound.Ingress && !r.has("OUTBOUND_DISABLE_INFORMATIONAL_HEADERS") {
		s.Outbound.Quiet = true
	}
	// An empty name turns tap off.
	if s.Tap.Disabled {
		s.Tap.Name = ""
	}
	if s.Identity != nil && s.TapServed() && !r.has("CONTROL_LISTEN_ADDR") {
		s.Tap.Listen = netip.AddrPortFrom(netip.IPv4Unspecified(), s.Tap.Listen.Port()) // safe, because all clients of this address use TLS
	}
}

// maxKeepAlive is the longest keep-alive idle time that Linux accepts. Longer times would make the
// socket option fail.
const maxKeepAlive = 32767 * time.Second

// finishKeepAlive limits the socket's keep-alive time to maxKeepAlive, with a warning. side begins
// the variable's name: OUTBOUND_ACCEPT, for example.
func (r *reader) finishKeepAlive(s *Settings, side string, socket *Socket) {
	if socket.KeepAlive > maxKeepAlive {
		r.warnReplaced(s, side+"_KEEPALIVE", socket.KeepAlive, maxKeepAlive)
		socket.KeepAlive = maxKeepAlive
	}
}

// warnReplaced warns that the proxy uses another value for the variable name than the configured
// one.
func (r *reader) warnReplaced(s *Settings, name string, configured, used time.Duration) {
	s.Warnings = append(s.Warnings, fmt.Sprintf("%s is %v: %v is used instead", r.where(name), configured, used))
}

// TapServed reports whether the proxy serves tap. It does not if TAP_DISABLED is set, or if the
// proxy has an identity but TAP_SVC_NAME is not set.
func (s *Settings) TapServed() bool {
	return !s.Tap.Disabled && (s.Identity == nil || s.Tap.Name != "")
}

// finishIdentity validates the identity's settings. If none of its variables is set, it removes the
// identity from s.
func (r *reader) finishIdentity(s *Settings) {
	if r.has("IDENTITY_DISABLED") {
		r.problem("IDENTITY_DISABLED", "is no longer supported: leave the other IDENTITY variables out")
	}
	if !r.has("IDENTITY_SVC_ADDR", "IDENTITY_SVC_NAME", "IDENTITY_DIR", "IDENTITY_TRUST_ANCHORS", "IDENTITY_TOKEN_FILE",
		"IDENTITY_LOCAL_NAME", "IDENTITY_SERVER_ID", "IDENTITY_SERVER_NAME") {
		// Without an identity, there is nothing to generate. A warning is enough, because the proxy works.
		if s.Identity.Generate {
			s.Warnings = append(s.Warnings, r.where("IDENTITY_GENERATE")+" is ignored: the other variables of an identity are not set")
		}
		s.Identity = nil
		return
	}
	const reason = "it is required for an identity"
	i := s.Identity
	r.require(reason, "IDENTITY_SVC_ADDR", "IDENTITY_DIR", "IDENTITY_TRUST_ANCHORS", "IDENTITY_TOKEN_FILE")
	// A controller on another machine must prove its identity, so its name is required.
	if i.Controller.Addr != "" && !isLoopback(i.Controller.Addr) {
		r.require("the authority is not on this machine", "IDENTITY_SVC_NAME")
	}
	// Either both new variables are set, or the old one that replaces both.
	switch {
	case r.has("IDENTITY_SERVER_ID", "IDENTITY_SERVER_NAME"):
		r.require(reason, "IDENTITY_SERVER_ID", "IDENTITY_SERVER_NAME")
	case r.has("IDENTITY_LOCAL_NAME"):
		// ServerName already holds IDENTITY_LOCAL_NAME, which is both.
		i.ServerID = i.ServerName
	default:
		r.require(reason, "IDENTITY_LOCAL_NAME")
	}
	if i.MaxRefresh < i.MinRefresh {
		r.problem("IDENTITY_MAX_REFRESH", fmt.Sprintf("%v must be at least IDENTITY_MIN_REFRESH, %v", i.MaxRefresh, i.MinRefresh))
	}
}

// finishControl validates the control plane's settings. Connections to the control plane use the
// backoff of outbound connections by default.
func (r *reader) finishControl(s *Settings) {
	c := &s.Control
	r.require("host:port of a destination controller", "DESTINATION_SVC_ADDR")
	r.finishController(s, c.Destination, "DESTINATION_SVC_NAME")
	// Without the variable, all names have endpoints. An empty variable means none.
	if !r.has("DESTINATION_GET_SUFFIXES") {
		c.GetSuffixes = Suffixes{""}
	}
	outbound := s.Outbound.Connect.Backoff
	if !r.has("CONTROL_CONNECT_EXP_BACKOFF_MIN", "CONTROL_CONNECT_EXP_BACKOFF_MAX") {
		c.Connect.Backoff.Min = outbound.Min
		c.Connect.Backoff.Max = outbound.Max
	}
	if !r.has("CONTROL_CONNECT_EXP_BACKOFF_JITTER") {
		c.Connect.Backoff.Jitter = outbound.Jitter
	}
	r.finishStreams(s)
	if c.DNS.MaxTTL > 0 && c.DNS.MaxTTL < c.DNS.MinTTL {
		r.problem("DNS_MAX_TTL", "must be at least "+r.where("DNS_MIN_TTL"))
	}
}

// finishController checks that c's identity, which the variable name sets, can be verified.
func (r *reader) finishController(s *Settings, c Controller, name string) {
	// A name can only be verified with TLS, which needs an identity of this proxy. On this machine, none is needed.
	switch {
	case s.Identity == nil && c.Name != "":
		s.Warnings = append(s.Warnings, r.where(name)+
			" is not verified: without an identity the connection to the controller is cleartext")
	case s.Identity != nil && c.Addr != "" && !isLoopback(c.Addr):
		r.require("the controller is not on this machine", name)
	}
}

// minStreamLimit is the smallest value that the proxy uses for CONTROL_STREAM_IDLE_TIMEOUT and
// CONTROL_STREAM_LIFETIME. It replaces lower values, except 0, which means no limit.
const minStreamLimit = 10 * time.Second

// finishStreams requires that the stream limits ascend: initial, idle, lifetime. A limit of 0 means
// no limit and is skipped. Limits below minStreamLimit cause a warning, unless the controller is on
// this machine.
func (r *reader) finishStreams(s *Settings) {
	// lastName and lower are the previous limit that is set.
	var lastName string
	var lower time.Duration
	for _, limit := range []struct {
		name string
		time.Duration
		minimum time.Duration
	}{
		{"CONTROL_STREAM_INITIAL_TIMEOUT", s.Control.Streams.Initial, 0}, // no minimum
		{"CONTROL_STREAM_IDLE_TIMEOUT", s.Control.Streams.Idle, minStreamLimit},
		{"CONTROL_STREAM_LIFETIME", s.Control.Streams.Lifetime, minStreamLimit},
	} {
		switch {
		// 0 means no limit, which ascends above nothing.
		case limit.Duration == 0:
			continue
		case limit.Duration < lower:
			r.problem(limit.name, "must be at least "+r.where(lastName))
		default:
			lastName = limit.name
			lower = limit.Duration
		}
		// The proxy uses the minimum instead, see [Control.Limits].
		if limit.Duration < limit.minimum && !isLoopback(s.Control.Destination.Addr) {
			r.warnReplaced(s, limit.name, limit.Duration, limit.minimum)
		}
	}
}

// finishPolicy validates the inbound policy. It warns if the policy rejects all clients because the
// proxy has no identity.
func (r *reader) finishPolicy(s *Settings) {
	p := s.Inbound.DefaultPolicy
	// These policies decide by the networks of the cluster.
	clusterPolicies := []DefaultPolicy{ClusterAuthenticated, ClusterUnauthenticated, Audit}
	if slices.Contains(clusterPolicies, p) && len(s.Policy.ClusterNetworks) == 0 {
		r.problem("INBOUND_DEFAULT_POLICY", string(p)+" needs POLICY_CLUSTER_NETWORKS")
	}
	if c := s.Policy.Controller; c.Addr != "" {
		r.require("it identifies this workload to the policy controller", "POLICY_WORKLOAD")
		r.finishController(s, c, "POLICY_SVC_NAME")
	}
	// With an identity, all policies can be met.
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

// finishOrigin warns if the destination of inbound connections comes from a PROXY header and is not
// restricted to INBOUND_IPS, because clients can forge that header.
func (r *reader) finishOrigin(s *Settings) {
	// INBOUND_IPS limits the addresses that a forged header can name.
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

// finishBackoff validates c's backoff. Its variables begin with prefix, such as OUTBOUND_CONNECT.
func (r *reader) finishBackoff(prefix string, c *Connect) {
	minName := prefix + "_EXP_BACKOFF_MIN"
	maxName := prefix + "_EXP_BACKOFF_MAX"
	// The first case has precedence: half a backoff cannot be validated.
	switch {
	case r.has(minName) != r.has(maxName):
		r.problem(minName, "must be set together with "+r.where(maxName))
	case prefix == "CONTROL_CONNECT" && !r.has(minName, prefix+"_EXP_BACKOFF_JITTER"): // already reported for outbound
	default:
		if err := c.Backoff.Validate(); err != nil {
			r.problem(prefix+"_EXP_BACKOFF_*", err.Error())
		}
	}
}

// isLoopback reports whether addr, in the form host:port, is localhost or a loopback address.
func isLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	// An address need not be looked up.
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.IsLoopback()
	}
	return strings.EqualFold(strings.TrimSuffix(host, "."), "localhost")
}
