package tap

import (
	"context"
	"hash/maphash"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap/tappb"
)

const (
	// maxRows and maxTableText bound the memory of a table to about 1.2 MiB.
	maxRows      = 1000
	maxTableText = 128 << 10

	tableSlots = 2048 // a power of two, twice maxRows

	otherRow = "(other)"
)

// table is rows that requests find without a lock. When it is full, the rest is
// counted in other, and so is what was in rows that were let go.
type table struct {
	byRoute       bool
	byDestination bool // and by nothing else but the direction
	seed          maphash.Seed
	other         *row

	// mu is held to add rows and to let them go. What is here is read without.
	mu    sync.Mutex
	slots atomic.Pointer[slots]
	free  atomic.Int64 // rows that may still be added
	room  atomic.Int64 // bytes of text that still fit

	// Of who reads, as is what the rows have of who reads.
	start, sampled time.Time
	stay           stay
	turnedAway     uint64 // of what began in other, at the last sample
}

// slots is an open hash table to which rows are added and from which none is
// taken: without those that are let go, it is made anew.
type slots [tableSlots]atomic.Pointer[row]

func newTable(byRoute bool) *table {
	now := time.Now()
	t := &table{
		byRoute: byRoute, seed: maphash.MakeSeed(), other: newRow(&rowKey{path: otherRow}, 0),
		start: now, sampled: now, stay: RowTTL(0).stay(),
	}
	t.slots.Store(new(slots))
	t.free.Store(maxRows)
	t.room.Store(maxTableText)
	return t
}

// tableOf is an empty table of the rows that req asks for.
func tableOf(req *tappb.TopRequest, keep RowTTL) *table {
	t := newTable(req.GetByRoute() && !req.GetByDestination())
	t.byDestination = req.GetByDestination()
	t.stay = keep.stay()
	return t
}

// begin counts the beginning of a request, and returns its row. With what it
// is told, it is the same whether that comes from a layer or from a stream of
// events.
func (t *table) begin(about *Event, init *RequestInit) counted { return t.row(about, init) }

func (t *table) row(about *Event, init *RequestInit) *row {
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
	h := t.hash(&k)
	r := t.slots.Load().find(h, &k)
	if r == nil || !r.enter() {
		r = t.add(h, &k, cut(init.Authority), route)
	}
	return r
}

func (t *table) hash(k *rowKey) uint64 {
	h := mix(uint64(k.direction), maphash.String(t.seed, k.path))
	h = mix(h, maphash.String(t.seed, k.method))
	h = mix(h, t.hashName(k.source, k.from))
	return mix(h, t.hashName(k.destination, k.to))
}

func (t *table) hashName(name string, addr netip.Addr) uint64 {
	if name != "" || !addr.IsValid() {
		return maphash.String(t.seed, name)
	}
	b := addr.As16()
	return maphash.Bytes(t.seed, b[:])
}

// mix is not alike in a and b, so that a client is not its server.
func mix(a, b uint64) uint64 {
	const odd = 0x9e3779b97f4a7c15 // 2⁶⁴ by the golden ratio
	a = (a ^ b) * odd
	return a ^ a>>32
}

// find returns nil if there is no such row.
func (s *slots) find(hash uint64, k *rowKey) *row {
	for i := hash; ; i++ {
		r := s[i%tableSlots].Load()
		if r == nil || r.key == *k {
			return r
		}
	}
}

// put adds a row that is not there.
func (s *slots) put(r *row) {
	i := r.hash
	for s[i%tableSlots].Load() != nil {
		i++
	}
	s[i%tableSlots].Store(r)
}

