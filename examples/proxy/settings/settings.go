package settings

import (
	"net/netip"
	"time"

	"github.com/gotower/gotower/layer"
)

// Settings is a proxy's configuration. Each field's comment names its environment variable without
// the prefix [Prefix]. A name with a leading underscore, such as _CONNECT_TIMEOUT, follows
// OUTBOUND, INBOUND or CONTROL.
type Settings struct {
	Outbound Outbound
	Inbound  Inbound
	Control  Control
	Policy   Policy
	Identity *Identity // nil if the proxy has no identity
	Tap      Tap
	Admin    Admin
	Shutdown Shutdown
	Log      Log
	Metrics  Metrics
	Traces   Traces
	Cores    Cores

	// ReusePort (GOTOWER_REUSE_PORT) allows two proxies to listen on the same addresses, so that a
	// new proxy can replace a running one without a gap.
	ReusePort bool

	// Warnings are messages to log about settings that the proxy ignores or changes.
	Warnings []string
}

// Outbound configures connections that the application makes.
type Outbound struct {
	Listen []netip.AddrPort // OUTBOUND_LISTEN_ADDRS, else OUTBOUND_LISTEN_ADDR; one or two
	Origin Origin           // GOTOWER_OUTBOUND_ORIGIN, else GOTOWER_ORIGIN
	Accept Socket
	Server HTTP2 // OUTBOUND_SERVER_HTTP2_*

	DetectTimeout time.Duration // OUTBOUND_DETECT_TIMEOUT
	OpaquePorts   Ports         // OUTBOUND_PORTS_DISABLE_PROTOCOL_DETECTION: the server may speak first

	MaxInFlight int   // OUTBOUND_MAX_IN_FLIGHT
	HTTPQueue   Queue // OUTBOUND_HTTP_QUEUE_CAPACITY, OUTBOUND_HTTP_FAILFAST_TIMEOUT
	TCPQueue    Queue // OUTBOUND_TCP_QUEUE_CAPACITY, OUTBOUND_TCP_FAILFAST_TIMEOUT

	Connect       Connect
	Pool          Pool          // OUTBOUND_MAX_IDLE_CONNS_PER_ENDPOINT, OUTBOUND_HTTP1_CONNECTION_POOL_IDLE_TIMEOUT
	DiscoveryIdle time.Duration // OUTBOUND_DISCOVERY_IDLE_TIMEOUT: when unused targets are dropped

	Ingress bool // INGRESS_MODE: l5d-dst-override overrides the target
	Quiet   bool // OUTBOUND_DISABLE_INFORMATIONAL_HEADERS: no l5d-proxy-* headers
}

// Inbound configures connections that clients make to the application.
type Inbound struct {
	Listen netip.AddrPort // INBOUND_LISTEN_ADDR
	Origin Origin         // GOTOWER_INBOUND_ORIGIN, else GOTOWER_ORIGIN
	Accept Socket
	Server HTTP2 // INBOUND_SERVER_HTTP2_*

	DetectTimeout time.Duration // INBOUND_DETECT_TIMEOUT

	MaxInFlight int           // INBOUND_MAX_IN_FLIGHT
	BodyIdle    time.Duration // GOTOWER_INBOUND_BODY_IDLE: maximum pause in uploads from clients without an identity; 0: no limit
	HTTPQueue   Queue         // INBOUND_HTTP_QUEUE_CAPACITY, INBOUND_HTTP_FAILFAST_TIMEOUT

	Connect       Connect
	Pool          Pool          // MAX_IDLE_CONNS_PER_ENDPOINT, INBOUND_HTTP1_CONNECTION_POOL_IDLE_TIMEOUT
	DiscoveryIdle time.Duration // INBOUND_DISCOVERY_IDLE_TIMEOUT: when unused targets are dropped

	DefaultPolicy   DefaultPolicy // INBOUND_DEFAULT_POLICY
	Ports           Ports         // INBOUND_PORTS: ports whose policies are watched from the start
	OpaquePorts     Ports         // INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION: the server may speak first
	RequireIdentity Ports         // INBOUND_PORTS_REQUIRE_IDENTITY: only for clients with an identity
	RequireTLS      Ports         // INBOUND_PORTS_REQUIRE_TLS: only for clients that speak TLS to this proxy

	GatewaySuffixes Suffixes // INBOUND_GATEWAY_SUFFIXES: names that clients in other clusters reach through this proxy

	IPs             []netip.Addr // INBOUND_IPS: the pod's addresses; empty means all addresses
	AuthorityLabels bool         // INBOUND_METRICS_AUTHORITY_LABELS=unsafe
}

