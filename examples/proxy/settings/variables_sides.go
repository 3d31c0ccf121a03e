package settings

func outbound(o *Outbound) []variable {
	return []variable{
		{
			name: "OUTBOUND_DETECT_TIMEOUT", usual: "10s", set: to(&o.DetectTimeout, parseTimeout),
			help: "for the first bytes, by which the protocol is known; above 0",
		},
		{
			name: "OUTBOUND_PORTS_DISABLE_PROTOCOL_DETECTION", usual: "25,587,3306", set: to(&o.OpaquePorts, parsePorts),
			help: "where the server may speak first",
		},
		{name: "OUTBOUND_MAX_IN_FLIGHT", usual: "100000", set: to(&o.MaxInFlight, parseNumber), help: "requests at a time"},
		{
			name: "OUTBOUND_HTTP_QUEUE_CAPACITY", usual: "10000", set: to(&o.HTTPQueue.Capacity, parseNumber),
			help: "requests that may wait for a target",
		},
		{
			name: "OUTBOUND_HTTP_FAILFAST_TIMEOUT", usual: "3s", older: []string{"OUTBOUND_DISPATCH_TIMEOUT"},
			set: to(&o.HTTPQueue.FailFast, parseDuration), help: "how long they may wait; 0s: not at all",
		},
		{
			name: "OUTBOUND_TCP_QUEUE_CAPACITY", usual: "10000", set: to(&o.TCPQueue.Capacity, parseNumber),
			help: "connections that may wait for a target",
		},
		{
			name: "OUTBOUND_TCP_FAILFAST_TIMEOUT", usual: "3s", set: to(&o.TCPQueue.FailFast, parseDuration),
			help: "how long they may wait; 0s: not at all",
		},
		{
			name: "OUTBOUND_DISCOVERY_IDLE_TIMEOUT", usual: "5s", older: []string{"OUTBOUND_ROUTER_MAX_IDLE_AGE"},
			set: to(&o.DiscoveryIdle, parseDuration), help: "how long a target without requests is kept",
		},
		{
			name: "INGRESS_MODE", usual: "false", set: to(&o.Ingress, parseBool),
			help: "the target of a request is what l5d-dst-override says",
		},
		{
			name: "OUTBOUND_DISABLE_INFORMATIONAL_HEADERS", usual: "false", set: to(&o.Quiet, parseBool),
			help: "true: no l5d-proxy-error in answers; so it is in ingress mode too",
		},
	}
}

func outboundConnections(o *Outbound) []variable {
	return append(connect("OUTBOUND", &o.Connect, "1s", "60s"), append([]variable{
		{
			name: "OUTBOUND_MAX_IDLE_CONNS_PER_ENDPOINT", usual: "10000", set: to(&o.Pool.MaxIdle, parseNumber),
			help: "unused HTTP/1.1 connections that are kept",
		},
		{
			name: "OUTBOUND_HTTP1_CONNECTION_POOL_IDLE_TIMEOUT", usual: "3s", set: to(&o.Pool.Idle, parseDuration),
			help: "and how long",
		},
	}, accept("OUTBOUND", &o.Accept)...)...)
}

