package config

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Service is a set of endpoints that serve the same requests. Exactly one of static, dns,
// kubernetes and linkerd provides the endpoints. A service with directResponse has no
// endpoints.
type Service struct {
	// The name of the service in routes, logs and metrics.
	Name Name `yaml:"name" is:"required"`

	// Endpoints at fixed addresses.
	Static *Static `yaml:"static"`
	// Endpoints that are resolved by DNS.
	DNS *DNS `yaml:"dns"`
	// The endpoints of a Kubernetes Service.
	Kubernetes *Kubernetes `yaml:"kubernetes"`
	// Endpoints from the destination controller of linkerd.
	Linkerd *Linkerd `yaml:"linkerd"`
	// Responds with a fixed response.
	DirectResponse *DirectResponse `yaml:"directResponse"`

	// The protocol of the endpoints. Auto uses HTTP/2 for gRPC. With TLS, it also uses
	// HTTP/2 for requests that arrived by HTTP/2. It uses HTTP/1.1 for all other requests.
	Protocol string `yaml:"protocol" default:"Auto" enum:"Auto,HTTP1,HTTP2"`
	// TLS for the connections to the endpoints. Absent means cleartext.
	TLS *ServiceTLS `yaml:"tls"`
	// The time limit to connect to an endpoint, with the TLS handshake.
	ConnectTimeout Duration `yaml:"connectTimeout" default:"1s"`
	// Specifies how an endpoint is selected for each request.
	LoadBalancer LoadBalancer `yaml:"loadBalancer"`
	// Sends the requests of a browser session to the same endpoint, by a cookie.
	SessionPersistence *SessionPersistence `yaml:"sessionPersistence"`
	// Checks each endpoint in the background. An unhealthy endpoint gets no requests.
	// Absent means no checks.
	HealthCheck *HealthCheck `yaml:"healthCheck"`
	// The queue in which requests wait while no endpoint is ready.
	Queue Queue `yaml:"queue"`
	// The limits of the connections and of the concurrent requests to each endpoint.
	CircuitBreakers CircuitBreakers `yaml:"circuitBreakers"`
	// Ejects endpoints that fail more often than others. Without it, the load balancer
	// still avoids failing endpoints, except with the policies RoundRobin and Random.
	OutlierDetection *OutlierDetection `yaml:"outlierDetection"`

	version string
}

// Version returns a text that changes when the configuration of the service changes.
func (s *Service) Version() string { return s.version }

func (s *Service) oneOf() []string {
	return []string{"static", "dns", "kubernetes", "linkerd", "directResponse"}
}

func (s *Service) check(n node) {
	if s.ConnectTimeout == 0 {
		n.at("connectTimeout").failf("want a duration above 0")
	}
	if s.SessionPersistence != nil && s.LoadBalancer.Policy != "EWMA" {
		n.at("sessionPersistence").failf("want no loadBalancer.policy beside sessionPersistence, because that uses consistent hashing")
	}
}

