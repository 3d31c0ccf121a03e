package settings

// variables returns all variables in the order of the help. A variable comes after the
// ones that it falls back on.
func variables(s *Settings) []group {
	return []group{
		{"Listeners", listeners(s)},
		{"Destination controller", destination(s)},
		{"Identity: with any of the first eight the others are required, without them there is none (linkerd requires them)", proven(s)},
		{"Policy", policy(s)},
		{"Outbound", append(outbound(&s.Outbound), outboundConnections(&s.Outbound)...)},
		{"Inbound", append(inbound(&s.Inbound), inboundConnections(&s.Inbound)...)},
		{"HTTP/2 servers (default: that of the server)", append(windows(s), append(
			http2("OUTBOUND", &s.Outbound.Server), http2("INBOUND", &s.Inbound.Server)...)...)},
		{"Tap", taps(&s.Tap)},
		{"Log and metrics", observed(s)},
		{"Process", process(s)},
		{"Read, and not honoured", unsupported()},
	}
}

func listeners(s *Settings) []variable {
	both := func(text string) error {
		o, err := parseOrigin(text)
		s.Outbound.Origin, s.Inbound.Origin = o, o
		return err
	}
	one := func(text string) error {
		addr, err := parseAddr(text)
		if err == nil {
			s.Outbound.Listen = append(s.Outbound.Listen[:0], addr)
		}
		return err
	}
	return []variable{
		{
			name: "OUTBOUND_LISTEN_ADDR", usual: "127.0.0.1:4140", set: one,
			help: "ip:port for connections of the application",
		},
		{
			name: "OUTBOUND_LISTEN_ADDRS", beats: "OUTBOUND_LISTEN_ADDR", set: to(&s.Outbound.Listen, parseAddrs),
			help: "one or two of them; instead of OUTBOUND_LISTEN_ADDR",
		},
		{
			name: "INBOUND_LISTEN_ADDR", usual: "0.0.0.0:4143", set: to(&s.Inbound.Listen, parseAddr),
			help: "ip:port for connections to the application",
		},
		{
			name: "CONTROL_LISTEN_ADDR", usual: "127.0.0.1:4190", set: to(&s.Tap.Listen, parseAddr),
			help: "ip:port for tap; with an identity and TAP_SVC_NAME 0.0.0.0:4190",
		},
		{
			name: "ADMIN_LISTEN_ADDR", usual: "127.0.0.1:4191", set: to(&s.Admin.Listen, parseAddr),
			help: "ip:port for /live /ready /metrics /stack /view/ and the like",
		},
		{
			name: "ORIGIN", prefix: OwnPrefix, usual: "redirected", set: both,
			help: "where a connection was going to: redirected (iptables), proxy-protocol or fixed:ip:port",
		},
		{
			name: "OUTBOUND_ORIGIN", prefix: OwnPrefix, beats: "ORIGIN", set: to(&s.Outbound.Origin, parseOrigin),
			help: "for outbound only",
		},
		{
			name: "INBOUND_ORIGIN", prefix: OwnPrefix, beats: "ORIGIN", set: to(&s.Inbound.Origin, parseOrigin),
			help: "for inbound only",
		},
		{
			name: "REUSE_PORT", prefix: OwnPrefix, usual: "false", set: to(&s.ReusePort, parseBool),
			help: "a successor may listen for connections beside this proxy, and has those that are new from then on",
		},
	}
}

func taps(t *Tap) []variable {
	return []variable{
		{
			name: "TAP_SVC_NAME", set: to(&t.Name, parseName),
			help: "identity of whom may watch; unset, with identity: nobody; without identity: this machine",
		},
		{name: "TAP_DISABLED", set: to(&t.Disabled, parseGiven), help: "with any value: nobody may watch"},
		{
			name: "TAP_LABELS", set: to(&t.Labels, parseLabels),
			help: "key=value,... that tap shows for this proxy's clients",
		},
	}
}

