package tap

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/internal/histogram"
	"github.com/gotower/gotower/tap/tappb"
)

// rowTTL is the time for which a table keeps a row after its last request. It is long enough for
// a job that runs every five minutes. A table with maxRows rows keeps a row only for fullRowTTL.
const (
	rowTTL     = 10 * time.Minute
	fullRowTTL = time.Minute
)

const (
	maxRows     = 1000 // rows with the longest texts take about 2.5 MiB together
	defaultRows = 100

	// maxRowText is the limit of a path or a name in a row, in bytes. Longer ones are cut.
	maxRowText = 256

	otherRow     = "(other)"
	defaultRoute = "[DEFAULT]"

	// podLabel is the label that names the client or the endpoint of a row, and routeLabel
	// is the label that names the route, as in linkerd's top.
	podLabel   = "pod"
	routeLabel = "route"

	// rateDecay is the time constant of a rate. A request that ended rateDecay ago has 1/e
	// of the weight of a new one.
	rateDecay = 10 * time.Second
)

// table counts the requests of one call of Top in rows. A table has at most maxRows rows.
// Requests that would need a further row are counted in the row other.
type table struct {
	byRoute       bool
	byDestination bool
	ttl           time.Duration

	mu             sync.Mutex // guards the following fields and the fields of all rows
	rows           map[rowKey]*row
	other          *row
	start, sampled time.Time
}

// rowKey has the properties that are the same for all requests of a row.
type rowKey struct {
	source, destination string // pods; if one is "", from or to has the address
	from, to            netip.Addr
	method              string // "" if byRoute
	path                string // the route if byRoute; "" if byDestination
	direction           Direction
}

// row has the counts and durations of the requests with the same key. The lock of its table
// guards it.
type row struct {
	table            *table
	key              rowKey
	authority, route string // values of the first request

	started, ended, failed uint64
	best, worst, last      time.Duration
	times                  histogram.Histogram // durations of ended requests

	sampled uint64    // value of ended at the last sample
	recent  float64   // number of ended requests, weighted by age: see rateDecay
	used    time.Time // time of the last start or end of a request
}

func newTable(req *tappb.TopRequest) *table {
	now := time.Now()
	t := &table{
		byRoute: req.GetByRoute() && !req.GetByDestination(), byDestination: req.GetByDestination(),
		ttl: rowTTL, rows: map[rowKey]*row{}, start: now, sampled: now,
	}
	t.other = &row{table: t, key: rowKey{path: otherRow}}
	return t
}

