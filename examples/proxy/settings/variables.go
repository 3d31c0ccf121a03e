package settings

// variables returns all variables in the order in which the help shows them and [Read] reads them.
// Their set functions store values in s. A variable must come after the more general ones that it
// overrides, because the last value wins.
func variables(s *Settings) []group {
	return []group{
		{"Listeners", listeners(s)},
		{"Destination controller", destination(s)},
		{"Identity: if one of the first eight is set, all are required (linkerd always requires them)", identityVariables(s)},
		{"Policy", policy(s)},
		{"Outbound", append(outbound(&s.Outbound), outboundConnections(&s.Outbound)...)},
		{"Inbound", append(inbound(&s.Inbound), inboundConnections(&s.Inbound)...)},
		{"HTTP/2 servers", append(windows(s), append(
			http2("OUTBOUND", &s.Outbound.Server), http2("INBOUND", &s.Inbound.Server)...)...)},
		{"Tap", tapVariables(&s.Tap)},
		{"Log and metrics", logVariables(s)},
		{"Traces: spans of the requests that carry a sampled trace context", traceVariables(&s.Traces)},
		{"Process", process(s)},
		{"Accepted but ignored", unsupported()},
	}
}

// listeners returns the variables of the addresses on which the proxy listens, and of the original destinations of
// connections.
func listeners(s *Settings) []variable {
	// both stores the origin for both sides. A variable for one side comes later and overrides it.
	both := func(text string) error {
		o, err := parseOrigin(text)
		s.Outbound.Origin, s.Inbound.Origin = o, o
		return err
	}
	// one stores a single address. [:0] replaces an address that was stored before, such as the default.
	one := func(text string) error {
		addr, err := parseAddr(text)
		if err == nil {
			s.Outbound.Listen = append(s.Outbound.Listen[:0], addr)
		}
		return err
	}
	return []variable{
		{
			name: "OUTBOUND_LISTEN_ADDR", def: "127.0.0.1:4140", set: one,
			help: "ip:port for connections of the application",
		},
		{
			name: "OUTBOUND_LISTEN_ADDRS", overrides: "OUTBOUND_LISTEN_ADDR", set: store(&s.Outbound.Listen, parseAddrs),
			help: "one or two ip:port; overrides OUTBOUND_LISTEN_ADDR",
		},
		{
			name: "INBOUND_LISTEN_ADDR", def: "0.0.0.0:4143", set: store(&s.Inbound.Listen, parseAddr),
			help: "ip:port for connections to the application",
		},
		{
			name: "CONTROL_LISTEN_ADDR", def: "127.0.0.1:4190", set: store(&s.Tap.Listen, parseAddr),
			help: "ip:port for tap; default with an identity and TAP_SVC_NAME: 0.0.0.0:4190",
		},
		{
			name: "ADMIN_LISTEN_ADDR", def: "127.0.0.1:4191", set: store(&s.Admin.Listen, parseAddr),
			help: "ip:port for /live, /ready, /metrics, /stack, /view/ and more",
		},
		{
			name: "ORIGIN", prefix: OwnPrefix, def: "redirected", set: both,
			help: "source of the original destination: redirected (iptables), proxy-protocol or fixed:ip:port",
		},
		{
			name: "OUTBOUND_ORIGIN", prefix: OwnPrefix, overrides: "ORIGIN", set: store(&s.Outbound.Origin, parseOrigin),
			help: "origin of outbound connections; overrides GOTOWER_ORIGIN",
		},
		{
			name: "INBOUND_ORIGIN", prefix: OwnPrefix, overrides: "ORIGIN", set: store(&s.Inbound.Origin, parseOrigin),
			help: "origin of inbound connections; overrides GOTOWER_ORIGIN",
		},
		{
			name: "REUSE_PORT", prefix: OwnPrefix, def: "false", set: store(&s.ReusePort, parseBool),
			help: "a second proxy may listen on the same ports and gets all new connections",
		},
	}
}

