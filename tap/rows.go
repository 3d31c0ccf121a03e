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

	// podLabel is the label that names a row's client or endpoint, and routeLabel is the label
	// that names the route, as in linkerd's top.
	podLabel   = "pod"
	routeLabel = "route"

	// rateDecay is a rate's time constant. A request that ended rateDecay ago counts 1/e of a new
	// one.
	rateDecay = 10 * time.Second
)

// table counts the requests of one call of Top, in up to maxRows rows. When it is full, requests that
// need another row count in a common row of their direction, in others.
type table struct {
	byRoute       bool // a row for each route, instead of each method and path
	byDestination bool // a row for each destination
	ttl           time.Duration

	mu             sync.Mutex // guards the following fields and the fields of all rows
	rows           map[rowKey]*row
	others         map[Direction]*row
	start, sampled time.Time
}

// rowKey holds the properties that all requests in a row share.
type rowKey struct {
	source, destination string // pods; if one is "", from or to has the address
	from                netip.Addr
	to                  netip.AddrPort
	method              string // "" if byRoute
	path                string // the route if byRoute; "" if byDestination
	direction           Direction
}

// row holds the counts and durations for the requests with the same key. Its table's lock guards
// it.
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

// newTable returns an empty table for the watch that req describes.
func newTable(req *tappb.TopRequest) *table {
	now := time.Now()
	t := &table{
		byRoute: req.GetByRoute() && !req.GetByDestination(), byDestination: req.GetByDestination(),
		ttl: rowTTL, rows: map[rowKey]*row{}, others: map[Direction]*row{}, start: now, sampled: now,
	}
	return t
}

// begin counts a request that has started, and returns its row, in which its end must be counted. The
// addresses and labels come from common, and pattern, which may be "", from [Accessor]. A row is added
// if none fits.
func (t *table) begin(common *Event, init *RequestInit, pattern string, now time.Time) *row {
	k := rowKey{direction: common.Direction}
	if k.destination = podOf(common.DestinationLabels); k.destination == "" {
		k.to = common.Destination
	}
	route := ""
	if !t.byDestination {
		if k.source = podOf(common.SourceLabels); k.source == "" {
			k.from = common.Source.Addr() // each connection has another port
		}
		route = cut(common.RouteLabels[routeLabel])
	}
	switch {
	case t.byDestination:
	case t.byRoute:
		k.path = cmp.Or(route, cut(pattern))
	default:
		k.method, k.path = cut(init.Method), cut(cmp.Or(pathOf(pattern), init.Path))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.row(k, init.Authority, route)
	r.started++
	r.used = now
	return r
}

// row returns the row with the key k, and adds it if there is none, with its first request's authority
// and route. If the table is full, it returns a common row. The caller holds mu.
func (t *table) row(k rowKey, authority, route string) *row {
	r := t.rows[k]
	switch {
	case r != nil:
	case len(t.rows) >= maxRows:
		if r = t.others[k.direction]; r == nil {
			r = &row{table: t, key: rowKey{path: otherRow, direction: k.direction}}
			t.others[k.direction] = r
		}
	default:
		for _, s := range []*string{&k.source, &k.destination, &k.method, &k.path} {
			*s = strings.Clone(*s) // the original may keep a large buffer in memory
		}
		r = &row{table: t, key: k, authority: strings.Clone(cut(authority)), route: strings.Clone(route)}
		t.rows[k] = r
	}
	return r
}

// routed moves an open request from r to the row of a pattern, which a mux has reported after the
// request's start. It returns that row.
func (r *row) routed(pattern string) *row {
	t, k := r.table, r.key
	switch {
	// The row does not depend on the pattern.
	case r.key.path == otherRow, t.byDestination, t.byRoute && k.path != "":
		return r
	case t.byRoute:
		k.path = cut(pattern)
	default:
		k.path = cut(cmp.Or(pathOf(pattern), k.path))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if k == r.key {
		return r
	}
	// The row was made for this request only, and goes with it.
	if r.started--; r.started == 0 {
		delete(t.rows, r.key)
	}
	r = t.row(k, r.authority, r.route)
	r.started++
	return r
}

// pathOf returns the host and the path in a pattern of http.ServeMux, without the method. It returns ""
// for a subtree's pattern, such as "/", because another router may serve it.
func pathOf(pattern string) string {
	if strings.HasSuffix(pattern, "/") {
		return ""
	}
	_, path, hasMethod := strings.Cut(pattern, " ")
	if !hasMethod {
		return pattern
	}
	return strings.TrimLeft(path, " \t")
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

// podOf returns the label that names a client or endpoint in a rowKey, or "".
func podOf(labels map[string]string) string { return cut(labels[podLabel]) }

func cut(s string) string { return s[:min(len(s), maxRowText)] }

// sample updates the rates of all rows, and removes rows that were not used for a while. It assumes
// that the requests since the last sample have ended at a constant rate. The caller holds mu.
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
	for _, r := range t.others {
		update(r)
	}
	for k, r := range t.rows {
		update(r)
		if r.started == r.ended && now.Sub(r.used) >= ttl {
			delete(t.rows, k)
		}
	}
}

// answer returns the rows with the most requests, at most limit, of which 0 means 100. Quantiles are
// computed on copies without the lock, because requests wait for it.
func (t *table) answer(limit uint32) *tappb.TopResponse {
	type counted struct {
		*row
		count uint64
	}
	t.mu.Lock()
	t.sample()
	all := make([]counted, 0, len(t.rows)+len(t.others))
	for _, r := range t.rows {
		all = append(all, counted{r, r.ended})
	}
	for _, r := range t.others {
		all = append(all, counted{r, r.ended})
	}
	age := t.sampled.Sub(t.start)
	t.mu.Unlock()

	// The counts are copies, because they change while this sorts.
	slices.SortFunc(all, func(a, b counted) int {
		return cmp.Or(cmp.Compare(b.count, a.count), compareKeys(&a.key, &b.key))
	})
	n := min(len(all), orDefault(int(min(limit, math.MaxInt32)), defaultRows))
	m := &tappb.TopResponse{Span: durationpb.New(age), Omitted: uint64(len(all) - n)}
	for _, r := range all[:n] {
		t.mu.Lock()
		one := *r.row
		t.mu.Unlock()
		m.Rows = append(m.Rows, one.proto(age))
	}
	return m
}

// proto converts the row to a message. age is the time since the table was made, by which the rate is
// corrected: in a new table, the moving average has had less than rateDecay to grow.
func (r *row) proto(age time.Duration) *tappb.Row {
	m := &tappb.Row{
		Source: valid(r.key.source), Destination: valid(r.key.destination),
		Method: valid(r.key.method), Path: valid(r.key.path), Route: valid(r.route), Authority: valid(r.authority),
		Direction: pb.TapEvent_ProxyDirection(r.key.direction),
		Count:     r.ended, Successes: r.ended - r.failed, Open: r.started - r.ended,
	}
	if r.key.from.IsValid() {
		m.Source = r.key.from.String()
	}
	if r.key.to.IsValid() {
		m.Destination = r.key.to.String()
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

// compareKeys compares the keys of two rows. It decides the order of rows with equal counts.
func compareKeys(a, b *rowKey) int {
	return cmp.Or(
		cmp.Compare(a.source, b.source), a.from.Compare(b.from),
		cmp.Compare(a.destination, b.destination), a.to.Compare(b.to),
		cmp.Compare(a.path, b.path), cmp.Compare(a.method, b.method), cmp.Compare(a.direction, b.direction),
	)
}