func inbound(i *Inbound) []variable {
	return []variable{
		{
			name: "INBOUND_DETECT_TIMEOUT", usual: "10s", set: to(&i.DetectTimeout, parseTimeout),
			help: "for the first bytes, by which the protocol is known; above 0",
		},
		{name: "INBOUND_MAX_IN_FLIGHT", usual: "100000", set: to(&i.MaxInFlight, parseNumber), help: "requests at a time"},
		{
			name: "INBOUND_BODY_IDLE", prefix: OwnPrefix, usual: "10s", set: to(&i.BodyIdle, parseDuration),
			help: "how long an upload of a client without identity may pause, and then 240 bytes/s at least; 0s: no limit, as in linkerd",
		},
		{
			name: "INBOUND_BODY_PAUSES", prefix: OwnPrefix, usual: "100", set: to(&i.BodyPauses, parseNumber),
			help: "uploads in chunks that may pause for longer, of each address of such clients; ten times as many of all",
		},
		{
			name: "INBOUND_HTTP_QUEUE_CAPACITY", usual: "10000", set: to(&i.HTTPQueue.Capacity, parseNumber),
			help: "requests that may wait for the application",
		},
		{
			name: "INBOUND_HTTP_FAILFAST_TIMEOUT", usual: "1s", older: []string{"INBOUND_DISPATCH_TIMEOUT"},
			set: to(&i.HTTPQueue.FailFast, parseDuration), help: "how long they may wait; 0s: not at all",
		},
		{
			name: "INBOUND_DISCOVERY_IDLE_TIMEOUT", usual: "90s", older: []string{"INBOUND_ROUTER_MAX_IDLE_AGE"},
			set: to(&i.DiscoveryIdle, parseDuration), help: "how long a target without requests is kept",
		},
	}
}

func inboundConnections(i *Inbound) []variable {
	return append(connect("INBOUND", &i.Connect, "300ms", "10s"), append([]variable{
		{
			name: "MAX_IDLE_CONNS_PER_ENDPOINT", usual: "10000", set: to(&i.Pool.MaxIdle, parseNumber),
			help: "unused HTTP/1.1 connections that are kept",
		},
		{
			name: "INBOUND_HTTP1_CONNECTION_POOL_IDLE_TIMEOUT", usual: "3s", set: to(&i.Pool.Idle, parseDuration),
			help: "and how long",
		},
	}, accept("INBOUND", &i.Accept)...)...)
}

func connect(side string, c *Connect, timeout, most string) []variable {
	return append([]variable{
		{name: side + "_CONNECT_TIMEOUT", usual: timeout, set: to(&c.Timeout, parseTimeout), help: "for one connection; above 0"},
	}, append(backoff(side+"_CONNECT", c, "100ms", most), []variable{
		{
			name: side + "_CONNECT_KEEPALIVE", set: to(&c.Socket.KeepAlive, parseDuration),
			help: "unused for so long, a connection is probed; 32767s at most (the system's)",
		},
		{
			name: side + "_CONNECT_USER_TIMEOUT", set: to(&c.Socket.UserTimeout, parseDuration),
			help: "what was sent must be acknowledged within (the system's)",
		},
	}...)...)
}

// backoff has min and most for its defaults. Without them it is that of the
// outbound side.
func backoff(of string, c *Connect, least, most string) []variable {
	jitter := "0.1"
	if most == "" {
		jitter = ""
	}
	return []variable{
		{
			name: of + "_EXP_BACKOFF_MIN", usual: least, set: to(&c.Backoff.Min, parseDuration),
			help: "between attempts to connect; only together with MAX" + asOutbound(most),
		},
		{name: of + "_EXP_BACKOFF_MAX", usual: most, set: to(&c.Backoff.Max, parseDuration), help: "at the most" + asOutbound(most)},
		{
			name: of + "_EXP_BACKOFF_JITTER", usual: jitter, set: to(&c.Backoff.Jitter, parseJitter),
			help: "share of it that is added at random" + asOutbound(most),
		},
	}
}

func asOutbound(usual string) string {
	if usual == "" {
		return " (as OUTBOUND)"
	}
	return ""
}

func accept(side string, s *Socket) []variable {
	return []variable{
		{
			name: side + "_ACCEPT_KEEPALIVE", set: to(&s.KeepAlive, parseDuration),
			help: "likewise, of accepted connections (the system's)",
		},
		{
			name: side + "_ACCEPT_USER_TIMEOUT", set: to(&s.UserTimeout, parseDuration),
			help: "likewise (the system's)",
		},
		{
			name: side + "_TCP_LISTEN_BACKLOG", set: to(&s.Backlog, parseCount),
			help: "connections that may wait to be accepted (the system's)",
		},
	}
}
