package settings

// outbound returns the variables for the application's connections, except those of its sockets.
func outbound(o *Outbound) []variable {
	return []variable{
		{
			name: "OUTBOUND_DETECT_TIMEOUT", def: "10s", set: store(&o.DetectTimeout, parseTimeout),
			help: "timeout of protocol detection; above 0",
		},
		{
			name: "OUTBOUND_PORTS_DISABLE_PROTOCOL_DETECTION", def: "25,587,3306", set: store(&o.OpaquePorts, parsePorts),
			help: "port,low-high,... on which the server may speak first",
		},
		{
			name: "OUTBOUND_MAX_IN_FLIGHT", def: "100000", set: store(&o.MaxInFlight, parseNumber),
			help: "maximum number of concurrent requests",
		},
		{
			name: "OUTBOUND_HTTP_QUEUE_CAPACITY", def: "10000", set: store(&o.HTTPQueue.Capacity, parseNumber),
			help: "maximum number of requests that wait for a target",
		},
		{
			name: "OUTBOUND_HTTP_FAILFAST_TIMEOUT", def: "3s", oldNames: []string{"OUTBOUND_DISPATCH_TIMEOUT"},
			set: store(&o.HTTPQueue.FailFast, parseDuration), help: "maximum wait; 0s: no waiting",
		},
		{
			name: "OUTBOUND_TCP_QUEUE_CAPACITY", def: "10000", set: store(&o.TCPQueue.Capacity, parseNumber),
			help: "maximum number of connections that wait for a target",
		},
		{
			name: "OUTBOUND_TCP_FAILFAST_TIMEOUT", def: "3s", set: store(&o.TCPQueue.FailFast, parseDuration),
			help: "maximum wait; 0s: no waiting",
		},
		{
			name: "OUTBOUND_DISCOVERY_IDLE_TIMEOUT", def: "5s", oldNames: []string{"OUTBOUND_ROUTER_MAX_IDLE_AGE"},
			set: store(&o.DiscoveryIdle, parseDuration), help: "idle timeout of targets",
		},
		{
			name: "INGRESS_MODE", def: "false", set: store(&o.Ingress, parseBool),
			help: "l5d-dst-override overrides the target of requests",
		},
		{
			name: "OUTBOUND_DISABLE_INFORMATIONAL_HEADERS", def: "false", set: store(&o.Quiet, parseBool),
			help: "true: no l5d-proxy-* headers in responses; default in ingress mode: true",
		},
	}
}

// outboundConnections returns the variables of the sockets of outbound connections and of the pool for HTTP/1.1.
func outboundConnections(o *Outbound) []variable {
	const timeout, maxBackoff = "1s", "60s"
	return append(connect("OUTBOUND", &o.Connect, timeout, maxBackoff), append([]variable{
		{
			name: "OUTBOUND_MAX_IDLE_CONNS_PER_ENDPOINT", def: "10000", set: store(&o.Pool.MaxIdle, parseNumber),
			help: "maximum number of idle HTTP/1.1 connections",
		},
		{
			name: "OUTBOUND_HTTP1_CONNECTION_POOL_IDLE_TIMEOUT", def: "3s", set: store(&o.Pool.Idle, parseDuration),
			help: "idle timeout of HTTP/1.1 connections",
		},
	}, accept("OUTBOUND", &o.Accept)...)...)
}

// inbound returns the variables for connections to the application, except those of its sockets.
func inbound(i *Inbound) []variable {
	return []variable{
		{
			name: "INBOUND_DETECT_TIMEOUT", def: "10s", set: store(&i.DetectTimeout, parseTimeout),
			help: "timeout of protocol detection; above 0",
		},
		{
			name: "INBOUND_MAX_IN_FLIGHT", def: "100000", set: store(&i.MaxInFlight, parseNumber),
			help: "maximum number of concurrent requests",
		},
		{
			name: "INBOUND_BODY_IDLE", prefix: OwnPrefix, def: "1m", set: store(&i.BodyIdle, parseDuration),
			help: "maximum pause of uploads of clients without an identity; 0s: no limit, as in linkerd",
		},
		{
			name: "INBOUND_HTTP_QUEUE_CAPACITY", def: "10000", set: store(&i.HTTPQueue.Capacity, parseNumber),
			help: "maximum number of requests that wait for the application",
		},
		{
			name: "INBOUND_HTTP_FAILFAST_TIMEOUT", def: "1s", oldNames: []string{"INBOUND_DISPATCH_TIMEOUT"},
			set: store(&i.HTTPQueue.FailFast, parseDuration), help: "maximum wait; 0s: no waiting",
		},
		{
			name: "INBOUND_DISCOVERY_IDLE_TIMEOUT", def: "90s", oldNames: []string{"INBOUND_ROUTER_MAX_IDLE_AGE"},
			set: store(&i.DiscoveryIdle, parseDuration), help: "idle timeout of targets",
		},
	}
}

