package meters

import (
	"cmp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Config configures [New].
type Config struct {
	// RetainIdle is how long a series is exported after its last write. If it is not positive, 10
	// minutes are used.
	RetainIdle time.Duration

	// ServiceSuffixes are the DNS suffixes of Kubernetes Services. Names with one of them are split
	// into namespace and name in the labels parent_* and backend_*. The default is
	// svc.cluster.local.
	ServiceSuffixes []string

	// HostnameLabels sets the label hostname of outbound_*_route_request_* to the host in a
	// request, if that is a DNS name. The label is otherwise empty.
	HostnameLabels bool

	// Version is the label version in proxy_build_info. The default is the main module's version,
	// as recorded by the Go toolchain.
	Version string
}

const defaultRetain = 10 * time.Minute

// Meters contains all metrics of one proxy. It is safe for concurrent use and need not be closed.
type Meters struct {
	registry  *prometheus.Registry
	retain    time.Duration
	services  []string // Kubernetes Services' suffixes
	hostnames bool     // see Config.HostnameLabels

	sweeps    []func(now time.Time) // one per family
	lastSweep atomic.Int64          // when the last sweep was, in Unix nanoseconds

	mu     sync.Mutex
	limits map[string]*names // by kind of name

	requests requestFamilies // to endpoints
	control  requestFamilies // to servers in the control plane
	routes   routeFamilies
	conns    transportFamilies
	failures map[Direction]failureFamilies
	authz    map[string]authzFamilies // by protocol
	balanced map[string]balancerFamilies
	certs    certificates
	dns      *family[*counterValue]

	transportHeaders *family[*counterValue]

	inboundRoutes inboundRouteFamilies
	transferCost  *family[*counterValue]

	httpRoutes httpRouteFamilies
	grpcRoutes httpRouteFamilies
	tcpRoutes  tcpRouteFamilies
	detects    map[Direction]detectFamilies
	stacks     stackFamilies
}

// New returns a Meters with all counts at 0.
func New(c Config) *Meters {
	m := &Meters{
		registry:  prometheus.NewRegistry(),
		retain:    cmp.Or(max(c.RetainIdle, 0), defaultRetain),
		services:  c.ServiceSuffixes,
		hostnames: c.HostnameLabels,
		limits:    map[string]*names{},
	}
	if len(m.services) == 0 {
		m.services = []string{"svc.cluster.local"}
	}
	// Otherwise the first write would sweep at once.
	m.lastSweep.Store(time.Now().UnixNano())
	m.requests = m.requestFamilies("")
	m.control = m.requestFamilies("control_")
	m.routes = m.routeFamilies()
	m.conns = m.transportFamilies()
	m.failures = map[Direction]failureFamilies{Inbound: m.failureFamilies(Inbound), Outbound: m.failureFamilies(Outbound)}
	m.authz = map[string]authzFamilies{"http": m.authzFamilies("http"), "tcp": m.authzFamilies("tcp")}
	m.balanced = map[string]balancerFamilies{"http": m.balancerFamilies("http"), "tcp": m.balancerFamilies("tcp")}
	m.certs = m.certificates()
	m.transportHeaders = m.counters("inbound_tcp_transport_header_connections_total", "TCP connections with transport headers")
	m.dns = permanent(m.counters("control_dns_resolutions_total", "Counts the number of DNS records that have been resolved."))
	m.inboundRoutes = m.inboundRouteFamilies()
	m.transferCost = permanent(m.counters("outbound_tcp_transfer_cost_bytes_total",
		"The total amount of data transferred in and out of this proxy, by cost zone"))
	m.httpRoutes = m.httpRouteFamilies("http")
	m.grpcRoutes = m.httpRouteFamilies("grpc")
	m.tcpRoutes = m.tcpRouteFamilies()
	m.detects = map[Direction]detectFamilies{Inbound: m.detectFamilies(Inbound), Outbound: m.detectFamilies(Outbound)}
	m.stacks = m.stackFamilies()
	m.addProcess(c.Version)
	return m
}

// latencyBuckets returns the upper bounds for latency histograms, in milliseconds. They are a part
// of linkerd's bounds, because buckets make up most of a scrape.
func latencyBuckets() []float64 {
	return []float64{
		1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000,
	}
}
