package settings

import (
	"net/netip"
	"time"

	"github.com/gotower/gotower/layer"
)

// Settings is the configuration of a proxy. The comment of each field contains the name of
// its environment variable, without the prefix [Prefix]. A name that begins with an
// underscore, such as _CONNECT_TIMEOUT, follows the word OUTBOUND, INBOUND or CONTROL.
type Settings struct {
	Outbound Outbound
	Inbound  Inbound
	Control  Control
	Policy   Policy
	Identity *Identity // nil means that the proxy has no identity
	Tap      Tap
	Admin    Admin
	Shutdown Shutdown
	Log      Log
	Metrics  Metrics
	Cores    Cores

	// ReusePort (GOTOWER_REUSE_PORT) allows two proxies to listen on the same addresses, so
	// that a new proxy can replace a running one.
	ReusePort bool

	// Warnings contains messages for the log about settings that the proxy ignores or
	// changes.
	Warnings []string
}

// Outbound configures the connections that the application makes.
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
	DiscoveryIdle time.Duration // OUTBOUND_DISCOVERY_IDLE_TIMEOUT: idle timeout of targets

	Ingress bool // INGRESS_MODE: l5d-dst-override overrides the target
	Quiet   bool // OUTBOUND_DISABLE_INFORMATIONAL_HEADERS: no l5d-proxy-* headers
}

// Inbound configures the connections that are made to the application.
type Inbound struct {
	Listen netip.AddrPort // INBOUND_LISTEN_ADDR
	Origin Origin         // GOTOWER_INBOUND_ORIGIN, else GOTOWER_ORIGIN
	Accept Socket
	Server HTTP2 // INBOUND_SERVER_HTTP2_*

	DetectTimeout time.Duration // INBOUND_DETECT_TIMEOUT

	MaxInFlight int           // INBOUND_MAX_IN_FLIGHT
	BodyIdle    time.Duration // GOTOWER_INBOUND_BODY_IDLE: maximum pause of uploads of clients without an identity; 0: no limit
	HTTPQueue   Queue         // INBOUND_HTTP_QUEUE_CAPACITY, INBOUND_HTTP_FAILFAST_TIMEOUT

	Connect       Connect
	Pool          Pool          // MAX_IDLE_CONNS_PER_ENDPOINT, INBOUND_HTTP1_CONNECTION_POOL_IDLE_TIMEOUT
	DiscoveryIdle time.Duration // INBOUND_DISCOVERY_IDLE_TIMEOUT: idle timeout of targets

	DefaultPolicy   DefaultPolicy // INBOUND_DEFAULT_POLICY
	Ports           Ports         // INBOUND_PORTS: ports with policies that are watched from the start
	OpaquePorts     Ports         // INBOUND_PORTS_DISABLE_PROTOCOL_DETECTION: the server may speak first
	RequireIdentity Ports         // INBOUND_PORTS_REQUIRE_IDENTITY: only for clients with an identity
	RequireTLS      Ports         // INBOUND_PORTS_REQUIRE_TLS: only for clients that speak TLS to this proxy

	IPs             []netip.Addr // INBOUND_IPS: addresses of the pod; empty means all addresses
	AuthorityLabels bool         // INBOUND_METRICS_AUTHORITY_LABELS=unsafe
}

// Control configures the connections to the control plane, and the look-up of profiles,
// endpoints and DNS names.
type Control struct {
	Destination  Controller // DESTINATION_SVC_ADDR, DESTINATION_SVC_NAME
	ContextToken string     // DESTINATION_CONTEXT

	ProfileSuffixes Suffixes       // DESTINATION_PROFILE_SUFFIXES: names with profiles
	ProfileNetworks []netip.Prefix // DESTINATION_PROFILE_NETWORKS: addresses with profiles
	ProfileInitial  time.Duration  // DESTINATION_PROFILE_INITIAL_TIMEOUT: maximum wait for the first profile
	GetSuffixes     Suffixes       // DESTINATION_GET_SUFFIXES: names with endpoints; default: all

	Connect         Connect       // CONTROL_CONNECT_TIMEOUT, CONTROL_CONNECT_EXP_BACKOFF_*; only Timeout and Backoff
	DispatchTimeout time.Duration // CONTROL_DISPATCH_TIMEOUT: of unary calls
	Streams         StreamLimits  // CONTROL_STREAM_*
	DNS             DNS           // DNS_MIN_TTL, DNS_MAX_TTL
}

// Policy configures the policy controller. Without an address of the controller, only
// INBOUND_DEFAULT_POLICY and INBOUND_PORTS_REQUIRE_* apply.
type Policy struct {
	Controller      Controller     // POLICY_SVC_ADDR, POLICY_SVC_NAME
	Workload        string         // POLICY_WORKLOAD: identifies this workload to the policy controller
	ClusterNetworks []netip.Prefix // POLICY_CLUSTER_NETWORKS: networks of the cluster in INBOUND_DEFAULT_POLICY
}

