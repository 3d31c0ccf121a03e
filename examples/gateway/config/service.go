package config

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gotower/gotower/layer"
)

// Service is a set of endpoints that serve the same requests. They come from exactly one source:
// static, dns, kubernetes or linkerd. A service with directResponse has no endpoints.
type Service struct {
	// How routes, logs and metrics refer to the service.
	Name Name `yaml:"name" is:"required"`

	// Endpoints at fixed addresses.
	Static *Static `yaml:"static"`
	// Endpoints that DNS resolves.
	DNS *DNS `yaml:"dns"`
	// A Kubernetes Service's endpoints.
	Kubernetes *Kubernetes `yaml:"kubernetes"`
	// Endpoints from linkerd's destination controller.
	Linkerd *Linkerd `yaml:"linkerd"`
	// Responds with a fixed response.
	DirectResponse *DirectResponse `yaml:"directResponse"`

	// Protocol that the endpoints speak. Auto uses HTTP/2 for gRPC and, with TLS, for requests
	// that arrived over HTTP/2. Everything else uses HTTP/1.1.
	Protocol string `yaml:"protocol" default:"Auto" enum:"Auto,HTTP1,HTTP2"`
	// TLS for connections to the endpoints. Absent means cleartext.
	TLS *ServiceTLS `yaml:"tls"`
	// Begins each connection, even for health checks, with a PROXY protocol header that tells the
	// client's address. It comes before TLS. Only tcpRoutes may refer to such a service, because
	// an HTTP connection carries requests from several clients. Absent means no header.
	ProxyProtocol *ProxyProtocol `yaml:"proxyProtocol"`
	// Time limit for connecting to an endpoint, including the TLS handshake.
	ConnectTimeout Duration `yaml:"connectTimeout" default:"5s"`
	// How an endpoint is selected for each request.
	LoadBalancer LoadBalancer `yaml:"loadBalancer"`
	// Sends all requests in a browser session to the same endpoint, by means of a cookie.
	SessionPersistence *SessionPersistence `yaml:"sessionPersistence"`
	// Checks each endpoint in the background. Unhealthy endpoints get no requests. Absent means
	// no checks.
	HealthCheck *HealthCheck `yaml:"healthCheck"`
	// Queue for requests while no endpoint is ready.
	Queue Queue `yaml:"queue"`
	// Limits for each endpoint's connections and concurrent requests.
	CircuitBreakers CircuitBreakers `yaml:"circuitBreakers"`
	// Ejects endpoints that fail more often than others. Without it, the load balancer still
	// avoids failing endpoints, except with the policies RoundRobin and Random.
	OutlierDetection *OutlierDetection `yaml:"outlierDetection"`

	version, settings string
}

// Version returns a text that changes when new connections are needed, which is the case for all
// fields except static.addresses, loadBalancer, sessionPersistence, queue,
// circuitBreakers.maxRequests and outlierDetection.
func (s *Service) Version() string { return s.version }

// Settings returns a text that changes when any field changes.
func (s *Service) Settings() string { return s.settings }

// setVersions computes what Version and Settings return.
func (s *Service) setVersions() {
	s.settings = digest(s)
	// A copy without these fields has the same digest as long as only they change.
	fixed := *s
	fixed.LoadBalancer = LoadBalancer{}
	fixed.SessionPersistence = nil
	fixed.OutlierDetection = nil
	fixed.Queue = Queue{}
	fixed.CircuitBreakers.MaxRequests = 0
	if s.Static != nil {
		fixed.Static = &Static{}
	}
	s.version = digest(&fixed)
}

func (s *Service) oneOf() []string {
	return []string{"static", "dns", "kubernetes", "linkerd", "directResponse"}
}

// check implements [checked]. It reports fields that exclude each other.
func (s *Service) check(n node) {
	if s.ConnectTimeout == 0 {
		n.at("connectTimeout").failf("want a duration above 0")
	}
	// A TCP check connects to an address, which a Unix socket does not have.
	if s.Static != nil && s.HealthCheck != nil && s.HealthCheck.TCP {
		for _, a := range s.Static.addresses() {
			if _, ok := a.Socket(); ok {
				n.at("healthCheck").at("tcp").failf("want path or grpc for the Unix socket %s", a)
			}
		}
	}
	if s.SessionPersistence != nil && s.LoadBalancer.Policy != "EWMA" {
		n.at("sessionPersistence").failf("want no loadBalancer.policy beside sessionPersistence, because that uses consistent hashing")
	}
}