// Static is a list of endpoints at fixed addresses.
type Static struct {
	// The IP addresses of the endpoints with their ports.
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

// DNS specifies endpoints that are resolved by DNS. The name is resolved again when the TTL
// of its records has passed.
type DNS struct {
	// The DNS name with a port: "books.example:80". A name without a port is resolved by
	// SRV records.
	Name string `yaml:"name" is:"required"`
}

func (d *DNS) check(n node) {
	var h HostPort
	if h.parse(d.Name) != nil && !isDomain(d.Name) {
		n.at("name").failf("want a DNS name with a port, such as books.example:80, or without one for SRV records")
	}
}

// Kubernetes specifies the endpoints of a Kubernetes Service. The gateway watches the
// EndpointSlices of the Service.
type Kubernetes struct {
	// The name, namespace and port of the Service: "books.shop:80" or "books.shop:http".
	Name string `yaml:"name" is:"required"`
	// The file with the address and the credentials of the API server. The default is the
	// service account of the pod.
	Kubeconfig *File `yaml:"kubeconfig"`
}

func (k *Kubernetes) check(n node) {
	host, port, ok := strings.Cut(k.Name, ":")
	if service, namespace, dot := strings.Cut(host, "."); !ok || !dot || port == "" || !isLabel(service) || !isDomain(namespace) {
		n.at("name").failf("want a Service with its namespace and port, such as books.shop:80")
	}
}

// Linkerd specifies endpoints from the destination controller of linkerd.
type Linkerd struct {
	// The name and port of the service: "books.shop.svc.cluster.local:80".
	Name HostPort `yaml:"name" is:"required"`
	// The address of the destination controller.
	Controller HostPort `yaml:"controller" default:"linkerd-dst-headless.linkerd.svc.cluster.local:8086"`
}

// ServiceTLS configures TLS for the connections to endpoints.
type ServiceTLS struct {
	// The name that must be in the certificates of the endpoints. It is required, unless
	// insecureSkipVerify is true.
	ServerName Hostname `yaml:"serverName"`
	// The file with the certificate authorities of the endpoints, in PEM. The default is
	// the authorities of the system.
	CACertificates *File `yaml:"caCertificates"`
	// The certificate that the gateway presents to the endpoints. Absent means no
	// certificate.
	ClientCertificate *Certificate `yaml:"clientCertificate"`
	// True accepts every certificate of an endpoint. Use it only for tests.
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

// Config returns the configuration of crypto/tls for connections to the endpoints.
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

// LoadBalancer specifies how an endpoint is selected for each request.
type LoadBalancer struct {
	// EWMA prefers fast endpoints with few requests. LeastRequest prefers endpoints with
	// few requests. ConsistentHash sends requests with the same hash key to the same
	// endpoint.
	Policy string `yaml:"policy" default:"EWMA" enum:"EWMA,LeastRequest,RoundRobin,Random,ConsistentHash"`
	// The hash key of requests for the policy ConsistentHash.
	Hash *Hash `yaml:"hash"`
	// How long a new endpoint gets less than its full share of the requests. The share
	// grows during this time. 0s means that a new endpoint gets its full share at once.
	SlowStart Duration `yaml:"slowStart"`
}

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

// Hash specifies the hash key of a request for consistent hashing.
type Hash struct {
	// The name of the header field that has the key.
	Header HeaderName `yaml:"header"`
	// The name of the cookie that has the key.
	Cookie HeaderName `yaml:"cookie"`
	// The name of the query parameter that has the key.
	QueryParam string `yaml:"queryParam"`
	// True uses the IP address of the client as the key.
	SourceIP bool `yaml:"sourceIP"`
}

func (h *Hash) oneOf() []string { return []string{"header", "cookie", "queryParam", "sourceIP"} }

// SessionPersistence sends the requests of a browser session to the same endpoint.
type SessionPersistence struct {
	// The name of the cookie that identifies the endpoint. The gateway sets the cookie.
	SessionName HeaderName `yaml:"sessionName" is:"required"`
}

// HealthCheck checks endpoints in the background. If all endpoints are unhealthy, all of
// them get requests.
type HealthCheck struct {
	// The path of a GET request. An endpoint is healthy if its response has a status 2xx.
	Path Path `yaml:"path"`
	// The service name in a call of grpc.health.v1.Health. "" means the whole server.
	GRPC *Text `yaml:"grpc"`
	// True checks that the endpoint accepts a TCP connection.
	TCP bool `yaml:"tcp"`
	// The time between two checks of an endpoint.
	Interval Duration `yaml:"interval" default:"5s"`
	// The time limit of one check.
	Timeout Duration `yaml:"timeout" default:"1s"`
	// The number of successive checks that must succeed before an endpoint becomes healthy.
	HealthyThreshold int `yaml:"healthyThreshold" default:"1" min:"1" max:"100"`
	// The number of successive checks that must fail before an endpoint becomes unhealthy.
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

// Queue specifies how requests wait while no endpoint is ready.
type Queue struct {
	// The maximum number of waiting requests. 0 means that requests are rejected at once.
	Capacity int `yaml:"capacity" default:"1000" min:"0" max:"1000000"`
	// The maximum time that a request waits. Then it is rejected.
	MaxWait Duration `yaml:"maxWait" default:"3s"`
}

func (q *Queue) check(n node) {
	if q.MaxWait == 0 && q.Capacity > 0 {
		n.at("maxWait").failf("want a duration above 0")
	}
}

// CircuitBreakers limits the connections and the concurrent requests to each endpoint.
type CircuitBreakers struct {
	// The maximum number of HTTP/1.1 connections to an endpoint. 0 means no limit.
	MaxConnections int `yaml:"maxConnections" min:"0" max:"1000000"`
	// The maximum number of concurrent requests to an endpoint. 0 means no limit.
	MaxRequests int `yaml:"maxRequests" min:"0" max:"1000000"`
}

// OutlierDetection ejects endpoints that fail more often than others.
type OutlierDetection struct {
	// The number of successive failures after which an endpoint is ejected. 0 disables this
	// rule.
	ConsecutiveFailures int `yaml:"consecutiveFailures" default:"5" min:"0" max:"1000"`
	// The time between two comparisons of the success rates of the endpoints. 0s disables
	// these comparisons.
	Interval Duration `yaml:"interval" default:"10s"`
	// How long the first ejection of an endpoint lasts. Each further ejection lasts longer.
	BaseEjectionTime Duration `yaml:"baseEjectionTime" default:"30s"`
	// The maximum percentage of the endpoints that are ejected at the same time.
	MaxEjectionPercent float64 `yaml:"maxEjectionPercent" default:"50" min:"0" max:"99"`
}

func (o *OutlierDetection) check(n node) {
	if d := o.Interval.D(); d != 0 && (d < time.Millisecond || d > time.Hour) {
		n.at("interval").failf("want 0s, or a duration from 1ms to 1h")
	}
	if o.BaseEjectionTime.D() < time.Millisecond {
		n.at("baseEjectionTime").failf("want a duration of at least 1ms")
	}
}

// Describe returns a text with the name, the source of the endpoints, the protocol and the
// load balancer policy of the service.
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
	case s.DirectResponse != nil:
		return fmt.Sprintf("%s: direct response %d", s.Name, s.DirectResponse.Status)
	}
	if s.TLS != nil {
		where += ", TLS"
	}
	return fmt.Sprintf("%s: %s, protocol %s, %s", s.Name, where, s.Protocol, s.LoadBalancer.Policy)
}

// String returns the name of the service.
func (s *Service) String() string { return string(s.Name) }
