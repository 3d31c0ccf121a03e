package tap

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/tap"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gotower/gotower/tap/tappb"
)

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
