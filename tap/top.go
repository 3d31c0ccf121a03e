package tap

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"math"
	"net/netip"
	"slices"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/tap/tappb"
)

const (
	leastEvery   = 100 * time.Millisecond
	defaultEvery = time.Second

	// sampleEvery is how often rates are brought up to date, at least.
	sampleEvery = time.Second
)

// Top counts the requests of this process that req asks for, from now on, and
// yields the rows again and again until ctx ends; its cause is then the last
// item. Nothing of a request is kept or sent: counting costs a few hundred
// nanoseconds, however slowly the rows are read.
//
// A row is what requests have in common: the client's pod, or its address
// without the port; the endpoint's, likewise; the direction; and method and
// path, or by route the label "route" of the route, [DEFAULT] if there is none.
// By destination it is the endpoint and the direction alone. Authority, and
// Route where rows are by method and path, are those of the row's first request.
// Paths and names are cut to 256 bytes. There are at most 1000 rows, and 128 KiB
// of text in them; what comes after that is counted in one row, whose path (or
// route) is "(other)". It takes about 1.2 MiB.
//
// A row that had no request for ten minutes (see [RowTTL]) is let go, or for one
// minute if there is no room for others: it is no longer among the rows, what it
// counted is in "(other)" from then on, and the next such request begins a new row.
// No sum over all rows ever falls, and while a request runs, its row stays.
//
// A success is a request with a response, below 500, that was not reset and
// whose gRPC status is none of Unknown, DeadlineExceeded, Internal, Unavailable
// and DataLoss. That is linkerd's figure: what its caller cancelled has ended
// without success, and so has, of a [layer.Hedge], the request that lost. Where
// requests are hedged, layer.Metrics above the Hedge says how callers fared, and
// rows say how endpoints did. Quantiles are within 5 % up to 4.5 minutes; best, worst and last
// are exact. The rate is that of the requests that ended, each counting e times
// less for every ten seconds of its age.
//
// It counts as one who watches, see [WithCapacity]. For errors, which are the only
// item then, [google.golang.org/grpc/status.Code] gives InvalidArgument,
// PermissionDenied (a condition on a header whose value is withheld) or
// ResourceExhausted.
func (r *Registry) Top(ctx context.Context, req *tappb.TopRequest) iter.Seq2[*tappb.TopResponse, error] {
	return func(yield func(*tappb.TopResponse, error) bool) {
		c, err := r.count(req)
		if err != nil {
			yield(nil, err)
			return
		}
		defer c.stop()
		if c.each(ctx, nil, func(m *tappb.TopResponse) bool { return yield(m, nil) }) {
			yield(nil, fmt.Errorf("tap: top: %w", context.Cause(ctx)))
		}
	}
}

// counting is one call of Top.
type counting struct {
	rows  *table
	every time.Duration
	most  uint32
	stop  func()
}

// count starts counting. Stop must be called.
func (r *Registry) count(req *tappb.TopRequest) (*counting, error) {
	every, err := everyOf(req)
	if err != nil {
		return nil, refuse(codes.InvalidArgument, err)
	}
	match, err := r.filter(req.GetMatch(), req.GetHeaders())
	if err != nil {
		return nil, err
	}
	c := &counting{rows: tableOf(req, r.keepRows), every: every, most: req.GetRows()}
	if c.stop, err = r.attach(match, c.rows); err != nil {
		return nil, refuse(codes.ResourceExhausted, err)
	}
	return c, nil
}

func everyOf(req *tappb.TopRequest) (time.Duration, error) {
	if req.GetEvery() == nil {
		return defaultEvery, nil
	}
	if err := req.GetEvery().CheckValid(); err != nil {
		return 0, fmt.Errorf("every: %w", err)
	}
	every := req.GetEvery().AsDuration()
	if every < leastEvery {
		return 0, fmt.Errorf("every: %v is less than %v", every, leastEvery)
	}
	return every, nil
}

// each yields the rows until yield returns false, or until ctx or down ends:
// then it returns true.
func (c *counting) each(ctx context.Context, down <-chan struct{}, yield func(*tappb.TopResponse) bool) (ended bool) {
	answers := time.NewTicker(c.every)
	defer answers.Stop()
	samples := time.NewTicker(sampleEvery)
	defer samples.Stop()
	for {
		select {
		case <-ctx.Done():
			return true
		case <-down:
			return true
		case now := <-samples.C:
			c.rows.sample(now)
		case <-answers.C:
			if !yield(c.rows.answer(time.Now(), c.most)) {
				return false
			}
		}
	}
}