// inboundConnections returns the variables of the sockets of inbound connections and of the pool for HTTP/1.1.
func inboundConnections(i *Inbound) []variable {
	const timeout, maxBackoff = "300ms", "10s" // shorter than outbound, because the application is on this machine
	return append(connect("INBOUND", &i.Connect, timeout, maxBackoff), append([]variable{
		{
			name: "MAX_IDLE_CONNS_PER_ENDPOINT", def: "10000", set: store(&i.Pool.MaxIdle, parseNumber),
			help: "maximum number of idle HTTP/1.1 connections",
		},
		{
			name: "INBOUND_HTTP1_CONNECTION_POOL_IDLE_TIMEOUT", def: "3s", set: store(&i.Pool.Idle, parseDuration),
			help: "idle timeout of HTTP/1.1 connections",
		},
	}, accept("INBOUND", &i.Accept)...)...)
}

// connect returns the variables for connections that the proxy makes on side, OUTBOUND or INBOUND. timeout and
// maxBackoff are defaults in the syntax of a duration.
func connect(side string, c *Connect, timeout, maxBackoff string) []variable {
	return append([]variable{
		{
			name: side + "_CONNECT_TIMEOUT", def: timeout, set: store(&c.Timeout, parseTimeout),
			help: "timeout of a connection attempt; above 0",
		},
	}, append(backoff(side+"_CONNECT", c, "100ms", maxBackoff), []variable{
		{
			name: side + "_CONNECT_KEEPALIVE", set: store(&c.Socket.KeepAlive, parseDuration),
			help: "idle time before a keep-alive probe; at most 32767s (system default)",
		},
		{
			name: side + "_CONNECT_USER_TIMEOUT", set: store(&c.Socket.UserTimeout, parseDuration),
			help: "maximum time without acknowledgment of sent data (system default)",
		},
	}...)...)
}

// backoff returns the variables for c's backoff. Their names begin with prefix, such as
// OUTBOUND_CONNECT. If the defaults are empty, the help says that they are those of OUTBOUND.
func backoff(prefix string, c *Connect, minDefault, maxDefault string) []variable {
	// Without other defaults, there is none for the jitter either.
	jitter := "0.1"
	if maxDefault == "" {
		jitter = ""
	}
	return []variable{
		{
			name: prefix + "_EXP_BACKOFF_MIN", def: minDefault, set: store(&c.Backoff.Min, parseDuration),
			help: "minimum backoff of connection attempts; requires MAX" + asOutbound(maxDefault),
		},
		{
			name: prefix + "_EXP_BACKOFF_MAX", def: maxDefault, set: store(&c.Backoff.Max, parseDuration),
			help: "maximum backoff" + asOutbound(maxDefault),
		},
		{
			name: prefix + "_EXP_BACKOFF_JITTER", def: jitter, set: store(&c.Backoff.Jitter, parseJitter),
			help: "random share added to the backoff" + asOutbound(maxDefault),
		},
	}
}

// asOutbound returns the remark in the help for a variable without a default, which uses OUTBOUND's
// value instead.
func asOutbound(def string) string {
	if def == "" {
		return " (as OUTBOUND)"
	}
	return ""
}

// accept returns the variables for the sockets of connections that the proxy accepts on side, OUTBOUND or INBOUND.
func accept(side string, s *Socket) []variable {
	return []variable{
		{
			name: side + "_ACCEPT_KEEPALIVE", set: store(&s.KeepAlive, parseDuration),
			help: "idle time before a keep-alive probe of accepted connections (system default)",
		},
		{
			name: side + "_ACCEPT_USER_TIMEOUT", set: store(&s.UserTimeout, parseDuration),
			help: "maximum time without acknowledgment on accepted connections (system default)",
		},
		{
			name: side + "_TCP_LISTEN_BACKLOG", set: store(&s.Backlog, parseCount),
			help: "maximum number of connections that wait to be accepted (system default)",
		},
	}
}
