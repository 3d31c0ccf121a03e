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

	"github.com/gotower/gotower/tap/tappb"
)

// RowTTL is how long a row of Top stays without a request. It is a
// [RegistryOption] for [Registry.Top] and its remote callers, and a
// [FollowOption] and [RowsOption] for rows that are counted by the reader. The
// default is 10 minutes, also for 0 or less. See [Registry.Top].
type RowTTL time.Duration

// Two runs of a job that runs every five minutes.
const defaultRowTTL = RowTTL(10 * time.Minute)

// fullRowTTL is the time to live of rows in a full table. After it, the rate of a
// row is 0.
const fullRowTTL = RowTTL(time.Minute)

func (d RowTTL) applyRegistry(r *Registry)    { r.rowTTL = d }
func (d RowTTL) applyFollow(o *followOptions) { o.rowTTL = d }
func (d RowTTL) applyRows(r *Rows)            { r.rows.ttl = d.orDefault() }

func (d RowTTL) orDefault() RowTTL {
	if d <= 0 {
		return defaultRowTTL
	}
	return d
}

// Rows count requests as [Registry.Top] does, from events: for processes that
// show events and count nothing, such as linkerd's proxy. They are safe for
// concurrent use, start no goroutine, and need no closing.
type Rows struct {
	rows *table
	most uint32

	mu   sync.Mutex
	open map[openID]openRequest
}

// maxOpen bounds the requests whose end Rows wait for.
const maxOpen = 10_000

type openID struct {
	from string
	id   StreamID
}

type openRequest struct {
	row    *row
	status int
}

// RowsOption sets an option of [NewRows].
type RowsOption interface{ applyRows(r *Rows) }

// NewRows returns empty Rows. They use ByRoute, ByDestination and Rows of req,
// which may be nil.
func NewRows(req *tappb.TopRequest, opts ...RowsOption) *Rows {
	r := &Rows{rows: newTable(req, 0), most: req.GetRows(), open: map[openID]openRequest{}}
	for _, opt := range opts {
		if opt != nil {
			opt.applyRows(r)
		}
	}
	return r
}

// Add counts e. The events of a request must come in order, and with the same
// name of their process. That name is the client of outbound requests and the
// server of inbound ones if the event does not name it. At most 10000 requests
// are awaited: beyond that, the ends of some are missed.
func (r *Rows) Add(from string, e Event) {
	id := openID{from, e.ID}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case e.RequestInit != nil:
		r.forget(id)
		for other := range r.open {
			if len(r.open) < maxOpen {
				break
			}
			r.forget(other)
		}
		nameProcess(from, &e)
		r.open[id] = openRequest{row: r.rows.begin(&e, e.RequestInit)}
	case e.ResponseInit != nil:
		if o, ok := r.open[id]; ok {
			o.status = e.ResponseInit.Status
			r.open[id] = o
		}
	case e.ResponseEnd != nil:
		o, ok := r.open[id]
		if !ok {
			return
		}
		if o.status == 0 && e.ResponseEnd.SinceResponseInit != nil {
			o.status = 200 // the ResponseInit was dropped
		}
		o.row.end(e.ResponseEnd, o.status)
		delete(r.open, id)
	}
}

// nameProcess sets the label of the process on its own side of e, if that side is
// not known.
func nameProcess(from string, e *Event) {
	switch {
	case from == "":
	case e.Direction == Outbound && !e.Source.IsValid() && e.SourceLabels[podLabel] == "":
		e.SourceLabels = map[string]string{podLabel: from}
	case e.Direction == Inbound && !e.Destination.IsValid() && e.DestinationLabels[podLabel] == "":
		e.DestinationLabels = map[string]string{podLabel: from}
	}
}

// Forget drops a request whose end will not come.
func (r *Rows) Forget(from string, id StreamID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget(openID{from, id})
}

func (r *Rows) forget(id openID) {
	if o, ok := r.open[id]; ok {
		o.row.forget()
		delete(r.open, id)
	}
}

// Top returns the rows as of now. Call it about once a second: requests that
// ended since the last call count into the rate as spread over that time.
func (r *Rows) Top() *tappb.TopResponse { return r.rows.answer(r.most) }

const (
	maxRows     = 1000 // with the longest texts they take about 2.5 MiB
	defaultRows = 100

	// maxRowText bounds a path or a name in a row, in bytes.
	maxRowText = 256

	otherRow     = "(other)"
	defaultRoute = "[DEFAULT]"

	// Rows are named by these labels, as in linkerd's top.
	podLabel   = "pod"
	routeLabel = "route"

	// rateDecay is the time constant of a rate: a request of that age counts e
	// times less than one of now.
	rateDecay = 10 * time.Second
)

// table counts requests in rows. When it is full, further requests count in the
// row other.
type table struct {
	byRoute       bool
	byDestination bool
	ttl           RowTTL

	mu             sync.Mutex // guards the rows as well
	rows           map[rowKey]*row
	other          *row
	start, sampled time.Time
}

// rowKey is what the requests of a row have in common.
type rowKey struct {
	source, destination string // pods; "" if the address is the name
	from, to            netip.Addr
	method              string // "" by route
	path                string // by route, the route
	direction           Direction
}

// row counts requests. The lock of its table guards it.
type row struct {
	table            *table
	key              rowKey
	authority, route string // of the first request

	begun, ended, failed uint64
	best, worst, last    time.Duration
	times                histogram // of the ended

	sampled uint64    // ended until the last sample
	recent  float64   // ended, decayed by age
	used    time.Time // last begin or end
}