func observed(s *Settings) []variable {
	return []variable{
		{
			name: "LOG", usual: "warn,linkerd=info,hickory=error", set: to(&s.Log.Filter, parseFilter),
			help: "levels: trace debug info warn error off, for all and for target=level",
		},
		{name: "LOG_FORMAT", usual: "plain", set: to(&s.Log.JSON, parseFormat), help: "plain or json"},
		{
			name: "ACCESS_LOG", set: to(&s.Log.Access, parseAccess),
			help: "apache or json: a line for each inbound request, to standard error",
		},
		{
			name: "METRICS_RETAIN_IDLE", usual: "10m", set: to(&s.Metrics.RetainIdle, parseDuration),
			help: "how long series that nobody writes to are shown",
		},
		{
			name: "OUTBOUND_METRICS_HOSTNAME_LABELS", usual: "false", set: parseNo, mild: true,
			help: "true is not honoured: it is for metrics by policy",
		},
		{
			name: "INBOUND_METRICS_AUTHORITY_LABELS", set: to(&s.Inbound.AuthorityLabels, parseUnsafe), mild: true,
			help: `"unsafe": label inbound requests with an authority that their clients choose`,
		},
	}
}

func process(s *Settings) []variable {
	return []variable{
		{
			name: "SHUTDOWN_GRACE_PERIOD", usual: "2m", set: to(&s.Shutdown.Grace, parseDuration),
			help: "how long what is open may take to end",
		},
		{
			name: "SHUTDOWN_ENDPOINT_ENABLED", usual: "false", set: to(&s.Shutdown.EndpointEnabled, parseBool),
			help: "POST /shutdown ends the proxy",
		},
		{name: "CORES", set: to(&s.Cores.Min, parseCount), mild: true, help: "processors; with none of the four, those of the cgroup"},
		{name: "CORES_MIN", beats: "CORES", set: to(&s.Cores.Min, parseCount), mild: true, help: "at least; instead of CORES"},
		{name: "CORES_MAX", beats: "CORES_MAX_RATIO", set: to(&s.Cores.Max, parseCount), mild: true, help: "at most"},
		{
			name: "CORES_MAX_RATIO", set: to(&s.Cores.MaxRatio, parseRatio), mild: true,
			help: "of those there are, above 0 and at most 1; CORES_MAX wins",
		},
	}
}

func unsupported() []variable {
	const traces = "this proxy exports no traces"
	return []variable{
		{name: "TRACE_COLLECTOR_SVC_ADDR", set: checked(parseHostPort), lost: traces, help: traces},
		{name: "TRACE_COLLECTOR_SVC_NAME", set: checked(parseText), lost: traces, help: traces},
		{name: "TRACE_ATTRIBUTES_PATH", set: checked(parseText), lost: traces, help: traces},
		{name: "TRACE_SERVICE_NAME", set: checked(parseText), lost: traces, help: traces},
		{name: "TRACE_EXTRA_ATTRIBUTES", set: checked(parseText), lost: traces, help: traces},
		{name: "OTEL_RESOURCE_ATTRIBUTES", prefix: "-", set: checked(parseText), lost: traces, help: traces},
		{
			name: "OUTBOUND_ROUTER_CAPACITY", set: checked(parseNumber), lost: "idle targets go, and there are 10000 at the most",
			help: "10000 targets at the most",
		},
		{
			name: "INBOUND_ROUTER_CAPACITY", set: checked(parseNumber), lost: "idle targets go, and there are 10000 at the most",
			help: "10000 targets at the most",
		},
		{
			name: "DNS_CANONICALIZE_TIMEOUT", set: checked(parseDuration), lost: "names are not made canonical",
			help: "names are not made canonical",
		},
		{
			name: "DESTINATION_BUFFER_CAPACITY", set: checked(parseNumber), lost: "nothing is buffered there",
			help: "nothing is buffered there",
		},
	}
}