// Control configures connections to the control plane, and lookups of profiles, endpoints and DNS
// names.
type Control struct {
	Destination  Controller // DESTINATION_SVC_ADDR, DESTINATION_SVC_NAME
	ContextToken string     // DESTINATION_CONTEXT

	ProfileSuffixes Suffixes       // DESTINATION_PROFILE_SUFFIXES: names with profiles
	ProfileNetworks []netip.Prefix // DESTINATION_PROFILE_NETWORKS: addresses with profiles
	ProfileInitial  time.Duration  // DESTINATION_PROFILE_INITIAL_TIMEOUT: maximum wait for the first profile
	GetSuffixes     Suffixes       // DESTINATION_GET_SUFFIXES: names with endpoints; default: all

	Connect         Connect       // CONTROL_CONNECT_TIMEOUT, CONTROL_CONNECT_EXP_BACKOFF_*; only Timeout and Backoff
	DispatchTimeout time.Duration // CONTROL_DISPATCH_TIMEOUT: timeout for unary calls
	Streams         StreamLimits  // CONTROL_STREAM_*
	DNS             DNS           // DNS_MIN_TTL, DNS_MAX_TTL
}

// Policy configures the policy controller. Without the controller's address, only
// INBOUND_DEFAULT_POLICY and INBOUND_PORTS_REQUIRE_* apply.
type Policy struct {
	Controller      Controller     // POLICY_SVC_ADDR, POLICY_SVC_NAME
	Workload        string         // POLICY_WORKLOAD: identifies this workload to the policy controller
	ClusterNetworks []netip.Prefix // POLICY_CLUSTER_NETWORKS: the cluster's networks, for INBOUND_DEFAULT_POLICY
}

// Identity configures the proxy's identity, for which the control plane issues a certificate.
type Identity struct {
	Controller   Controller    // IDENTITY_SVC_ADDR, IDENTITY_SVC_NAME
	Dir          string        // IDENTITY_DIR: where csr.der and key.p8 are
	TrustAnchors []byte        // IDENTITY_TRUST_ANCHORS: PEM, at least one certificate
	TokenFile    string        // IDENTITY_TOKEN_FILE
	ServerID     string        // IDENTITY_SERVER_ID, else IDENTITY_LOCAL_NAME: identity in the certificate
	ServerName   string        // IDENTITY_SERVER_NAME, else IDENTITY_LOCAL_NAME: TLS server name of this proxy
	MinRefresh   time.Duration // IDENTITY_MIN_REFRESH
	MaxRefresh   time.Duration // IDENTITY_MAX_REFRESH
	Generate     bool          // GOTOWER_IDENTITY_GENERATE: write a new key and request to Dir on startup
}

// Tap configures the tap server, which streams live requests.
type Tap struct {
	Listen netip.AddrPort // CONTROL_LISTEN_ADDR; default with an identity and a Name: 0.0.0.0:4190

	// Name (TAP_SVC_NAME) is the identity of the client that may watch. If it is empty, tap is off
	// for a proxy with an identity, and limited to clients on this machine otherwise. TAP_DISABLED
	// empties it.
	Name     string
	Disabled bool              // TAP_DISABLED
	Labels   map[string]string // TAP_LABELS: the application's labels in tap
}

// Admin configures the admin server, which serves health checks, metrics and tap's page.
type Admin struct {
	Listen netip.AddrPort // ADMIN_LISTEN_ADDR
}