func newTable(req *tappb.TopRequest, ttl RowTTL) *table {
	now := time.Now()
	t := &table{
		byRoute: req.GetByRoute() && !req.GetByDestination(), byDestination: req.GetByDestination(),
		ttl: ttl.orDefault(), rows: map[rowKey]*row{}, start: now, sampled: now,
	}
	t.other = &row{table: t, key: rowKey{path: otherRow}}
	return t
}

// begin counts a request that begins, and returns its row.
func (t *table) begin(about *Event, init *RequestInit) *row {
	k := rowKey{direction: about.Direction}
	k.destination, k.to = nameOf(about.DestinationLabels, about.Destination)
	route := ""
	if !t.byDestination {
		k.source, k.from = nameOf(about.SourceLabels, about.Source)
		route = cut(about.RouteLabels[routeLabel])
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
			*s = strings.Clone(*s) // it may be a part of a large buffer
		}
		r = &row{table: t, key: k, authority: strings.Clone(cut(init.Authority)), route: strings.Clone(route)}
		t.rows[k] = r
	}
	r.begun++
	r.used = time.Now()
	return r
}

// end counts the end of a request of this row. Status is 0 without a response.
func (r *row) end(end *ResponseEnd, status int) {
	took := max(end.SinceRequestInit, 0)
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	if r.ended == 0 || took < r.best {
		r.best = took
	}
	r.worst, r.last = max(r.worst, took), took
	r.times.add(took)
	r.ended++
	if status == 0 || end.Failed(status) {
		r.failed++
	}
	r.used = time.Now()
}

// forget drops a request of this row that has not ended.
func (r *row) forget() {
	r.table.mu.Lock()
	defer r.table.mu.Unlock()
	r.begun--
}

// nameOf returns the pod of an address, or the address without its port.
func nameOf(labels map[string]string, addr netip.AddrPort) (string, netip.Addr) {
	if pod := labels[podLabel]; pod != "" {
		return cut(pod), netip.Addr{}
	}
	return "", addr.Addr()
}

func cut(s string) string { return s[:min(len(s), maxRowText)] }

// sample updates the rates and removes unused rows. The requests that ended since
// the last sample count as spread evenly over that time.
func (t *table) sample() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sampleLocked()
}

func (t *table) sampleLocked() {
	now := time.Now()
	fade, share := 1.0, 1.0
	if dt := now.Sub(t.sampled); dt > 0 {
		x := dt.Seconds() / rateDecay.Seconds()
		fade = math.Exp(-x)
		share = (1 - fade) / x // the mean decay of the new ones
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
		if r.begun == r.ended && now.Sub(r.used) >= time.Duration(ttl) {
			delete(t.rows, k)
		}
	}
}

// answer returns the rows with the most requests, as of now. It holds the lock for
// one row at a time when it computes quantiles, because requests wait for it.
func (t *table) answer(most uint32) *tappb.TopResponse {
	type counted struct {
		*row
		count uint64
	}
	t.mu.Lock()
	t.sampleLocked()
	all := make([]counted, 0, len(t.rows)+1)
	for _, r := range t.rows {
		all = append(all, counted{r, r.ended})
	}
	if t.other.begun > 0 {
		all = append(all, counted{t.other, t.other.ended})
	}
	age := t.sampled.Sub(t.start)
	t.mu.Unlock()

	slices.SortFunc(all, func(a, b counted) int {
		return cmp.Or(cmp.Compare(b.count, a.count), compareKeys(&a.key, &b.key))
	})
	n := min(len(all), orDefault(int(most), defaultRows))
	m := &tappb.TopResponse{Span: durationpb.New(age), Omitted: uint64(len(all) - n)}
	for _, r := range all[:n] {
		t.mu.Lock()
		one := *r.row
		t.mu.Unlock()
		m.Rows = append(m.Rows, one.proto(age))
	}
	return m
}

// proto returns a copy of a row as a message.
func (r *row) proto(age time.Duration) *tappb.Row {
	m := &tappb.Row{
		Source: nameText(r.key.source, r.key.from), Destination: nameText(r.key.destination, r.key.to),
		Method: valid(r.key.method), Path: valid(r.key.path), Route: valid(r.route), Authority: valid(r.authority),
		Direction: pb.TapEvent_ProxyDirection(r.key.direction),
		Count:     r.ended, Successes: r.ended - r.failed, Open: r.begun - r.ended,
	}
	if r.table.byRoute {
		m.Path, m.Route = "", cmp.Or(m.GetPath(), defaultRoute)
	}
	if age > 0 {
		// The divisor corrects the first seconds, which have no requests before them.
		m.Rate = r.recent / (rateDecay.Seconds() * -math.Expm1(-age.Seconds()/rateDecay.Seconds()))
	}
	if r.ended == 0 {
		return m
	}
	m.P50 = durationpb.New(r.times.quantile(0.50, r.best, r.worst))
	m.P95 = durationpb.New(r.times.quantile(0.95, r.best, r.worst))
	m.P99 = durationpb.New(r.times.quantile(0.99, r.best, r.worst))
	m.Best, m.Worst, m.Last = durationpb.New(r.best), durationpb.New(r.worst), durationpb.New(r.last)
	return m
}

func nameText(name string, addr netip.Addr) string {
	if name != "" || !addr.IsValid() {
		return valid(name)
	}
	return addr.String()
}

// compareKeys keeps the order of rows with equal counts stable.
func compareKeys(a, b *rowKey) int {
	return cmp.Or(
		cmp.Compare(a.source, b.source), a.from.Compare(b.from),
		cmp.Compare(a.destination, b.destination), a.to.Compare(b.to),
		cmp.Compare(a.path, b.path), cmp.Compare(a.method, b.method), cmp.Compare(a.direction, b.direction),
	)
}