// Static is a list of endpoints at fixed addresses.
type Static struct {
	// IP addresses with ports, or Unix sockets such as unix:/run/app.sock.
	Addresses []EndpointAddress `yaml:"addresses"`
	// Endpoints with weights.
	Endpoints []StaticEndpoint `yaml:"endpoints"`
}

// StaticEndpoint is an endpoint at a fixed address.
type StaticEndpoint struct {
	// IP address with a port, or Unix socket.
	Address EndpointAddress `yaml:"address" is:"required"`
	// Share of the requests, relative to the other endpoints.
	Weight int `yaml:"weight" default:"1" min:"1" max:"1000"`
}

func (s *Static) oneOf() []string { return []string{"addresses", "endpoints"} }

// check implements [checked]. Unlike a missing list of addresses, an empty one is a mistake.
func (s *Static) check(n node) {
	for _, name := range s.oneOf() {
		if n.has(name) && len(s.List()) == 0 {
			n.at(name).failf("want at least one address, such as 10.0.0.1:80")
		}
	}
}

// List returns all endpoints.
func (s *Static) List() []StaticEndpoint {
	list := slices.Clone(s.Endpoints)
	// An address without a weight has the default.
	for _, address := range s.Addresses {
		list = append(list, StaticEndpoint{Address: address, Weight: 1})
	}
	return list
}

func (s *Static) addresses() []EndpointAddress {
	list := s.List()
	all := make([]EndpointAddress, 0, len(list))
	for _, e := range list {
		all = append(all, e.Address)
	}
	return all
}

// DNS resolves a name to endpoints, and again whenever its records' TTL has passed.
type DNS struct {
	// A name with a port, such as "books.example:80". A name without a port is resolved by SRV
	// records.
	Name string `yaml:"name" is:"required"`
}

// check implements [checked]. Only a name that stands for SRV records has no port.
func (d *DNS) check(n node) {
	var h HostPort
	if h.parse(d.Name) != nil && !isDomain(d.Name) {
		n.at("name").failf("want a DNS name with a port, such as books.example:80, or without one for SRV records")
	}
}

// Kubernetes uses the endpoints of a Kubernetes Service. The gateway watches its EndpointSlices.
type Kubernetes struct {
	// The Service's name, namespace and port, such as "books.shop:80" or "books.shop:http".
	Name string `yaml:"name" is:"required"`
	// A file with the API server's address and credentials. The default is the pod's service
	// account.
	Kubeconfig *File `yaml:"kubeconfig"`
}

// check implements [checked]. The name must be complete, because there is no default namespace or port.
func (k *Kubernetes) check(n node) {
	host, port, ok := strings.Cut(k.Name, ":")
	if service, namespace, dot := strings.Cut(host, "."); !ok || !dot || port == "" || !isLabel(service) || !isDomain(namespace) {
		n.at("name").failf("want a Service with its namespace and port, such as books.shop:80")
	}
}

// Linkerd gets endpoints from linkerd's destination controller.
type Linkerd struct {
	// The service's name and port, such as "books.shop.svc.cluster.local:80".
	Name HostPort `yaml:"name" is:"required"`
	// The destination controller's address.
	Controller HostPort `yaml:"controller" default:"linkerd-dst-headless.linkerd.svc.cluster.local:8086"`
}

// ServiceTLS configures TLS for connections to endpoints.
type ServiceTLS struct {
	// The name that the endpoints' certificates must contain. It is required, unless
	// insecureSkipVerify is true.
	ServerName Hostname `yaml:"serverName"`
	// A PEM file with the certificate authorities that the endpoints' certificates may come from.
	// The default is the system's.
	CACertificates *File `yaml:"caCertificates"`
	// The certificate that the gateway presents to endpoints. Absent means none.
	ClientCertificate *Certificate `yaml:"clientCertificate"`
	// True accepts any certificate from an endpoint. Use it only for tests.
	InsecureSkipVerify bool `yaml:"insecureSkipVerify"`

	pool *x509.CertPool
}

// check implements [checked], and parses the certificates.
func (t *ServiceTLS) check(n node) {
	if t.CACertificates != nil {
		t.pool = poolOf(n.at("caCertificates"), *t.CACertificates)
	}
	if t.ServerName == "" && !t.InsecureSkipVerify {
		n.at("serverName").failf("missing: serverName is required, unless insecureSkipVerify is true")
	}
}

