package config

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Service is a set of endpoints that serve the same requests.
type Service struct {
	// The name, for routes and metrics.
	Name Name `yaml:"name" is:"required"`

	// Endpoints at fixed addresses.
	Static *Static `yaml:"static"`
	// Endpoints by DNS.
	DNS *DNS `yaml:"dns"`
	// The endpoints of a Kubernetes Service.
	Kubernetes *Kubernetes `yaml:"kubernetes"`
	// Endpoints from linkerd's destination controller.
	Linkerd *Linkerd `yaml:"linkerd"`

	// The protocol of the endpoints. Auto sends gRPC, and with TLS requests received by HTTP/2,
	// by HTTP/2, and all others by HTTP/1.1.
	Protocol string `yaml:"protocol" default:"Auto" enum:"Auto,HTTP1,HTTP2"`
	// TLS towards the endpoints. Absent means cleartext.
	TLS *ServiceTLS `yaml:"tls"`
	// Limits the time to connect to an endpoint, TLS included.
	ConnectTimeout Duration `yaml:"connectTimeout" default:"1s"`
	// How an endpoint is picked.
	LoadBalancer LoadBalancer `yaml:"loadBalancer"`
	// Sends the requests of a browser session to the same endpoint, by a cookie.
	SessionPersistence *SessionPersistence `yaml:"sessionPersistence"`
	// Checks each endpoint in the background. An unhealthy endpoint gets no requests.
	HealthCheck *HealthCheck `yaml:"healthCheck"`
	// Requests wait here while no endpoint is ready.
	Queue Queue `yaml:"queue"`
	// Limits for each endpoint.
	CircuitBreakers CircuitBreakers `yaml:"circuitBreakers"`
	// Ejects endpoints that fail more often than others. The load balancer avoids failing
	// endpoints without it, except with the policies RoundRobin and Random.
	OutlierDetection *OutlierDetection `yaml:"outlierDetection"`

	version string
}

// Version returns a text that changes with the service.
func (s *Service) Version() string { return s.version }

func (s *Service) oneOf() []string { return []string{"static", "dns", "kubernetes", "linkerd"} }

func (s *Service) check(n node) {
	if s.ConnectTimeout == 0 {
		n.at("connectTimeout").failf("want a duration above 0")
	}
	if s.SessionPersistence != nil && s.LoadBalancer.Policy != "EWMA" {
		n.at("sessionPersistence").failf("want no loadBalancer.policy beside sessionPersistence, because that uses consistent hashing")
	}
}

// Static has endpoints at fixed addresses.
type Static struct {
	// IP addresses with ports.
	Addresses []HostPort `yaml:"addresses" is:"required"`
}

func (s *Static) check(n node) {
	if len(s.Addresses) == 0 {
		n.at("addresses").failf("want at least one address, such as 10.0.0.1:80")
	}
	for i, a := range s.Addresses {
		if _, err := netip.ParseAddrPort(string(a)); err != nil {
			n.at("addresses").item(i).failf("want an IP address with a port, such as 10.0.0.1:80; use dns for names")
		}
	}
}

// DNS resolves endpoints by DNS. A change is noticed after the TTL.
type DNS struct {
	// A name with a port: "books.example:80". A name without a port asks for SRV records.
	Name string `yaml:"name" is:"required"`
}

func (d *DNS) check(n node) {
	var h HostPort
	if h.parse(d.Name) != nil && !isDomain(d.Name) {
		n.at("name").failf("want a DNS name with a port, such as books.example:80, or without one for SRV records")
	}
}

// Kubernetes watches the EndpointSlices of a Service.
type Kubernetes struct {
	// The Service and its port: "books.shop:80" or "books.shop:http".
	Name string `yaml:"name" is:"required"`
	// The file with the address and the credentials of the API server. The default is that of
	// the pod.
	Kubeconfig *File `yaml:"kubeconfig"`
}

func (k *Kubernetes) check(n node) {
	host, port, ok := strings.Cut(k.Name, ":")
	if service, namespace, dot := strings.Cut(host, "."); !ok || !dot || port == "" || !isLabel(service) || !isDomain(namespace) {
		n.at("name").failf("want a Service with its namespace and port, such as books.shop:80")
	}
}

// Linkerd resolves endpoints by linkerd's destination controller.
type Linkerd struct {
	// The name and port of the service: "books.shop.svc.cluster.local:80".
	Name HostPort `yaml:"name" is:"required"`
	// The address of the controller.
	Controller HostPort `yaml:"controller" default:"linkerd-dst-headless.linkerd.svc.cluster.local:8086"`
}

// ServiceTLS configures TLS towards endpoints.
type ServiceTLS struct {
	// The name that the certificates of the endpoints must have.
	ServerName Hostname `yaml:"serverName"`
	// The file with the certificate authorities in PEM. The default is those of the system.
	CACertificates *File `yaml:"caCertificates"`
	// The certificate that the gateway presents.
	ClientCertificate *Certificate `yaml:"clientCertificate"`
	// Accepts every certificate. Only for tests.
	InsecureSkipVerify bool `yaml:"insecureSkipVerify"`

	pool *x509.CertPool
}

func (t *ServiceTLS) check(n node) {
	if t.CACertificates != nil {
		t.pool = poolOf(n.at("caCertificates"), *t.CACertificates)
	}
	if t.ServerName == "" && !t.InsecureSkipVerify {
		n.at("serverName").failf("missing: serverName is required, unless insecureSkipVerify is true")
	}
}