// add counts a beginning in a row that was not found. It makes the row, if there
// is room for it. Texts are copied: they may be a small part of a large buffer.
func (t *table) add(hash uint64, k *rowKey, authority, route string) *row {
	text := k.text() + int64(len(authority)+len(route))
	if !t.fits(text) { // the usual case of a full table takes no lock
		t.other.enter()
		return t.other
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.slots.Load()
	if r := s.find(hash, k); r != nil { // somebody was faster
		r.enter() // rows are let go under the lock alone
		return r
	}
	if !t.fits(text) {
		t.other.enter()
		return t.other
	}
	t.free.Add(-1)
	t.room.Add(-text)
	r := newRow(k, hash)
	for _, s := range []*string{&r.key.source, &r.key.destination, &r.key.method, &r.key.path} {
		*s = strings.Clone(*s)
	}
	r.authority, r.route = strings.Clone(authority), strings.Clone(route)
	r.enter() // before anybody looks: what has not begun is not in use
	s.put(r)
	return r
}

// fits reports whether there is room for one more row with so many bytes of text.
func (t *table) fits(text int64) bool { return t.free.Load() > 0 && t.room.Load() >= text }

// rowKey tells rows apart.
type rowKey struct {
	source, destination string // pods; "" where the address is the name
	from, to            netip.Addr
	method              string // "" by route
	path                string // by route, the route
	direction           Direction
}

func (k *rowKey) text() int64 {
	return int64(len(k.source) + len(k.destination) + len(k.method) + len(k.path))
}

// all yields the rows there are; other only if it was needed.
func (t *table) all(yield func(*row) bool) {
	for r := range t.slots.Load().all {
		if !yield(r) {
			return
		}
	}
	if t.other.began.Load() > 0 {
		yield(t.other)
	}
}

func (s *slots) all(yield func(*row) bool) {
	for i := range s {
		if r := s[i].Load(); r != nil && !yield(r) {
			return
		}
	}
}

const (
	// podLabel and routeLabel are what rows are named by, as linkerd's top
	// does it.
	podLabel   = "pod"
	routeLabel = "route"

	// maxRowText bounds a path or a name in a row; what begins with the same
	// so many bytes is counted together.
	maxRowText = 256
)

const (
	// oneFailure leaves room for 2³² ends between two looks.
	oneFailure = 1 << 32

	// gone marks the beginnings of a row that was let go: no more will be
	// counted in it.
	gone = 1 << 63
)

// row is requests counted. Requests change it at any time; what is at the end
// belongs to who reads the table.
type row struct {
	key              rowKey
	hash             uint64 // of key
	authority, route string // of the first request

	began             atomic.Uint64
	ends              atomic.Uint64 // each adds one, and a failure oneFailure as well
	best, worst, last atomic.Int64  // nanoseconds; set once something ended
	times             histogram     // of what ended

	seen    uint64        // of ends, at the last sample
	counted uint64        // ended, until then
	failed  uint64        // of these
	recent  float32       // requests, each the less the older it is
	ended   float32       // age of the table, in seconds, when it was last seen that something had ended
	used    time.Duration // the same when it was last seen in use; 0: never looked at
}

func newRow(key *rowKey, hash uint64) *row {
	r := &row{key: *key, hash: hash}
	r.best.Store(math.MaxInt64)
	return r
}

// enter counts a beginning, unless the row was let go since it was found.
func (r *row) enter() bool { return r.began.Add(1)&gone == 0 }

// end is told of a request that began here.
func (r *row) end(end *ResponseEnd, status int) {
	took := max(end.SinceRequestInit, 0)
	r.within(int64(took), int64(took))
	r.last.Store(int64(took))
	r.times.add(took) // before it counts: what counts has a quantile
	one := uint64(1)
	if !succeeded(end, status) {
		one += oneFailure
	}
	r.ends.Add(one)
}

// within widens what is between best and worst.
func (r *row) within(best, worst int64) {
	for old := r.best.Load(); best < old && !r.best.CompareAndSwap(old, best); {
		old = r.best.Load()
	}
	for old := r.worst.Load(); worst > old && !r.worst.CompareAndSwap(old, worst); {
		old = r.worst.Load()
	}
}

// forget takes back a beginning whose end nobody will tell.
func (r *row) forget() { r.began.Add(^uint64(0)) }

// look brings up to date what the reader of the table knows of ends. Both
// numbers are of one moment, as they are read at once.
func (r *row) look() {
	ends := r.ends.Load()
	news := ends - r.seen
	r.seen = ends
	r.counted += news % oneFailure
	r.failed += news / oneFailure
	r.times.fold()
}

// open is how many did not end. What was counted had begun before.
func (r *row) open() uint64 { return r.began.Load() - r.counted }

// nameOf is what a row calls an address: the pod, or else the address without
// its port.
func nameOf(labels map[string]string, addr netip.AddrPort) (string, netip.Addr) {
	if pod := labels[podLabel]; pod != "" {
		return cut(pod), netip.Addr{}
	}
	return "", addr.Addr()
}

// cut returns at most the first maxRowText bytes of s.
func cut(s string) string {
	if len(s) > maxRowText {
		return s[:maxRowText]
	}
	return s
}

// succeeded is linkerd's notion of a success, but that a request without a
// response is none. Status is 0 without a response.
func succeeded(end *ResponseEnd, status int) bool { return status != 0 && !end.Failed(status) }

// maxOpen bounds the requests of which Rows wait for the end.
const maxOpen = 10_000

// Rows count requests as [Registry.Top] does, from events: for processes that
// show events and count nothing, such as linkerd's proxy. They are safe for
// concurrent use, start no goroutine, and need no closing.
type Rows struct {
	rows *table
	most uint32

	mu   sync.Mutex
	open map[openID]openRequest
}

type openID struct {
	from string
	id   StreamID
}

type openRequest struct {
	row    *row
	status int
}

// RowsOption sets what [NewRows] lets be set.
type RowsOption interface{ applyRows(r *Rows) }

// NewRows returns Rows that have nothing counted yet. Of req, which may be nil,
// they read ByRoute, ByDestination and Rows; what to count is up to who adds.
func NewRows(req *tappb.TopRequest, opts ...RowsOption) *Rows {
	r := &Rows{rows: tableOf(req, 0), most: req.GetRows(), open: map[openID]openRequest{}}
	for _, opt := range opts {
		if opt != nil {
			opt.applyRows(r)
		}
	}
	return r
}

// Add counts what e tells. The events of a request must come in their order,
// and all with the same name of the process that they are from. That name
// stands for the client of outbound requests where nothing is known of it, and
// for the server of inbound ones. No more than 10000 requests are waited for:
// beyond that, the end of some is missed.
func (r *Rows) Add(from string, e Event) {
	id := openID{from, e.ID}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case e.RequestInit != nil:
		r.forget(id)
		r.bound()
		nameProcess(from, &e)
		r.open[id] = openRequest{row: r.rows.row(&e, e.RequestInit)}
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
			o.status = 200 // there was a response, of which the event was lost
		}
		o.row.end(e.ResponseEnd, o.status)
		delete(r.open, id)
	}
}

