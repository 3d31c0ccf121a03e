package settings

// destination returns the variables of the destination controller and of calls to all controllers.
func destination(s *Settings) []variable {
	c := &s.Control
	return append([]variable{
		{name: "DESTINATION_SVC_ADDR", set: store(&c.Destination.Addr, parseHostPort), help: "host:port; required"},
		{
			name: "DESTINATION_SVC_NAME", set: store(&c.Destination.Name, parseName),
			help: "identity of the controller; required with an identity, unless the controller is on this machine",
		},
		{name: "DESTINATION_CONTEXT", set: store(&c.ContextToken, parseText), help: "context token for the controller"},
		{
			name: "DESTINATION_PROFILE_SUFFIXES", def: "svc.cluster.local.", set: store(&c.ProfileSuffixes, parseSuffixes),
			help: `name,... suffixes of the names with profiles; "." means all names`,
		},
		{
			name: "DESTINATION_PROFILE_NETWORKS", set: store(&c.ProfileNetworks, parseNetworks),
			help: "network,... networks of the addresses with profiles",
		},
		{
			name: "DESTINATION_PROFILE_INITIAL_TIMEOUT", def: "500ms", set: store(&c.ProfileInitial, parseDuration),
			help: "maximum wait for the first profile of a target",
		},
		{
			name: "DESTINATION_GET_SUFFIXES", set: store(&c.GetSuffixes, parseSuffixes),
			help: "name,... suffixes of the names with endpoints (all)",
		},
	}, controlCalls(c)...)
}

// controlCalls returns the variables of connections and calls to controllers.
func controlCalls(c *Control) []variable {
	// Without defaults, finishControl copies the backoff of outbound connections.
	return append([]variable{
		{
			name: "CONTROL_CONNECT_TIMEOUT", def: "500ms", set: store(&c.Connect.Timeout, parseTimeout),
			help: "timeout of a connection to a controller; above 0",
		},
		{
			name: "CONTROL_DISPATCH_TIMEOUT", def: "5s", set: store(&c.DispatchTimeout, parseTimeout),
			help: "timeout of a unary call; above 0",
		},
	}, append(backoff("CONTROL_CONNECT", &c.Connect, "", ""), []variable{ // the defaults are the values of OUTBOUND
		{
			name: "CONTROL_STREAM_INITIAL_TIMEOUT", set: store(&c.Streams.Initial, parseLimit),
			help: "timeout of the first message of a stream; the three stream limits do not apply to this machine (no limit)",
		},
		{
			name: "CONTROL_STREAM_IDLE_TIMEOUT", set: store(&c.Streams.Idle, parseLimit),
			help: "timeout of each further message; at least 10s (no limit)",
		},
		{
			name: "CONTROL_STREAM_LIFETIME", set: store(&c.Streams.Lifetime, parseLimit),
			help: "maximum age of a stream; at least 10s (no limit)",
		},
		{name: "DNS_MIN_TTL", set: store(&c.DNS.MinTTL, parseDuration), help: "minimum TTL of DNS answers"},
		{name: "DNS_MAX_TTL", set: store(&c.DNS.MaxTTL, parseDuration), help: "maximum TTL of DNS answers"},
	}...)...)
}

