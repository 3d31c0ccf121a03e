package settings

func destination(s *Settings) []variable {
	c := &s.Control
	return append([]variable{
		{name: "DESTINATION_SVC_ADDR", set: to(&c.Destination.Addr, parseHostPort), help: "host:port; required"},
		{
			name: "DESTINATION_SVC_NAME", set: to(&c.Destination.Name, parseName),
			help: "identity of the controller; required with an identity, unless the controller is on this machine",
		},
		{name: "DESTINATION_CONTEXT", set: to(&c.ContextToken, parseText), help: "context token for the controller"},
		{
			name: "DESTINATION_PROFILE_SUFFIXES", def: "svc.cluster.local.", set: to(&c.ProfileSuffixes, parseSuffixes),
			help: `name,... suffixes of the names with profiles; "." means all names`,
		},
		{
			name: "DESTINATION_PROFILE_NETWORKS", set: to(&c.ProfileNetworks, parseNetworks),
			help: "network,... networks of the addresses with profiles",
		},
		{
			name: "DESTINATION_PROFILE_INITIAL_TIMEOUT", def: "500ms", set: to(&c.ProfileInitial, parseDuration),
			help: "maximum wait for the first profile of a target",
		},
		{
			name: "DESTINATION_GET_SUFFIXES", set: to(&c.GetSuffixes, parseSuffixes),
			help: "name,... suffixes of the names with endpoints (all)",
		},
	}, controlCalls(c)...)
}

func controlCalls(c *Control) []variable {
	return append([]variable{
		{
			name: "CONTROL_CONNECT_TIMEOUT", def: "500ms", set: to(&c.Connect.Timeout, parseTimeout),
			help: "timeout of a connection to a controller; above 0",
		},
		{
			name: "CONTROL_DISPATCH_TIMEOUT", def: "5s", set: to(&c.DispatchTimeout, parseTimeout),
			help: "timeout of a unary call; above 0",
		},
	}, append(backoff("CONTROL_CONNECT", &c.Connect, "", ""), []variable{
		{
			name: "CONTROL_STREAM_INITIAL_TIMEOUT", set: to(&c.Streams.Initial, parseLimit),
			help: "timeout of the first message of a stream; the three stream limits do not apply to this machine (no limit)",
		},
		{
			name: "CONTROL_STREAM_IDLE_TIMEOUT", set: to(&c.Streams.Idle, parseLimit),
			help: "timeout of each further message; at least 10s (no limit)",
		},
		{
			name: "CONTROL_STREAM_LIFETIME", set: to(&c.Streams.Lifetime, parseLimit),
			help: "maximum age of a stream; at least 10s (no limit)",
		},
		{name: "DNS_MIN_TTL", set: to(&c.DNS.MinTTL, parseDuration), help: "minimum TTL of DNS answers"},
		{name: "DNS_MAX_TTL", set: to(&c.DNS.MaxTTL, parseDuration), help: "maximum TTL of DNS answers"},
	}...)...)
}

