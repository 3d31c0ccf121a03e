package meters

import (
	"cmp"
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Config is what Meters are told.
type Config struct {
	// RetainIdle is how long series are shown that nobody writes to any more;
	// 0 is 10 min.
	RetainIdle time.Duration

	// ServiceSuffixes are those by which Services of the cluster are known, such
	// as svc.cluster.local, which is the only one if there are none: see the labels
	// parent_* and backend_*.
	ServiceSuffixes []string

	// Version is what proxy_build_info calls this program; empty is what the
	// Go toolchain says of it.
	Version string
}

const defaultRetain = 10 * time.Minute

// Meters are the metrics of one proxy. They are safe for concurrent use, and
// end with what uses them.
type Meters struct {
	registry *prometheus.Registry
	retain   time.Duration
	always   *lease
	services []string // suffixes

	sources, parents, backends room // outbound

	requests requestFamilies // of endpoints
	control  requestFamilies // of controllers
	routes   routeFamilies
	conns    transportFamilies
	failures failureFamilies
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

// New returns Meters that have counted nothing.
func New(c Config) *Meters {
	m := &Meters{
		registry: prometheus.NewRegistry(),
		retain:   cmp.Or(c.RetainIdle, defaultRetain),
		services: c.ServiceSuffixes,
	}
	if len(m.services) == 0 {
		m.services = []string{"svc.cluster.local"}
	}
	m.always = m.lease(context.Background())
	m.requests = m.requestFamilies("")
	m.control = m.requestFamilies("control_")
	m.routes = m.routeFamilies()
	m.conns = m.transportFamilies()
	m.failures = m.failureFamilies()
	m.authz = map[string]authzFamilies{"http": m.authzFamilies("http"), "tcp": m.authzFamilies("tcp")}
	m.balanced = map[string]balancerFamilies{"http": m.balancerFamilies("http"), "tcp": m.balancerFamilies("tcp")}
	m.certs = m.certificates()
	m.dns = m.counters("control_dns_resolutions_total", "Counts the number of DNS records that have been resolved.")
	m.inboundRoutes = m.inboundRouteFamilies()
	m.transferCost = m.counters("outbound_tcp_transfer_cost_bytes_total",
		"The total amount of data transferred in and out of this proxy, by cost zone")
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