// begin counts the start of a request and returns the row in which it counts. common has the
// addresses and labels of the request. If no row fits the request, begin adds one, or uses
// t.other if the table is full.
func (t *table) begin(common *Event, init *RequestInit, now time.Time) *row {
	k := rowKey{direction: common.Direction}
	k.destination, k.to = nameOf(common.DestinationLabels, common.Destination)
	route := ""
	if !t.byDestination {
		k.source, k.from = nameOf(common.SourceLabels, common.Source)
		route = cut(common.RouteLabels[routeLabel])
	}
	switch {
	case t.byDestination:
	case t.byRoute:
		k.path = route
	default:
		k.method, k.path = cut(init.Method), cut(init.Path)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.rows[k]
	switch {
	case r != nil:
	case len(t.rows) >= maxRows:
		r = t.other
	default:
		for _, s := range []*string{&k.source, &k.destination, &k.method, &k.path} {
			*s = strings.Clone(*s) // the original may keep a large buffer in memory
		}
		r = &row{table: t, key: k, authority: strings.Clone(cut(init.Authority)), route: strings.Clone(route)}
		t.rows[k] = r
	}
	r.started++
	r.used = now
	return r
}

// end counts the end of a request and its duration. status is the HTTP status. It is 0
// without a response, which counts as a failure.
func (r *row) end(end *ResponseEnd, status int, now time.Time) {
	took := max(end.SinceRequestInit, 0)
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	if r.ended == 0 || took < r.best {
		r.best = took
	}
	r.worst, r.last = max(r.worst, took), took
	r.times.Add(took)
	r.ended++
	if status == 0 || end.Failed(status) {
		r.failed++
	}
	r.used = now
}

// nameOf returns the name and the IP address that identify a client or endpoint in a rowKey. If
// labels has a label named pod, it returns the value of this label and a zero Addr. Otherwise it
// returns "" and the IP address in addr.
func nameOf(labels map[string]string, addr netip.AddrPort) (string, netip.Addr) {
	if pod := labels[podLabel]; pod != "" {
		return cut(pod), netip.Addr{}
	}
	return "", addr.Addr()
}

func cut(s string) string { return s[:min(len(s), maxRowText)] }

// sample updates the rates of all rows and removes rows without recent requests. It assumes
// that the requests since the last sample ended at a constant rate. The caller holds mu.
func (t *table) sample() {
	now := time.Now()
	fade, share := 1.0, 1.0
	if dt := now.Sub(t.sampled); dt > 0 {
		x := dt.Seconds() / rateDecay.Seconds()
		fade = math.Exp(-x)
		share = (1 - fade) / x // the mean weight of the new requests
		t.sampled = now
	}
	ttl := t.ttl
	if len(t.rows) >= maxRows {
		ttl = min(ttl, fullRowTTL)
	}
	update := func(r *row) {
		r.recent = r.recent*fade + float64(r.ended-r.sampled)*share
		r.sampled = r.ended
	}
	update(t.other)
	for k, r := range t.rows {
		update(r)
		if r.started == r.ended && now.Sub(r.used) >= ttl {
			delete(t.rows, k)
		}
	}
}

// answer returns the rows with the most requests. limit is the maximum number of rows. 0
// means 100. answer does not hold the lock while it computes quantiles, because requests
// wait for the lock.
func (t *table) answer(limit uint32) *tappb.TopResponse {
	type counted struct {
		*row
		count uint64
	}
	t.mu.Lock()
	t.sample()
	all := make([]counted, 0, len(t.rows)+1)
	for _, r := range t.rows {
		all = append(all, counted{r, r.ended})
	}
	if t.other.started > 0 {
		all = append(all, counted{t.other, t.other.ended})
	}
	age := t.sampled.Sub(t.start)
	t.mu.Unlock()

	slices.SortFunc(all, func(a, b counted) int {
		return cmp.Or(cmp.Compare(b.count, a.count), compareKeys(&a.key, &b.key))
	})
	n := min(len(all), orDefault(int(limit), defaultRows))
	m := &tappb.TopResponse{Span: durationpb.New(age), Omitted: uint64(len(all) - n)}
	for _, r := range all[:n] {
		t.mu.Lock()
		one := *r.row
		t.mu.Unlock()
		m.Rows = append(m.Rows, one.proto(age))
	}
	return m
}

// proto converts the row to a message. age is the time since the table was created. It corrects the
// rate of a new table, which has counted for less than the averaging time rateDecay.
func (r *row) proto(age time.Duration) *tappb.Row {
	m := &tappb.Row{
		Source: nameText(r.key.source, r.key.from), Destination: nameText(r.key.destination, r.key.to),
		Method: valid(r.key.method), Path: valid(r.key.path), Route: valid(r.route), Authority: valid(r.authority),
		Direction: pb.TapEvent_ProxyDirection(r.key.direction),
		Count:     r.ended, Successes: r.ended - r.failed, Open: r.started - r.ended,
	}
	if r.table.byRoute {
		m.Path, m.Route = "", cmp.Or(m.GetPath(), defaultRoute)
	}
	if age > 0 {
		// The divisor corrects the rate of a young table.
		m.Rate = r.recent / (rateDecay.Seconds() * -math.Expm1(-age.Seconds()/rateDecay.Seconds()))
	}
	if r.ended == 0 {
		return m
	}
	m.P50 = durationpb.New(r.times.Quantile(0.50, r.best, r.worst))
	m.P95 = durationpb.New(r.times.Quantile(0.95, r.best, r.worst))
	m.P99 = durationpb.New(r.times.Quantile(0.99, r.best, r.worst))
	m.Best, m.Worst, m.Last = durationpb.New(r.best), durationpb.New(r.worst), durationpb.New(r.last)
	return m
}

func nameText(name string, addr netip.Addr) string {
	if name != "" || !addr.IsValid() {
		return valid(name)
	}
	return addr.String()
}

// compareKeys compares the keys of two rows. It decides the order of rows with equal
// counts.
func compareKeys(a, b *rowKey) int {
	return cmp.Or(
		cmp.Compare(a.source, b.source), a.from.Compare(b.from),
		cmp.Compare(a.destination, b.destination), a.to.Compare(b.to),
		cmp.Compare(a.path, b.path), cmp.Compare(a.method, b.method), cmp.Compare(a.direction, b.direction),
	)
}