// Shutdown configures how long connections may take to end, and whether an HTTP request can end the
// proxy.
type Shutdown struct {
	Grace           time.Duration // SHUTDOWN_GRACE_PERIOD: maximum wait for open connections to end
	EndpointEnabled bool          // SHUTDOWN_ENDPOINT_ENABLED: POST /shutdown ends the proxy
}

// Log configures the log and the access log.
type Log struct {
	Filter string       // LOG, in the syntax of package logs
	JSON   bool         // LOG_FORMAT=json
	Access AccessFormat // ACCESS_LOG
}

// Metrics configures the metrics on the admin server.
type Metrics struct {
	RetainIdle     time.Duration // METRICS_RETAIN_IDLE: how long a series without changes is exported, at least 100 ms
	HostnameLabels bool          // OUTBOUND_METRICS_HOSTNAME_LABELS: label outbound routes with hostname
}

// Traces configures spans, which the proxy sends to a collector with OTLP over gRPC.
type Traces struct {
	Collector Controller // TRACE_COLLECTOR_SVC_ADDR, TRACE_COLLECTOR_SVC_NAME; without an address, no spans are recorded

	// Attributes are added to all spans. They come from TRACE_SERVICE_NAME, TRACE_ATTRIBUTES_PATH,
	// TRACE_EXTRA_ATTRIBUTES and OTEL_RESOURCE_ATTRIBUTES, in ascending precedence.
	Attributes map[string]string
}

// Controller is a server in the control plane.
type Controller struct {
	Addr string // host:port
	Name string // identity that the server must prove with TLS; empty means cleartext
}

// Queue configures a queue in which requests or connections wait for a target.
type Queue struct {
	Capacity int           // how many may wait; 0 means no waiting
	FailFast time.Duration // maximum wait; 0 means no waiting, see MaxWait
}

// Connect configures how the proxy connects to endpoints, to the application or to the control
// plane.
type Connect struct {
	Timeout time.Duration // _CONNECT_TIMEOUT
	Backoff layer.Backoff // _CONNECT_EXP_BACKOFF_{MIN,MAX,JITTER}
	Socket  Socket        // _CONNECT_KEEPALIVE, _CONNECT_USER_TIMEOUT
}

// Socket configures the sockets of accepted connections, or of connections that the proxy makes.
// Zero fields mean the system's default.
type Socket struct {
	KeepAlive   time.Duration // _ACCEPT_KEEPALIVE: idle time before a probe
	UserTimeout time.Duration // _ACCEPT_USER_TIMEOUT: maximum time without acknowledgment
	Backlog     int           // _TCP_LISTEN_BACKLOG; only for listeners
}

// Pool limits idle HTTP/1.1 connections to one endpoint.
type Pool struct {
	MaxIdle int
	Idle    time.Duration // idle timeout
}

// HTTP2 configures HTTP/2 for connections that the proxy accepts. Zero fields mean the server's
// default.
type HTTP2 struct {
	MaxConcurrentStreams         uint32
	MaxFrameSize                 uint32
	MaxHeaderListSize            uint32 // also for HTTP/1
	MaxPendingAcceptResetStreams int
	MaxSendBufSize               int
	AdaptiveFlowControl          bool
	KeepAliveInterval            time.Duration
	KeepAliveTimeout             time.Duration
	InitialStreamWindowSize      uint32 // default: HTTP2_INITIAL_STREAM_WINDOW_SIZE
	InitialConnectionWindowSize  uint32 // default: HTTP2_INITIAL_CONNECTION_WINDOW_SIZE; from 65 535
}

// StreamLimits limits the streams from the destination controller: Initial is the maximum wait for
// the first message, Idle the one between two messages, and Lifetime limits the whole stream. 0
// means no limit. The limits that are not 0 must satisfy Initial ≤ Idle ≤ Lifetime. The proxy raises Idle and
// Lifetime to at least 10 s. See also [Control.Limits].
type StreamLimits struct {
	Initial, Idle, Lifetime time.Duration
}

// DNS bounds how long a DNS answer is used, which is normally its TTL. 0 means no bound.
type DNS struct {
	MinTTL, MaxTTL time.Duration
}