// Identity configures the identity of this proxy, for which the control plane issues a
// certificate.
type Identity struct {
	Controller   Controller    // IDENTITY_SVC_ADDR, IDENTITY_SVC_NAME
	Dir          string        // IDENTITY_DIR: directory of csr.der and key.p8
	TrustAnchors []byte        // IDENTITY_TRUST_ANCHORS: PEM, at least one certificate
	TokenFile    string        // IDENTITY_TOKEN_FILE
	ServerID     string        // IDENTITY_SERVER_ID, else IDENTITY_LOCAL_NAME: identity in the certificate
	ServerName   string        // IDENTITY_SERVER_NAME, else IDENTITY_LOCAL_NAME: TLS server name of this proxy
	MinRefresh   time.Duration // IDENTITY_MIN_REFRESH
	MaxRefresh   time.Duration // IDENTITY_MAX_REFRESH
	Generate     bool          // GOTOWER_IDENTITY_GENERATE: write a new key and request to Dir at the start
}

// Tap configures the tap server, which streams live requests.
type Tap struct {
	Listen netip.AddrPort // CONTROL_LISTEN_ADDR; default with an identity and a Name: 0.0.0.0:4190

	// Name (TAP_SVC_NAME) is the identity of the client that may watch. If the proxy has an
	// identity, an empty Name turns tap off. If the proxy has no identity, only clients on
	// this machine may watch. Name is empty if TAP_DISABLED is set.
	Name     string
	Disabled bool              // TAP_DISABLED
	Labels   map[string]string // TAP_LABELS: labels of the application in tap
}

// Admin configures the admin server, which serves health checks, metrics and the page of
// tap.
type Admin struct {
	Listen netip.AddrPort // ADMIN_LISTEN_ADDR
}

// Shutdown configures how the proxy ends its connections, and whether an HTTP request can
// end the proxy.
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

// Metrics configures the metrics that the admin server exports.
type Metrics struct {
	RetainIdle time.Duration // METRICS_RETAIN_IDLE: how long a series without changes is exported, at least 100 ms
}

// Controller is the address and the identity of a server of the control plane.
type Controller struct {
	Addr string // host:port
	Name string // identity that the server must prove by TLS; empty means cleartext
}

// Queue configures the queue in which requests, or connections, wait for a target.
type Queue struct {
	Capacity int           // number of waiting requests; 0 means no waiting
	FailFast time.Duration // maximum wait; 0 means no waiting, see MaxWait
}

// Connect configures how the proxy connects to endpoints, to the application or to the
// control plane.
type Connect struct {
	Timeout time.Duration // _CONNECT_TIMEOUT
	Backoff layer.Backoff // _CONNECT_EXP_BACKOFF_{MIN,MAX,JITTER}
	Socket  Socket        // _CONNECT_KEEPALIVE, _CONNECT_USER_TIMEOUT
}

// Socket configures the sockets of accepted connections, or of connections that the proxy
// makes. A zero field means the default of the system.
type Socket struct {
	KeepAlive   time.Duration // _ACCEPT_KEEPALIVE: idle time before a probe
	UserTimeout time.Duration // _ACCEPT_USER_TIMEOUT: maximum time without acknowledgment
	Backlog     int           // _TCP_LISTEN_BACKLOG; of listeners only
}

// Pool limits the idle HTTP/1.1 connections to one endpoint.
type Pool struct {
	MaxIdle int           // maximum number of idle connections
	Idle    time.Duration // idle timeout
}

// HTTP2 configures HTTP/2 for the connections that the proxy accepts. A zero field means
// the default of the server.
type HTTP2 struct {
	MaxConcurrentStreams         uint32
	MaxFrameSize                 uint32
	MaxHeaderListSize            uint32 // also of HTTP/1
	MaxPendingAcceptResetStreams int
	MaxSendBufSize               int
	AdaptiveFlowControl          bool
	KeepAliveInterval            time.Duration
	KeepAliveTimeout             time.Duration
	InitialStreamWindowSize      uint32 // default: HTTP2_INITIAL_STREAM_WINDOW_SIZE
	InitialConnectionWindowSize  uint32 // default: HTTP2_INITIAL_CONNECTION_WINDOW_SIZE; from 65 535
}

// StreamLimits are the time limits of the streams of the destination controller. Initial
// limits the wait for the first message, Idle the time between two messages, and Lifetime
// the whole stream. 0 means no limit. The proxy uses at least 10 s for an Idle or Lifetime
// that is not 0. Values that are not 0 must satisfy Initial ≤ Idle ≤ Lifetime. See also
// [Control.Limits].
type StreamLimits struct {
	Initial, Idle, Lifetime time.Duration
}

// DNS limits the TTL of DNS records. The proxy looks up a name again after the limited
// TTL. A limit of 0 means no limit.
type DNS struct {
	MinTTL, MaxTTL time.Duration
}
