package settings

func destination(s *Settings) []variable {
	c := &s.Control
	return append([]variable{
		{name: "DESTINATION_SVC_ADDR", set: to(&c.Destination.Addr, parseHostPort), help: "host:port; required"},
		{
			name: "DESTINATION_SVC_NAME", set: to(&c.Destination.Name, parseName),
			help: "its identity; required with identity, unless it is on this machine",
		},
		{name: "DESTINATION_CONTEXT", set: to(&c.ContextToken, parseText), help: "context token for it"},
		{
			name: "DESTINATION_PROFILE_SUFFIXES", usual: "svc.cluster.local.", set: to(&c.ProfileSuffixes, parseSuffixes),
			help: `name,... of which profiles are asked for, and all below them; "." is all`,
		},
		{
			name: "DESTINATION_PROFILE_NETWORKS", set: to(&c.ProfileNetworks, parseNetworks),
			help: "network,... likewise, for targets that are addresses",
		},
		{
			name: "DESTINATION_PROFILE_INITIAL_TIMEOUT", usual: "500ms", set: to(&c.ProfileInitial, parseDuration),
			help: "how long to wait for the first profile",
		},
		{
			name: "DESTINATION_GET_SUFFIXES", set: to(&c.GetSuffixes, parseSuffixes),
			help: "name,... of which endpoints are asked for; others have none (all)",
		},
	}, controlCalls(c)...)
}

func controlCalls(c *Control) []variable {
	return append([]variable{
		{
			name: "CONTROL_CONNECT_TIMEOUT", usual: "500ms", set: to(&c.Connect.Timeout, parseTimeout),
			help: "for one connection to a controller; above 0",
		},
		{
			name: "CONTROL_DISPATCH_TIMEOUT", usual: "5s", set: to(&c.DispatchTimeout, parseTimeout),
			help: "for a call that is no stream; above 0",
		},
	}, append(backoff("CONTROL_CONNECT", &c.Connect, "", ""), []variable{
		{
			name: "CONTROL_STREAM_INITIAL_TIMEOUT", set: to(&c.Streams.Initial, parseLimit),
			help: "for the first message of a stream; a controller of this machine is not held to these three (no limit)",
		},
		{
			name: "CONTROL_STREAM_IDLE_TIMEOUT", set: to(&c.Streams.Idle, parseLimit),
			help: "for each message after that; at least 10s (no limit)",
		},
		{
			name: "CONTROL_STREAM_LIFETIME", set: to(&c.Streams.Lifetime, parseLimit),
			help: "for the whole stream; at least 10s (no limit)",
		},
		{name: "DNS_MIN_TTL", set: to(&c.DNS.MinTTL, parseDuration), help: "least time that an answer of DNS is kept"},
		{name: "DNS_MAX_TTL", set: to(&c.DNS.MaxTTL, parseDuration), help: "most"},
	}...)...)
}

// proven has the ones that make an identity first.
func proven(s *Settings) []variable {
	s.Identity = new(Identity)
	i := s.Identity
	return []variable{
		{name: "IDENTITY_SVC_ADDR", set: to(&i.Controller.Addr, parseHostPort), help: "host:port of the certificate authority"},
		{
			name: "IDENTITY_SVC_NAME", set: to(&i.Controller.Name, parseName),
			help: "its identity; may be left out if it is on this machine",
		},
		{name: "IDENTITY_DIR", set: to(&i.Dir, parseRequired), help: "directory of csr.der and key.p8"},
		{name: "IDENTITY_TRUST_ANCHORS", hidden: true, set: to(&i.TrustAnchors, parseAnchors), help: "certificates in PEM"},
		{name: "IDENTITY_TOKEN_FILE", set: to(&i.TokenFile, parseRequired), help: "file of the token for the authority"},
		{
			name: "IDENTITY_LOCAL_NAME", set: to(&i.ServerName, parseName),
			help: "the name of this proxy; or both of the next",
		},
		{
			name: "IDENTITY_SERVER_ID", beats: "IDENTITY_LOCAL_NAME", with: "IDENTITY_SERVER_NAME", set: to(&i.ServerID, parseID),
			help: "what its certificate is for",
		},
		{
			name: "IDENTITY_SERVER_NAME", beats: "IDENTITY_LOCAL_NAME", with: "IDENTITY_SERVER_ID", set: to(&i.ServerName, parseName),
			help: "by which clients ask for it",
		},
		{
			name: "IDENTITY_MIN_REFRESH", usual: "10s", set: to(&i.MinRefresh, parseDuration),
			help: "least time between two certificates; 0s: none",
		},
		{name: "IDENTITY_MAX_REFRESH", usual: "24h", set: to(&i.MaxRefresh, parseTimeout), help: "most; above 0"},
		{
			name: "IDENTITY_SPIRE_WORKLOAD_API_ADDRESS", older: []string{"IDENTITY_SPIRE_SOCKET"}, set: checked(parseText),
			lost: "certificates come from IDENTITY_SVC_ADDR alone", help: "not supported",
		},
		{name: "IDENTITY_DISABLED", set: checked(parseText), help: "must not be set, as in linkerd: leave the others out"},
	}
}

func policy(s *Settings) []variable {
	const lost = "this proxy asks no policy controller"
	return []variable{
		{
			name: "INBOUND_DEFAULT_POLICY", usual: string(AllUnauthenticated), set: to(&s.Inbound.DefaultPolicy, parsePolicy),
			help: "deny, all-authenticated, all-unauthenticated, cluster-(un)authenticated or audit",
		},
		{
			name: "POLICY_CLUSTER_NETWORKS", set: to(&s.Policy.ClusterNetworks, parseNetworks),
			help: "network,... of the cluster; the last three policies need it",
		},
		{name: "POLICY_SVC_ADDR", set: to(&s.Policy.Controller.Addr, parseHostPort), lost: lost, help: "not asked (linkerd requires it)"},
		{name: "POLICY_SVC_NAME", set: to(&s.Policy.Controller.Name, parseName), help: "not asked"},
		{name: "POLICY_WORKLOAD", set: to(&s.Policy.Workload, parseText), help: "not asked"},
		{
			name: "INBOUND_PORTS", set: to(&s.Inbound.Ports, parsePorts),
			help: "port,low-high,... that the application documents; not needed",
		},
		{
			name: "INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION", set: to(&s.Inbound.OpaquePorts, parsePorts),
			help: "where the server may speak first",
		},
		{
			name: "INBOUND_PORTS_REQUIRE_IDENTITY", set: to(&s.Inbound.RequireIdentity, parsePorts),
			help: "for clients with an identity only",
		},
		{
			name: "INBOUND_PORTS_REQUIRE_TLS", set: to(&s.Inbound.RequireTLS, parsePorts),
			help: "for clients that speak TLS to this proxy only",
		},
		{name: "INBOUND_IPS", set: to(&s.Inbound.IPs, parseIPs), help: "ip,... that inbound connections may be for (all)"},
		{
			name: "INBOUND_GATEWAY_SUFFIXES", set: checked(parseSuffixes), lost: "this proxy is no gateway", help: "not honoured",
		},
	}
}