// Config returns the configuration for crypto/tls.
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

// LoadBalancer configures how an endpoint is picked.
type LoadBalancer struct {
	// EWMA prefers fast endpoints with few requests. ConsistentHash sends requests with the
	// same key to the same endpoint.
	Policy string `yaml:"policy" default:"EWMA" enum:"EWMA,LeastRequest,RoundRobin,Random,ConsistentHash"`
	// The key of ConsistentHash.
	Hash *Hash `yaml:"hash"`
	// The time in which the load of a new endpoint grows to its share.
	SlowStart Duration `yaml:"slowStart"`
}

func (l *LoadBalancer) check(n node) {
	switch {
	case l.Policy == "ConsistentHash" && l.Hash == nil:
		n.at("hash").failf("missing: policy ConsistentHash needs hash")
	case l.Policy != "ConsistentHash" && l.Hash != nil:
		n.at("hash").failf("want policy: ConsistentHash beside hash")
	}
}

// Hash is the key of consistent hashing.
type Hash struct {
	// The value of a request header field.
	Header HeaderName `yaml:"header"`
	// The value of a cookie.
	Cookie HeaderName `yaml:"cookie"`
	// The value of a query parameter.
	QueryParam string `yaml:"queryParam"`
	// The IP address of the client.
	SourceIP bool `yaml:"sourceIP"`
}

func (h *Hash) oneOf() []string { return []string{"header", "cookie", "queryParam", "sourceIP"} }

// SessionPersistence sends the requests of a session to the same endpoint.
type SessionPersistence struct {
	// The name of the cookie, which the gateway sets.
	SessionName HeaderName `yaml:"sessionName" is:"required"`
}

// HealthCheck checks endpoints. If all endpoints are unhealthy, all are used.
type HealthCheck struct {
	// The path of a GET request. A response 2xx is healthy.
	Path Path `yaml:"path"`
	// The service name of a call of grpc.health.v1.Health; "" is the whole server.
	GRPC *Text `yaml:"grpc"`
	// True: a TCP connection is healthy.
	TCP bool `yaml:"tcp"`
	// The time between two checks of an endpoint.
	Interval Duration `yaml:"interval" default:"5s"`
	// Limits the time of a check.
	Timeout Duration `yaml:"timeout" default:"1s"`
	// Checks in a row that must succeed.
	HealthyThreshold int `yaml:"healthyThreshold" default:"1" min:"1" max:"100"`
	// Checks in a row that must fail.
	UnhealthyThreshold int `yaml:"unhealthyThreshold" default:"3" min:"1" max:"100"`
}

func (h *HealthCheck) oneOf() []string { return []string{"path", "grpc", "tcp"} }

func (h *HealthCheck) check(n node) {
	if h.Interval.D() < time.Millisecond {
		n.at("interval").failf("want a duration of at least 1ms")
	}
	if h.Timeout == 0 {
		n.at("timeout").failf("want a duration above 0")
	}
}

// Queue holds requests while no endpoint is ready.
type Queue struct {
	// The number of waiting requests. 0 rejects requests at once.
	Capacity int `yaml:"capacity" default:"1000" min:"0" max:"1000000"`
	// The longest wait.
	MaxWait Duration `yaml:"maxWait" default:"3s"`
}

func (q *Queue) check(n node) {
	if q.MaxWait == 0 && q.Capacity > 0 {
		n.at("maxWait").failf("want a duration above 0")
	}
}

// CircuitBreakers are limits for each endpoint.
type CircuitBreakers struct {
	// Concurrent HTTP/1.1 connections. 0 means no limit.
	MaxConnections int `yaml:"maxConnections" min:"0" max:"1000000"`
	// Concurrent requests. 0 means no limit.
	MaxRequests int `yaml:"maxRequests" min:"0" max:"1000000"`
}

// OutlierDetection ejects endpoints that fail more often than others.
type OutlierDetection struct {
	// Failures in a row after which an endpoint is ejected. 0 disables the rule.
	ConsecutiveFailures int `yaml:"consecutiveFailures" default:"5" min:"0" max:"1000"`
	// The time between two comparisons of success rates. 0 disables the rule.
	Interval Duration `yaml:"interval" default:"10s"`
	// The time of the first ejection.
	BaseEjectionTime Duration `yaml:"baseEjectionTime" default:"30s"`
	// The largest share of endpoints that are ejected.
	MaxEjectionPercent float64 `yaml:"maxEjectionPercent" default:"50" min:"0" max:"99"`
}

// Describe returns the name, the endpoints and the protocol of the service.
func (s *Service) Describe() string {
	where := ""
	switch {
	case s.Static != nil:
		where = fmt.Sprint("static ", s.Static.Addresses)
	case s.DNS != nil:
		where = "dns " + s.DNS.Name
	case s.Kubernetes != nil:
		where = "kubernetes " + s.Kubernetes.Name
	case s.Linkerd != nil:
		where = "linkerd " + string(s.Linkerd.Name)
	}
	if s.TLS != nil {
		where += ", TLS"
	}
	return fmt.Sprintf("%s: %s, protocol %s, %s", s.Name, where, s.Protocol, s.LoadBalancer.Policy)
}

// String returns the name.
func (s *Service) String() string { return string(s.Name) }
