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
	// RetainIdle is the time for which series are shown after the last write. 0 or
	// less means 10 min.
	RetainIdle time.Duration

	// ServiceSuffixes are the domains of the cluster's Services, for the labels
	// parent_* and backend_*. The default is svc.cluster.local.
	ServiceSuffixes []string

	// Version is the version in proxy_build_info. The default is the version that the
	// Go toolchain recorded.
	Version string
}

const defaultRetain = 10 * time.Minute

// Meters are the metrics of one proxy. They are safe for concurrent use. Nothing has to
// be closed.
type Meters struct {
	registry *prometheus.Registry
	retain   time.Duration
	services []string // suffixes

	sweeps    []func(now time.Time)
	lastSweep atomic.Int64 // in Unix nanoseconds

	mu     sync.Mutex
	limits map[string]*names // by kind

	requests requestFamilies // of endpoints
	control  requestFamilies // of controllers
	routes   routeFamilies
	conns    transportFamilies
	failures map[Direction]failureFamilies
	authz    map[string]authzFamilies // by protocol
	balanced map[string]balancerFamilies
	certs    certificates
	dns      *family[prometheus.Counter]

	inboundRoutes inboundRouteFamilies
	transferCost  *family[prometheus.Counter]

	httpRoutes httpRouteFamilies
	tcpRoutes  tcpRouteFamilies
	detects    map[Direction]detectFamilies
	stacks     stackFamilies
}

// New returns Meters without any counts.
func New(c Config) *Meters {
	m := &Meters{
		registry: prometheus.NewRegistry(),
		retain:   cmp.Or(max(c.RetainIdle, 0), defaultRetain),
		services: c.ServiceSuffixes,
		limits:   map[string]*names{},
	}
	if len(m.services) == 0 {
		m.services = []string{"svc.cluster.local"}
	}
	m.lastSweep.Store(time.Now().UnixNano())
	m.requests = m.requestFamilies("")
	m.control = m.requestFamilies("control_")
	m.routes = m.routeFamilies()
	m.conns = m.transportFamilies()
	m.failures = map[Direction]failureFamilies{Inbound: m.failureFamilies(Inbound), Outbound: m.failureFamilies(Outbound)}
	m.authz = map[string]authzFamilies{"http": m.authzFamilies("http"), "tcp": m.authzFamilies("tcp")}
	m.balanced = map[string]balancerFamilies{"http": m.balancerFamilies("http"), "tcp": m.balancerFamilies("tcp")}
	m.certs = m.certificates()
	m.dns = permanent(m.counters("control_dns_resolutions_total", "Counts the number of DNS records that have been resolved."))
	m.inboundRoutes = m.inboundRouteFamilies()
	m.transferCost = permanent(m.counters("outbound_tcp_transfer_cost_bytes_total",
		"The total amount of data transferred in and out of this proxy, by cost zone"))
	m.httpRoutes = m.httpRouteFamilies()
	m.tcpRoutes = m.tcpRouteFamilies()
	m.detects = map[Direction]detectFamilies{Inbound: m.detectFamilies(Inbound), Outbound: m.detectFamilies(Outbound)}
	m.stacks = m.stackFamilies()
	m.addProcess(c.Version)
	return m
}

// latencyBuckets are linkerd's, in milliseconds.
func latencyBuckets() []float64 {
	return []float64{
		1, 2, 3, 4, 5, 10, 20, 30, 40, 50, 100, 200, 300, 400, 500,
		1000, 2000, 3000, 4000, 5000, 10_000, 20_000, 30_000, 40_000, 50_000,
	}
}