// nameProcess has the process stand for the address that is its own, if that
// is not known.
func nameProcess(from string, e *Event) {
	switch {
	case from == "":
	case e.Direction == Outbound && !e.Source.IsValid() && e.SourceLabels[podLabel] == "":
		e.SourceLabels = map[string]string{podLabel: from}
	case e.Direction == Inbound && !e.Destination.IsValid() && e.DestinationLabels[podLabel] == "":
		e.DestinationLabels = map[string]string{podLabel: from}
	}
}

// Forget says that the end of a request will not be told.
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

// bound makes room for one more, at the cost of any.
func (r *Rows) bound() {
	for id := range r.open {
		if len(r.open) < maxOpen {
			return
		}
		r.forget(id)
	}
}

// Top is the rows as they are now. Call it about once a second: what ended since
// the last time counts into the rate as spread over that time.
func (r *Rows) Top() *tappb.TopResponse { return r.answer(r.most) }

func (r *Rows) answer(most uint32) *tappb.TopResponse {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rows.answer(time.Now(), most)
}

func (r *Rows) sample(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rows.sample(now)
}

// tally is one request that is counted and that nobody watches: an exchange
// that makes no events, and is one allocation. It is the [layer.Observer] of
// the response.
type tally[Req, Rsp any] struct {
	access layer.Accessor[Req, Rsp]
	ctx    context.Context             //nolint:containedctx // the request's; asked why a response broke off
	answer func(err error) (Rsp, bool) // nil: an error is no response

	// What the sinks are told. They keep none of it.
	about Event
	init  RequestInit
	end   ResponseEnd

	counted []counted
	first   [1]counted // room for one sink without another allocation

	start      time.Time
	rsp        Rsp
	status     int // 0 until there are response headers
	headStatus string
	grpcStatus codes.Code
}