// Top yields the rows of the process at the other end of conn, which serves
// gotower's own service, see [Registry.Top] and [Server.Register]. One range over
// the sequence is one call; an error is its last item, the cause of ctx among
// them. Breaking from the range releases the stream. conn stays the caller's.
func Top(
	ctx context.Context, conn grpc.ClientConnInterface, req *tappb.TopRequest, opts ...grpc.CallOption,
) iter.Seq2[*tappb.TopResponse, error] {
	call := func(ctx context.Context) (grpc.ServerStreamingClient[tappb.TopResponse], error) {
		return tappb.NewTapClient(conn).Top(ctx, req, opts...)
	}
	return func(yield func(*tappb.TopResponse, error) bool) {
		calling, cancel := context.WithCancel(ctx)
		defer cancel()
		err := receive(calling, call, func(m *tappb.TopResponse) bool { return yield(m, nil) })
		switch {
		case err == nil:
		case ctx.Err() != nil:
			yield(nil, fmt.Errorf("tap: top: %w", context.Cause(ctx)))
		default:
			yield(nil, fmt.Errorf("tap: top: %w", err))
		}
	}
}

const (
	// recentDecay is the time constant of a rate: a request from so long ago
	// counts e times less than one of now.
	recentDecay = 10 * time.Second

	defaultRows  = 100
	defaultRoute = "[DEFAULT]"
)

// sample brings the rates up to date, and lets rows go. The more often it is called, the better:
// what ended since the last time counts as spread over it evenly. It and answer
// are for one caller at a time.
func (t *table) sample(now time.Time) {
	fade, share := 1.0, 1.0
	if dt := now.Sub(t.sampled); dt > 0 {
		t.sampled = now
		x := dt.Seconds() / recentDecay.Seconds()
		fade = math.Exp(-x)
		share = (1 - fade) / x // the mean of what the new ones faded
	}
	age := t.sampled.Sub(t.start)
	for r := range t.all {
		before := r.counted
		r.look()
		r.recent = float32(float64(r.recent)*fade + float64(r.counted-before)*share)
		if r.counted != before {
			r.ended = float32(age.Seconds())
		}
		if r.counted != before || r.open() > 0 || r.used == 0 {
			r.used = max(age, 1)
		}
	}
	t.letGo(age)
}

// answer is the rows with the most requests, as of now.
func (t *table) answer(now time.Time, most uint32) *tappb.TopResponse {
	t.sample(now)
	all := make([]*row, 0, maxRows+1)
	for r := range t.all {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *row) int {
		if a.counted != b.counted {
			return cmp.Compare(b.counted, a.counted)
		}
		return compareKeys(&a.key, &b.key)
	})
	n := min(len(all), orDefault(int(most), defaultRows))
	age := t.sampled.Sub(t.start)
	m := &tappb.TopResponse{Span: durationpb.New(age), Omitted: uint64(len(all) - n)}
	var c counts
	for _, r := range all[:n] {
		m.Rows = append(m.Rows, t.tell(r, age, &c))
	}
	return m
}

func (t *table) tell(r *row, age time.Duration, c *counts) *tappb.Row {
	m := &tappb.Row{
		Source: nameText(r.key.source, r.key.from), Destination: nameText(r.key.destination, r.key.to),
		Method: valid(r.key.method), Path: valid(r.key.path), Route: valid(r.route), Authority: valid(r.authority),
		Direction: pb.TapEvent_ProxyDirection(r.key.direction),
		Count:     r.counted, Successes: r.counted - r.failed,
		Open: r.open(),
	}
	if t.byRoute {
		m.Path, m.Route = "", cmp.Or(m.GetPath(), defaultRoute)
	}
	if age > 0 {
		// Without the divisor the first seconds would be counted as if nothing
		// had been going on before them.
		m.Rate = float64(r.recent) / (recentDecay.Seconds() * -math.Expm1(-age.Seconds()/recentDecay.Seconds()))
	}
	if r.counted == 0 {
		return m
	}
	r.times.read(c)
	best, worst := time.Duration(r.best.Load()), time.Duration(r.worst.Load())
	m.P50 = durationpb.New(c.quantile(0.50, best, worst))
	m.P95 = durationpb.New(c.quantile(0.95, best, worst))
	m.P99 = durationpb.New(c.quantile(0.99, best, worst))
	m.Best, m.Worst = durationpb.New(best), durationpb.New(worst)
	m.Last = durationpb.New(time.Duration(r.last.Load()))
	return m
}

func nameText(name string, addr netip.Addr) string {
	if name != "" || !addr.IsValid() {
		return valid(name)
	}
	return addr.String()
}