// identityVariables returns the identity's variables, required ones first.
func identityVariables(s *Settings) []variable {
	// finishIdentity removes the identity again if no variable has set it.
	s.Identity = new(Identity)
	i := s.Identity
	return []variable{
		{name: "IDENTITY_SVC_ADDR", set: store(&i.Controller.Addr, parseHostPort), help: "host:port of the certificate authority"},
		{
			name: "IDENTITY_SVC_NAME", set: store(&i.Controller.Name, parseName),
			help: "identity of the authority; optional if the authority is on this machine",
		},
		{name: "IDENTITY_DIR", set: store(&i.Dir, parseRequired), help: "directory of csr.der and key.p8"},
		{name: "IDENTITY_TRUST_ANCHORS", hidden: true, set: store(&i.TrustAnchors, parseAnchors), help: "certificates in PEM"},
		{name: "IDENTITY_TOKEN_FILE", set: store(&i.TokenFile, parseRequired), help: "file of the token for the authority"},
		{
			name: "IDENTITY_LOCAL_NAME", set: store(&i.ServerName, parseName),
			help: "identity and server name of this proxy; or set both of the next",
		},
		{
			name: "IDENTITY_SERVER_ID", overrides: "IDENTITY_LOCAL_NAME", pair: "IDENTITY_SERVER_NAME", set: store(&i.ServerID, parseID),
			help: "identity in the certificate of this proxy",
		},
		{
			name: "IDENTITY_SERVER_NAME", overrides: "IDENTITY_LOCAL_NAME", pair: "IDENTITY_SERVER_ID",
			set:  store(&i.ServerName, parseName),
			help: "TLS server name of this proxy",
		},
		{
			name: "IDENTITY_MIN_REFRESH", def: "10s", set: store(&i.MinRefresh, parseDuration),
			help: "minimum time between two certificates; 0s: no minimum",
		},
		{
			name: "IDENTITY_MAX_REFRESH", def: "24h", set: store(&i.MaxRefresh, parseTimeout),
			help: "maximum time between two certificates; above 0",
		},
		{
			name: "IDENTITY_GENERATE", prefix: OwnPrefix, def: "false", set: store(&i.Generate, parseBool),
			help: "write a new key.p8 and csr.der to IDENTITY_DIR at each start, also if it has them",
		},
		{
			name: "IDENTITY_SPIRE_WORKLOAD_API_ADDRESS", oldNames: []string{"IDENTITY_SPIRE_SOCKET"}, set: checked(parseText),
			ignored: "certificates come from IDENTITY_SVC_ADDR", help: "not supported",
		},
		{name: "IDENTITY_DISABLED", set: checked(parseText), help: "must not be set, as in linkerd; unset the others instead"},
	}
}

// policy returns the variables of inbound policies: the controller that sends them, and the static ones
// that apply without it.
func policy(s *Settings) []variable {
	return []variable{
		{
			name: "INBOUND_DEFAULT_POLICY", def: string(AllUnauthenticated), set: store(&s.Inbound.DefaultPolicy, parsePolicy),
			help: "deny, all-authenticated, all-unauthenticated, cluster-(un)authenticated or audit",
		},
		{
			name: "POLICY_CLUSTER_NETWORKS", set: store(&s.Policy.ClusterNetworks, parseNetworks),
			help: "network,... of the cluster; required for the cluster-* policies and audit",
		},
		{
			name: "POLICY_SVC_ADDR", set: store(&s.Policy.Controller.Addr, parseHostPort),
			help: "host:port of the policy controller (only static policies)",
		},
		{
			name: "POLICY_SVC_NAME", set: store(&s.Policy.Controller.Name, parseName),
			help: "identity of the policy controller; required as DESTINATION_SVC_NAME is",
		},
		{
			name: "POLICY_WORKLOAD", set: store(&s.Policy.Workload, parseText),
			help: "this workload, for the policy controller; required with POLICY_SVC_ADDR",
		},
		{
			name: "INBOUND_PORTS", set: store(&s.Inbound.Ports, parsePorts),
			help: "port,low-high,... whose inbound policies are watched from the start; optional",
		},
		{
			name: "INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION", set: store(&s.Inbound.OpaquePorts, parsePorts),
			help: "port,low-high,... on which the server may speak first",
		},
		{
			name: "INBOUND_PORTS_REQUIRE_IDENTITY", set: store(&s.Inbound.RequireIdentity, parsePorts),
			help: "port,low-high,... that require a client identity",
		},
		{
			name: "INBOUND_PORTS_REQUIRE_TLS", set: store(&s.Inbound.RequireTLS, parsePorts),
			help: "port,low-high,... that require TLS to this proxy",
		},
		{
			name: "INBOUND_IPS", set: store(&s.Inbound.IPs, parseIPs),
			help: "ip,... allowed original destinations of inbound connections (all)",
		},
		{
			name: "INBOUND_GATEWAY_SUFFIXES", set: store(&s.Inbound.GatewaySuffixes, parseSuffixes),
			help: "domain,... of the names for which this proxy is the gateway of its cluster (none)",
		},
	}
}