// identityVariables returns the variables of the identity. The variables that an identity
// requires come first.
func identityVariables(s *Settings) []variable {
	s.Identity = new(Identity)
	i := s.Identity
	return []variable{
		{name: "IDENTITY_SVC_ADDR", set: to(&i.Controller.Addr, parseHostPort), help: "host:port of the certificate authority"},
		{
			name: "IDENTITY_SVC_NAME", set: to(&i.Controller.Name, parseName),
			help: "identity of the authority; optional if the authority is on this machine",
		},
		{name: "IDENTITY_DIR", set: to(&i.Dir, parseRequired), help: "directory of csr.der and key.p8"},
		{name: "IDENTITY_TRUST_ANCHORS", hidden: true, set: to(&i.TrustAnchors, parseAnchors), help: "certificates in PEM"},
		{name: "IDENTITY_TOKEN_FILE", set: to(&i.TokenFile, parseRequired), help: "file of the token for the authority"},
		{
			name: "IDENTITY_LOCAL_NAME", set: to(&i.ServerName, parseName),
			help: "identity and server name of this proxy; or set both of the next",
		},
		{
			name: "IDENTITY_SERVER_ID", overrides: "IDENTITY_LOCAL_NAME", with: "IDENTITY_SERVER_NAME", set: to(&i.ServerID, parseID),
			help: "identity in the certificate of this proxy",
		},
		{
			name: "IDENTITY_SERVER_NAME", overrides: "IDENTITY_LOCAL_NAME", with: "IDENTITY_SERVER_ID", set: to(&i.ServerName, parseName),
			help: "TLS server name of this proxy",
		},
		{
			name: "IDENTITY_MIN_REFRESH", def: "10s", set: to(&i.MinRefresh, parseDuration),
			help: "minimum time between two certificates; 0s: no minimum",
		},
		{
			name: "IDENTITY_MAX_REFRESH", def: "24h", set: to(&i.MaxRefresh, parseTimeout),
			help: "maximum time between two certificates; above 0",
		},
		{
			name: "IDENTITY_GENERATE", prefix: OwnPrefix, def: "false", set: to(&i.Generate, parseBool),
			help: "write a new key.p8 and csr.der to IDENTITY_DIR at the start, as linkerd's proxy-identity does",
		},
		{
			name: "IDENTITY_SPIRE_WORKLOAD_API_ADDRESS", oldNames: []string{"IDENTITY_SPIRE_SOCKET"}, set: checked(parseText),
			ignored: "certificates come from IDENTITY_SVC_ADDR", help: "not supported",
		},
		{name: "IDENTITY_DISABLED", set: checked(parseText), help: "must not be set, as in linkerd; unset the others instead"},
	}
}

func policy(s *Settings) []variable {
	return []variable{
		{
			name: "INBOUND_DEFAULT_POLICY", def: string(AllUnauthenticated), set: to(&s.Inbound.DefaultPolicy, parsePolicy),
			help: "deny, all-authenticated, all-unauthenticated, cluster-(un)authenticated or audit",
		},
		{
			name: "POLICY_CLUSTER_NETWORKS", set: to(&s.Policy.ClusterNetworks, parseNetworks),
			help: "network,... of the cluster; required for the last three policies",
		},
		{
			name: "POLICY_SVC_ADDR", set: to(&s.Policy.Controller.Addr, parseHostPort),
			help: "host:port of the policy controller (only static policies)",
		},
		{
			name: "POLICY_SVC_NAME", set: to(&s.Policy.Controller.Name, parseName),
			help: "identity of the policy controller; required as DESTINATION_SVC_NAME is",
		},
		{
			name: "POLICY_WORKLOAD", set: to(&s.Policy.Workload, parseText),
			help: "this workload, for the policy controller; required with POLICY_SVC_ADDR",
		},
		{
			name: "INBOUND_PORTS", set: to(&s.Inbound.Ports, parsePorts),
			help: "port,low-high,... documented by the application; optional",
		},
		{
			name: "INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION", set: to(&s.Inbound.OpaquePorts, parsePorts),
			help: "port,low-high,... on which the server may speak first",
		},
		{
			name: "INBOUND_PORTS_REQUIRE_IDENTITY", set: to(&s.Inbound.RequireIdentity, parsePorts),
			help: "port,low-high,... that require a client identity",
		},
		{
			name: "INBOUND_PORTS_REQUIRE_TLS", set: to(&s.Inbound.RequireTLS, parsePorts),
			help: "port,low-high,... that require TLS to this proxy",
		},
		{name: "INBOUND_IPS", set: to(&s.Inbound.IPs, parseIPs), help: "ip,... allowed original destinations of inbound connections (all)"},
		{
			name: "INBOUND_GATEWAY_SUFFIXES", set: checked(parseSuffixes), ignored: "this proxy is not a gateway", help: "ignored",
		},
	}
}