// compareKeys puts rows that are otherwise alike in an order that stays.
func compareKeys(a, b *rowKey) int {
	return cmp.Or(
		cmp.Compare(a.source, b.source), a.from.Compare(b.from),
		cmp.Compare(a.destination, b.destination), a.to.Compare(b.to),
		cmp.Compare(a.path, b.path), cmp.Compare(a.method, b.method), cmp.Compare(a.direction, b.direction),
	)
}

const (
	// defaultKeep is two rounds of what runs every five minutes: the row of a
	// job that still runs is there whenever somebody looks.
	defaultKeep = RowTTL(10 * time.Minute)

	// leastKeep is how long a row stays though there is no room for others: by
	// then its rate shows as nought.
	leastKeep = time.Minute

	// mostMade bounds how many rows make room at a time.
	mostMade = maxRows / 8
)

// RowTTL is how long a row of Top stays without a request. It is a
// [RegistryOption], for [Registry.Top] and those who ask from afar, and a
// [FollowOption] and a [RowsOption] for rows that are counted where they are
// read. The default is 10 minutes, also for what is 0 or less. See [Registry.Top].
type RowTTL time.Duration

func (k RowTTL) applyRegistry(r *Registry)    { r.keepRows = k }
func (k RowTTL) applyFollow(o *followOptions) { o.keepRows = k }
func (k RowTTL) applyRows(r *Rows)            { r.rows.stay = k.stay() }

// stay is how long rows stay without a request: when others need no room, and
// when they do.
type stay struct{ long, short time.Duration }

func (k RowTTL) stay() stay {
	if k <= 0 {
		k = defaultKeep
	}
	return stay{long: time.Duration(k), short: min(time.Duration(k), leastKeep)}
}

// letGo ends rows that had no request for long, as of this age of the table. If
// there was no room for others since the last time, it ends as many as may have
// wanted it, of those that had none for longest.
func (t *table) letGo(age time.Duration) {
	began := t.other.began.Load()
	wanted := int64(began - t.turnedAway) // those forgotten count against it
	t.turnedAway = began

	least := t.stay.long
	if wanted > 0 {
		least = t.stay.short
	}
	var idle []*row
	for r := range t.slots.Load().all {
		if r.used > 0 && age-r.used >= least {
			idle = append(idle, r)
		}
	}
	if len(idle) == 0 {
		return
	}
	slices.SortFunc(idle, func(a, b *row) int {
		return cmp.Or(cmp.Compare(a.used, b.used), cmp.Compare(a.counted, b.counted), compareKeys(&a.key, &b.key))
	})
	n := int(max(min(wanted, mostMade), 0))
	for n < len(idle) && age-idle[n].used >= t.stay.long {
		n++
	}
	t.drop(idle[:min(n, len(idle))])
}

// drop ends those of rows that are still not in use. What they counted goes to
// other, so that the sum of all rows never falls.
func (t *table) drop(rows []*row) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range rows {
		// Once it is marked, who found it before begins elsewhere; and nobody
		// is inside who could change it.
		if !r.began.CompareAndSwap(r.counted, r.counted|gone) {
			continue
		}
		t.other.absorb(r)
		t.turnedAway += r.counted
		t.free.Add(1)
		t.room.Add(r.key.text() + int64(len(r.authority)+len(r.route)))
	}
	left := new(slots)
	for r := range t.slots.Load().all {
		if r.began.Load()&gone == 0 {
			left.put(r)
		}
	}
	t.slots.Store(left)
}

// absorb adds what a row counted that is gone. Requests may be changing r.
func (r *row) absorb(from *row) {
	if from.counted == 0 {
		return
	}
	r.times.absorb(&from.times)
	r.within(from.best.Load(), from.worst.Load())
	if last := r.last.Load(); r.ends.Load() == r.seen && (r.counted == 0 || from.ended > r.ended) {
		r.last.CompareAndSwap(last, from.last.Load())
		r.ended = from.ended
	}
	r.began.Add(from.counted)
	r.counted += from.counted
	r.failed += from.failed
	r.recent += from.recent
}

// Top serves one client with rows. Its headers are sent at once: from then on
// every request that matches is counted.
func (o own) Top(req *tappb.TopRequest, stream grpc.ServerStreamingServer[tappb.TopResponse]) error {
	if err := o.server.access.permit(stream.Context()); err != nil {
		return refuse(codes.Unauthenticated, err)
	}
	c, err := o.server.reg.count(req)
	if err != nil {
		return err
	}
	defer c.stop()
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	var sent error
	c.each(stream.Context(), o.server.down, func(m *tappb.TopResponse) bool {
		sent = stream.Send(m)
		return sent == nil
	})
	switch {
	case sent != nil:
		return sent
	case stream.Context().Err() != nil:
		return status.FromContextError(stream.Context().Err()).Err()
	}
	return errDown
}