// tapVariables returns the variables of the tap server.
func tapVariables(t *Tap) []variable {
	return []variable{
		{
			name: "TAP_SVC_NAME", set: store(&t.Name, parseName),
			help: "identity of the allowed client; if unset, tap is off with an identity and for this machine without one",
		},
		{name: "TAP_DISABLED", set: store(&t.Disabled, parseGiven), help: "any value disables tap"},
		{
			name: "TAP_LABELS", set: store(&t.Labels, parseLabels),
			help: "key=value,... labels of this proxy's clients in tap",
		},
	}
}

// logVariables returns the variables of the log, the access log and the metrics. An invalid value of a
// lenient one is only a warning.
func logVariables(s *Settings) []variable {
	return []variable{
		{
			name: "LOG", def: "warn,linkerd=info,hickory=error", set: store(&s.Log.Filter, parseFilter),
			help: "level (trace, debug, info, warn, error, off) or target=level, separated by commas",
		},
		{name: "LOG_FORMAT", def: "plain", set: store(&s.Log.JSON, parseFormat), help: "plain or json"},
		{
			name: "ACCESS_LOG", set: store(&s.Log.Access, parseAccess),
			help: "apache or json: one line per inbound request on standard error",
		},
		{
			name: "METRICS_RETAIN_IDLE", def: "10m", set: store(&s.Metrics.RetainIdle, parseDuration),
			help: "how long idle series are shown; at least 100ms",
		},
		{
			name: "OUTBOUND_METRICS_HOSTNAME_LABELS", def: "false", set: store(&s.Metrics.HostnameLabels, parseBool), lenient: true,
			help: "label outbound metrics of routes with the host that a request names",
		},
		{
			name: "INBOUND_METRICS_AUTHORITY_LABELS", set: store(&s.Inbound.AuthorityLabels, parseUnsafe), lenient: true,
			help: `"unsafe": label inbound metrics with the authority, which clients choose`,
		},
	}
}

// process returns the variables of the proxy's end and of its use of processors.
func process(s *Settings) []variable {
	return []variable{
		{
			name: "SHUTDOWN_GRACE_PERIOD", def: "2m", set: store(&s.Shutdown.Grace, parseDuration),
			help: "maximum wait for open connections at shutdown",
		},
		{
			name: "SHUTDOWN_ENDPOINT_ENABLED", def: "false", set: store(&s.Shutdown.EndpointEnabled, parseBool),
			help: "POST /shutdown ends the proxy",
		},
		// As in linkerd's proxy, an invalid number of processors is only a warning (lenient). CORES is an older name of the
		// minimum. If nothing else is set, the minimum is the number: see Cores.Count.
		{name: "CORES", set: store(&s.Cores.Min, parseCount), lenient: true, help: "number of processors; default: those of the cgroup"},
		{
			name: "CORES_MIN", overrides: "CORES", set: store(&s.Cores.Min, parseCount), lenient: true,
			help: "minimum number of processors; overrides CORES",
		},
		{
			name: "CORES_MAX", overrides: "CORES_MAX_RATIO", set: store(&s.Cores.Max, parseCount), lenient: true,
			help: "maximum number of processors",
		},
		{
			name: "CORES_MAX_RATIO", set: store(&s.Cores.MaxRatio, parseRatio), lenient: true,
			help: "maximum share of the available processors, above 0 and at most 1; CORES_MAX overrides it",
		},
	}
}

// unsupported returns variables of linkerd's proxy that have no effect here. Their values are still checked, so
// that a configuration which is invalid for linkerd's proxy is invalid here too.
func unsupported() []variable {
	return []variable{
		{
			name: "OUTBOUND_ROUTER_CAPACITY", set: checked(parseNumber), ignored: "idle targets are dropped, and the limit is 10000",
			help: "the limit is 10000 targets",
		},
		{
			name: "INBOUND_ROUTER_CAPACITY", set: checked(parseNumber), ignored: "idle targets are dropped, and the limit is 10000",
			help: "the limit is 10000 targets",
		},
		{
			name: "DNS_CANONICALIZE_TIMEOUT", set: checked(parseDuration), ignored: "names are not canonicalized",
			help: "names are not canonicalized",
		},
		{
			name: "DESTINATION_BUFFER_CAPACITY", set: checked(parseNumber), ignored: "updates are not buffered",
			help: "updates are not buffered",
		},
	}
}
