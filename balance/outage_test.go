package balance_test

import (
	"context"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/balance"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/resolve"
)

// moods are the ways of an outage.
var moods = []mood{
	{lost: true},
	{refuses: true},
	{accept: func(net.Conn) {}},
	{accept: func(c net.Conn) { _ = c.Close() }},
	{accept: func(c net.Conn) { _ = c.(interface{ CloseWrite() error }).CloseWrite() }},
	fails(codes.Unavailable),
	{frozen: true, answer: func(_ *destination.Update, to getStream) error { <-to.Context().Done(); return nil }},
	{answer: func(firstMessage *destination.Update, to getStream) error { return to.Send(firstMessage) }},
	{answer: func(_ *destination.Update, to getStream) error { return sendAndWait(firstMessage("nonsense"), to) }},
	{refuses: true},
}

// An outage of an hour of the control plane fails no request to a known target. The
// control plane gets at most one dial or stream in five seconds for each target. Its
// answer takes effect after the longest backoff.
func TestOutage(t *testing.T) {
	for name, b := range map[string]resolve.Backoff{
		"by default":              {},
		"ten seconds at the most": {Min: 500 * time.Millisecond, Max: 10 * time.Second, Jitter: 0.1},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { testOutage(t, b) }) })
	}
}

func testOutage(t *testing.T, b resolve.Backoff) {
	p := newPlane(t, firstMessage("10.0.0.1", "10.0.0.2"))
	defer p.close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	svc := p.services(ctx, resolve.ServeStale(p.source(b), resolve.StalePolicy{}))
	start := time.Now()
	back := start.Add(10*time.Minute + time.Hour)
	// The pause of a dial, and ours before and after it, with their jitter: an
	// attempt that came just before the dial has to wait once more.
	use := back.Add((2*b.OrDefault().Max + mostDial) * 6 / 5)
	var callers sync.WaitGroup
	for target, gap := range map[string]time.Duration{
		"busy": time.Second, "now and then": 50 * time.Second,
	} {
		callers.Go(func() {
			for ; time.Since(start) < 90*time.Minute; time.Sleep(gap) {
				sent := time.Now()
				where, err := svc.Call(ctx, target)
				assert.NoError(t, err, "%s after %v", target, sent.Sub(start))
				assert.LessOrEqual(t, time.Since(sent), 1100*time.Millisecond, "%s after %v", target, sent.Sub(start))
				switch {
				case sent.Before(back):
					assert.True(t, strings.HasPrefix(where, "10.0.0."), where)
				case sent.After(use):
					assert.Equal(t, "10.0.1.1", where, "%s, %v after all is well", target, sent.Sub(back))
				}
			}
		})
	}
	time.Sleep(10 * time.Minute)
	dials, opened := p.dials.Load(), p.attempts()
	for _, m := range moods {
		p.become(t, m, firstMessage("10.0.0.1", "10.0.0.2"))
		time.Sleep(time.Hour / time.Duration(len(moods)))
	}
	dials = p.dials.Load() - dials
	for target, n := range p.attempts() {
		n -= opened[target]
		t.Logf("%s: %d streams, and %d dials for all", target, n, dials)
		assert.LessOrEqual(t, float64(int64(n)+dials)/3600, 0.2, target)
	}
	p.become(t, mood{}, firstMessage("10.0.1.1"))
	callers.Wait()
}

// The effect of the first answer after a minute's outage, with and without
// resolve.ServeStale.
func TestOutageWrongAnswer(t *testing.T) {
	const (
		old    = "10.0.0.1 10.0.0.2"
		none   = "balance web: not ready: the target has no endpoints"
		absent = "balance web: not ready: the target does not exist"
	)
	well := mood{}
	for name, tt := range map[string]struct {
		mood         mood
		firstMessage *destination.Update
		plain        string // where requests go soon, and later
		soon         string // the same with resolve.ServeStale, within its 30 s
		later        string // and after them
	}{
		"the same":          {mood: well, firstMessage: firstMessage("10.0.0.1", "10.0.0.2"), plain: old, soon: old, later: old},
		"empty":             {mood: well, firstMessage: noEndpointsMessage(true), plain: none, soon: old, later: none},
		"does not exist":    {mood: well, firstMessage: noEndpointsMessage(false), plain: absent, soon: old, later: absent},
		"fewer":             {mood: well, firstMessage: firstMessage("10.0.0.1"), plain: "10.0.0.1", soon: "10.0.0.1", later: "10.0.0.1"},
		"others":            {mood: well, firstMessage: firstMessage("10.0.0.2", "10.0.0.3"), plain: "10.0.0.2 10.0.0.3", soon: "10.0.0.2 10.0.0.3", later: "10.0.0.2 10.0.0.3"},
		"none of the same":  {mood: well, firstMessage: firstMessage("10.0.1.1", "10.0.1.2"), plain: "10.0.1.1 10.0.1.2", soon: "10.0.1.1 10.0.1.2", later: "10.0.1.1 10.0.1.2"},
		"nonsense":          {mood: well, firstMessage: firstMessage("nonsense"), plain: old, soon: old, later: old},
		"nonsense and some": {mood: well, firstMessage: firstMessage("nonsense", "10.0.1.1"), plain: "10.0.1.1", soon: "10.0.1.1", later: "10.0.1.1"},
		"not found":         {mood: fails(codes.NotFound), plain: old, soon: old, later: old},
		"denied":            {mood: fails(codes.PermissionDenied), plain: old, soon: old, later: old},
		"empty, then missing": {
			mood:  mood{answer: func(_ *destination.Update, to getStream) error { return to.Send(noEndpointsMessage(true)) }},
			plain: none + `: linkerd: get "web": stream ended`, soon: old, later: old,
		},
		"empty, then well": {
			mood: mood{answer: func(_ *destination.Update, to getStream) error {
				_ = to.Send(noEndpointsMessage(true))
				select {
				case <-time.After(20 * time.Second):
				case <-to.Context().Done():
					return to.Context().Err()
				}
				return sendAndWait(firstMessage("10.0.1.1"), to)
			}},
			plain: none, soon: old, later: "10.0.1.1",
		},
	} {
		for _, keeps := range []bool{false, true} {
			title := name
			if keeps {
				title += ", kept"
			}
			t.Run(title, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := newPlane(t, firstMessage("10.0.0.1", "10.0.0.2"))
					defer p.close()
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					steady := resolve.Backoff{Min: time.Second, Max: time.Second}
					r, soon := p.source(steady), tt.plain
					if keeps {
						r, soon = resolve.ServeStale(r, resolve.StalePolicy{}), tt.soon
					}
					b := balance.Resolve(ctx, r, "web", p.serve)
					time.Sleep(time.Minute)
					p.become(t, mood{refuses: true}, nil)
					time.Sleep(time.Minute)
					assert.Equal(t, old, p.where(t, b), "while it is away")
					p.become(t, tt.mood, tt.firstMessage)
					time.Sleep(mostDial*6/5 + 2*time.Second)
					assert.Equal(t, soon, p.where(t, b), "soon after it is back")
					if keeps {
						time.Sleep(time.Minute)
						assert.Equal(t, tt.later, p.where(t, b), "later")
					}
				})
			})
		}
	}
}

// where returns the endpoints of svc, or why it rejects.
func (p *plane) where(t *testing.T, svc layer.Service[string, string]) string {
	rsp, err := svc.Call(context.Background(), "web")
	if err != nil {
		return err.Error()
	}
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	assert.True(t, p.live[rsp], "%s is not one of %v", rsp, p.live)
	return strings.Join(slices.Sorted(maps.Keys(p.live)), " ")
}