// Config returns the crypto/tls configuration for connections to endpoints.
func (t *ServiceTLS) Config() *tls.Config {
	cfg := &tls.Config{
		ServerName: string(t.ServerName), RootCAs: t.pool,
		InsecureSkipVerify: t.InsecureSkipVerify, //nolint:gosec // the user has asked for it
	}
	if t.ClientCertificate != nil {
		cfg.Certificates = []tls.Certificate{t.ClientCertificate.pair}
	}
	return cfg
}

// ProxyProtocol describes the PROXY protocol header for endpoints.
type ProxyProtocol struct {
	// V1 is text, and V2 is binary.
	Version string `yaml:"version" default:"V2" enum:"V1,V2"`
}

// Number returns the version as a number.
func (p *ProxyProtocol) Number() int {
	if p.Version == "V1" {
		return 1
	}
	return 2
}

// LoadBalancer says how an endpoint is selected for each request.
type LoadBalancer struct {
	// EWMA prefers endpoints that are fast and have few requests. LeastRequest looks only at the
	// number of requests. ConsistentHash sends requests with the same hash key to the same
	// endpoint.
	Policy string `yaml:"policy" default:"EWMA" enum:"EWMA,LeastRequest,RoundRobin,Random,ConsistentHash"`
	// The hash key for the policy ConsistentHash.
	Hash *Hash `yaml:"hash"`
	// How long a new endpoint gets less than its full share of requests, while the share grows.
	// 0s means that it gets its full share immediately.
	SlowStart Duration `yaml:"slowStart"`
}

// check implements [checked]. The hash and the policy that uses it need each other.
func (l *LoadBalancer) check(n node) {
	switch {
	case l.Policy == "ConsistentHash" && l.Hash == nil:
		n.at("hash").failf("missing: policy ConsistentHash needs hash")
	case l.Policy != "ConsistentHash" && l.Hash != nil:
		n.at("hash").failf("want policy: ConsistentHash beside hash")
	}
	if l.SlowStart.D() > 24*time.Hour {
		n.at("slowStart").failf("want a duration of at most 24h")
	}
}

// Hash says what identifies requests for consistent hashing.
type Hash struct {
	// Name of a header field with the key.
	Header HeaderName `yaml:"header"`
	// Name of a cookie with the key.
	Cookie HeaderName `yaml:"cookie"`
	// Name of a query parameter with the key.
	QueryParam string `yaml:"queryParam"`
	// True uses the client's IP address as the key.
	SourceIP bool `yaml:"sourceIP"`
}

func (h *Hash) oneOf() []string { return []string{"header", "cookie", "queryParam", "sourceIP"} }

// SessionPersistence sends all requests in a browser session to the same endpoint.
type SessionPersistence struct {
	// Name of the cookie, set by the gateway, that identifies the endpoint.
	SessionName HeaderName `yaml:"sessionName" is:"required"`
}

// HealthCheck checks endpoints in the background. If all endpoints are unhealthy, all of them get
// requests.
type HealthCheck struct {
	// Path for an HTTP request. An endpoint is healthy if it responds with an expected status.
	Path Path `yaml:"path"`
	// Method for the HTTP request. The default is GET.
	Method Method `yaml:"method"`
	// Host for the HTTP request, with an optional port. The default is the service's name.
	Hostname string `yaml:"hostname"`
	// Header fields for the HTTP request.
	Headers []Header `yaml:"headers"`
	// Statuses of a healthy endpoint. The default is 200 to 299.
	ExpectedStatuses []Status `yaml:"expectedStatuses"`
	// Service name for a call to grpc.health.v1.Health. "" means the whole server.
	GRPC *Text `yaml:"grpc"`
	// True checks that the endpoint accepts TCP connections.
	TCP bool `yaml:"tcp"`
	// Time between two checks of an endpoint.
	Interval Duration `yaml:"interval" default:"5s"`
	// Time limit for one check.
	Timeout Duration `yaml:"timeout" default:"1s"`
	// How many checks in a row must succeed before an endpoint becomes healthy.
	HealthyThreshold int `yaml:"healthyThreshold" default:"1" min:"1" max:"100"`
	// How many checks in a row must fail before an endpoint becomes unhealthy.
	UnhealthyThreshold int `yaml:"unhealthyThreshold" default:"3" min:"1" max:"100"`
}

func (h *HealthCheck) oneOf() []string { return []string{"path", "grpc", "tcp"} }