// count forwards a request that nobody watches, and tells those of sinks that
// want it of its begin and its end.
func (t *tapped[Req, Rsp]) count(ctx context.Context, req Req, sinks []*counter) (rsp Rsp, err error) {
	v := view[Req, Rsp]{access: t.access, place: t.place, ctx: ctx, req: req}
	var x *tally[Req, Rsp]
	for _, c := range sinks {
		if !holds(c.match, &v) {
			continue
		}
		if x == nil {
			x = newTally(&v)
		}
		if one := c.sink.begin(&x.about, &x.init); one != nil {
			x.counted = append(x.counted, one)
		}
	}
	if x == nil || len(x.counted) == 0 {
		return t.Service.Call(ctx, req)
	}

	returned := false
	defer func() {
		if !returned { // a panic, or Goexit
			x.finish(nil, "")
		}
	}()
	rsp, err = t.Service.Call(ctx, req)
	returned = true
	if err != nil {
		x.End(err)
		return rsp, err
	}
	x.respond(rsp)
	return t.access.Complete(ctx, rsp, x), nil
}

func newTally[Req, Rsp any](v *view[Req, Rsp]) *tally[Req, Rsp] {
	x := &tally[Req, Rsp]{
		access: v.access, ctx: v.ctx, answer: v.answer(), start: time.Now(),
		about: Event{
			Direction:         v.place.direction,
			Source:            v.source(),
			Destination:       v.destination(),
			SourceLabels:      v.place.sourceLabels,
			DestinationLabels: v.place.destinationLabels,
			RouteLabels:       v.route(),
		},
		init: RequestInit{Method: v.method(), Authority: v.authority(), Path: v.path()},
	}
	x.counted = x.first[:0]
	return x
}

func (x *tally[Req, Rsp]) respond(rsp Rsp) {
	x.rsp, x.status = rsp, x.access.Status(rsp)
	// Kept for the end: by then other layers may be changing the headers.
	x.headStatus = x.access.ResponseHeader(rsp).Get("grpc-status")
}

// Data is no news here.
func (x *tally[Req, Rsp]) Data(int) {}

// End hears of the end of a response, or that there was none. Only a complete one has
// trailers to read, and what they say goes before the headers, see
// exchange.End.
func (x *tally[Req, Rsp]) End(err error) {
	if err != nil && x.answer != nil {
		if rsp, ok := x.answer(err); ok {
			x.respond(rsp)
			err = nil
		}
	}
	status := x.headStatus
	if err == nil {
		t := x.access.ResponseTrailer(x.rsp)
		if s := t.Get("grpc-status"); s != "" || status != "" && !isEmpty(t) {
			status = s
		}
	}
	x.finish(err, status)
}

// finish tells the sinks. Status is a grpc-status.
func (x *tally[Req, Rsp]) finish(err error, status string) {
	x.end.SinceRequestInit = time.Since(x.start)
	if err != nil {
		x.end.ResetCode = resetCode(x.ctx, err)
	}
	if x.end.ResetCode == nil && status != "" {
		if n, err := strconv.ParseUint(status, 10, 32); err == nil {
			x.grpcStatus = codes.Code(n)
			x.end.GRPCStatus = &x.grpcStatus
		}
	}
	for _, one := range x.counted {
		one.end(&x.end, x.status)
	}
}