// check implements [checked]. It reports fields of a request without a path, and headers that cannot be sent.
func (h *HealthCheck) check(n node) {
	// These fields only have a meaning for an HTTP request.
	for _, name := range []string{"method", "hostname", "headers", "expectedStatuses"} {
		if h.Path == "" && n.has(name) {
			n.at(name).failf("want path beside %s", name)
		}
	}
	// A header mutation knows which hosts and fields may be sent.
	host := layer.HeaderMutation{Set: []layer.HeaderField{{Name: "Host", Value: h.Hostname}}}
	if h.Hostname != "" && host.Validate() != nil {
		n.at("hostname").failf("want a host name with an optional port, such as books.example")
	}
	for i, f := range h.Headers {
		fields := layer.HeaderMutation{Add: []layer.HeaderField{{Name: string(f.Name), Value: string(f.Value)}}}
		if fields.Validate() != nil {
			n.at("headers").item(i).at("name").failf("cannot be sent: use hostname for Host, and leave out fields of the connection")
		}
	}
	if h.Interval.D() < time.Millisecond {
		n.at("interval").failf("want a duration of at least 1ms")
	}
	if h.Timeout == 0 {
		n.at("timeout").failf("want a duration above 0")
	}
}

// Queue says how requests wait until an endpoint is known, or while all are busy. If all
// endpoints have failed, requests fail without waiting.
type Queue struct {
	// Maximum number of waiting requests. 0 means that requests are rejected immediately.
	Capacity int `yaml:"capacity" default:"1000" min:"0" max:"1000000"`
	// Maximum time that a request waits before it gets the status 503.
	MaxWait Duration `yaml:"maxWait" default:"3s"`
}

// check reports a queue that has room, but in which no request may wait.
func (q *Queue) check(n node) {
	if q.MaxWait == 0 && q.Capacity > 0 {
		n.at("maxWait").failf("want a duration above 0")
	}
}

// CircuitBreakers limits connections and concurrent requests for each endpoint.
type CircuitBreakers struct {
	// Maximum number of HTTP/1.1 connections to an endpoint. 0 means no limit.
	MaxConnections int `yaml:"maxConnections" min:"0" max:"1000000"`
	// Maximum number of concurrent requests to an endpoint. 0 means no limit.
	MaxRequests int `yaml:"maxRequests" min:"0" max:"1000000"`
}

// OutlierDetection ejects endpoints that fail more often than others.
type OutlierDetection struct {
	// How many failures in a row eject an endpoint. 0 disables this rule.
	ConsecutiveFailures int `yaml:"consecutiveFailures" default:"5" min:"0" max:"1000"`
	// How often the endpoints' success rates are compared. 0s disables the comparison.
	Interval Duration `yaml:"interval" default:"10s"`
	// How long an endpoint's first ejection lasts. Further ejections last longer.
	BaseEjectionTime Duration `yaml:"baseEjectionTime" default:"30s"`
	// Maximum percentage of endpoints that may be ejected at the same time.
	MaxEjectionPercent float64 `yaml:"maxEjectionPercent" default:"50" min:"0" max:"99"`
}

// check implements [checked]. The limits are those of package balance.
func (o *OutlierDetection) check(n node) {
	if d := o.Interval.D(); d != 0 && (d < time.Millisecond || d > time.Hour) {
		n.at("interval").failf("want 0s, or a duration from 1ms to 1h")
	}
	if o.BaseEjectionTime.D() < time.Millisecond {
		n.at("baseEjectionTime").failf("want a duration of at least 1ms")
	}
}

// Describe summarizes the service: its name, where its endpoints come from, their protocol, and
// the load balancer policy.
func (s *Service) Describe() string {
	// Exactly one of the sources is set.
	source := ""
	switch {
	case s.Static != nil:
		source = fmt.Sprint("static ", s.Static.addresses())
	case s.DNS != nil:
		source = "dns " + s.DNS.Name
	case s.Kubernetes != nil:
		source = "kubernetes " + s.Kubernetes.Name
	case s.Linkerd != nil:
		source = "linkerd " + string(s.Linkerd.Name)
	case s.DirectResponse != nil:
		return fmt.Sprintf("%s: direct response %d", s.Name, s.DirectResponse.Status)
	}
	if s.TLS != nil {
		source += ", TLS"
	}
	if s.ProxyProtocol != nil {
		source += ", PROXY " + s.ProxyProtocol.Version
	}
	return fmt.Sprintf("%s: %s, protocol %s, %s", s.Name, source, s.Protocol, s.LoadBalancer.Policy)
}

// String returns the service's name.
func (s *Service) String() string { return string(s.Name) }
