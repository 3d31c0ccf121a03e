package dns

import (
	"context"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/gotower/gotower/resolve"
)

// watched is what a stream has yielded, in words.
type watched struct{ items []string }

// watch follows target until ctx ends. It is for a bubble, to be read after
// synctest.Wait.
func watch(ctx context.Context, r resolve.Resolver, target string) *watched {
	w := &watched{}
	go func() {
		for u, err := range r.Resolve(ctx, target) {
			if err != nil {
				_, reason, _ := strings.Cut(err.Error(), "10.0.0.53:53: ")
				w.items = append(w.items, reason)
				continue
			}
			w.items = append(w.items, text(u))
		}
		w.items = append(w.items, "end")
	}()
	synctest.Wait()
	return w
}

// take returns the items since the last call.
func (w *watched) take() []string {
	synctest.Wait()
	items := w.items
	w.items = nil
	return items
}

// until waits for the next question and returns how long that took. More than a
// day is as good as never.
func until(s *server) time.Duration {
	synctest.Wait()
	start := time.Now()
	s.asked()
	for time.Since(start) < 24*time.Hour {
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		if len(s.asked()) > 0 {
			break
		}
	}
	return time.Since(start)
}

func between(t *testing.T, d, low, high time.Duration, what string) {
	t.Helper()
	assert.GreaterOrEqual(t, d, low, what)
	assert.LessOrEqual(t, d, high+20*time.Millisecond, what)
}

func TestRefreshSmallestTTL(t *testing.T) {
	for name, tt := range map[string]struct {
		lines []string
		want  time.Duration
		opts  []Option
	}{
		"of services":      {services("30", "60", "90"), 30 * time.Second, nil},
		"of a host":        {services("90", "30", "60"), 30 * time.Second, nil},
		"of a backup":      {services("90", "60", "30"), 30 * time.Second, nil},
		"both families":    {[]string{"web.test. 90 A 10.0.0.1", "web.test. 60 AAAA fd00::1"}, 60 * time.Second, nil},
		"one family":       {[]string{"web.test. 90 A 10.0.0.1", "test. 9 SOA 9"}, 90 * time.Second, nil},
		"one of many":      {[]string{"web.test. 90 A 10.0.0.1", "web.test. 30 A 10.0.0.2"}, 30 * time.Second, nil},
		"of an alias":      {[]string{"web.test. 20 CNAME b.test.", "b.test. 90 A 10.0.0.1"}, 20 * time.Second, nil},
		"behind an alias":  {[]string{"web.test. 90 CNAME b.test.", "b.test. 40 A 10.0.0.1"}, 40 * time.Second, nil},
		"least":            {[]string{"web.test. 0 A 10.0.0.1"}, 5 * time.Second, nil},
		"most":             {[]string{"web.test. 86400 A 10.0.0.1"}, 5 * time.Minute, nil},
		"least by option":  {[]string{"web.test. 1 A 10.0.0.1"}, 2 * time.Second, []Option{WithRefresh(2*time.Second, 0)}},
		"most by option":   {[]string{"web.test. 500 A 10.0.0.1"}, 10 * time.Second, []Option{WithRefresh(0, 10*time.Second)}},
		"does not exist":   {[]string{"test. 50 SOA 100"}, 50 * time.Second, nil},
		"minimum":          {[]string{"test. 100 SOA 50"}, 50 * time.Second, nil},
		"negative, bounds": {[]string{"test. 3600 SOA 3600"}, 5 * time.Minute, nil},
		"without SOA":      {nil, 5 * time.Second, nil},
		"empty":            {[]string{"web.test. 9 TXT x", "test. 70 SOA 80"}, 70 * time.Second, nil},
		"alias of nothing": {[]string{"web.test. 30 CNAME b.test.", "test. 70 SOA 80"}, 30 * time.Second, nil},
		"negative alias":   {[]string{"web.test. 90 CNAME b.test.", "test. 70 SOA 80"}, 70 * time.Second, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, s := bubble(tt.opts...)
				s.put("web", tt.lines...)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				w := watch(ctx, r, "_h._t.web.test:80")
				require.Len(t, w.take(), 1)
				for range 3 {
					between(t, until(s), tt.want, tt.want*11/10, "the TTL and a tenth")
				}
				assert.Empty(t, w.take(), "the same answer is not yielded")
			})
		})
	}
}

// services are records with the TTLs of the services, and of two hosts with different priorities.
func services(ttl, a, c string) []string {
	return []string{
		"_h._t.web.test. " + ttl + " SRV 1 0 80 a.test.", "_h._t.web.test. " + ttl + " SRV 2 0 80 c.test.",
		"a.test. " + a + " A 10.0.0.1", "c.test. " + c + " A 10.0.0.3",
	}
}

func TestRefreshTTLChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := bubble()
		s.put("web", "web.test. 100 A 10.0.0.1")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		watch(ctx, r, "web.test:80")
		s.put("web", "web.test. 10 A 10.0.0.1")
		between(t, until(s), 100*time.Second, 110*time.Second, "the TTL that was known")
		between(t, until(s), 10*time.Second, 11*time.Second, "the new one")
	})
}

func TestRefreshJitter(t *testing.T) {
	o := new(options).withDefaults()
	least, most := time.Hour, time.Duration(0)
	for range 1000 {
		d := o.refresh(100 * time.Second)
		least, most = min(least, d), max(most, d)
	}
	between(t, least, 100*time.Second, 101*time.Second, "at the least")
	between(t, most, 109*time.Second, 110*time.Second, "at the most")

	o = New(WithRefresh(math.MaxInt64, 0)).options
	assert.GreaterOrEqual(t, o.refresh(0), maxTTL, "no overflow")
}

func TestZoneChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := bubble()
		ctx, cancel := context.WithCancel(t.Context())
		w := watch(ctx, r, "web.test:80")
		assert.Equal(t, []string{"does not exist"}, w.take())
		for _, step := range []struct {
			lines []string
			want  []string
		}{
			{[]string{"web.test. 1 A 10.0.0.2", "web.test. 1 A 10.0.0.1"}, []string{"replace 10.0.0.1:80 10.0.0.2:80"}},
			{[]string{"web.test. 1 A 10.0.0.1", "web.test. 1 A 10.0.0.2"}, nil}, // another order
			{[]string{"web.test. 2 A 10.0.0.1", "web.test. 3 A 10.0.0.2"}, nil}, // another TTL
			{[]string{"web.test. 1 AAAA fd00::1", "web.test. 1 A 10.0.0.1"}, []string{"replace 10.0.0.1:80 [fd00::1]:80"}},
			{[]string{"web.test. 1 TXT x"}, nil}, // the next lookup must confirm it
			{[]string{"web.test. 1 TXT y"}, []string{"empty"}},
			{[]string{"web.test. 1 TXT x"}, nil},
			{nil, []string{"does not exist"}},
			{[]string{"web.test. 1 A 10.0.0.1"}, []string{"replace 10.0.0.1:80"}},
		} {
			s.put("web", step.lines...)
			time.Sleep(6 * time.Second)
			assert.Equal(t, step.want, w.take(), "%v", step.lines)
		}
		cancel()
		assert.Equal(t, []string{"end"}, w.take())
		assert.Zero(t, r.flights.Len())
	})
}

func TestLookupFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := bubble(WithAttempts(1), WithIPv4Only(), WithBackoff(resolve.Backoff{Min: time.Second, Max: 4 * time.Second}))
		s.put("web", "web.test. 10 A 10.0.0.1")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w := watch(ctx, r, "web.test:80")
		assert.Equal(t, []string{"replace 10.0.0.1:80"}, w.take())

		s.fail(always(reply{rcode: dnsmessage.RCodeServerFailure}))
		between(t, until(s), 10*time.Second, 11*time.Second, "the TTL")
		assert.Equal(t, []string{"SERVFAIL"}, w.take())
		for _, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 4 * time.Second} {
			between(t, until(s), want, want, "the back-off")
			assert.Equal(t, []string{"SERVFAIL"}, w.take())
		}

		// A later stream gets the current answer and the current error.
		late := watch(ctx, r, "web.test:80")
		assert.Equal(t, []string{"replace 10.0.0.1:80", "SERVFAIL"}, late.take())
		s.asked()

		s.fail(nil)
		until(s)
		assert.Equal(t, []string{"replace 10.0.0.1:80"}, w.take(), "the failure is over")
		between(t, until(s), 10*time.Second, 11*time.Second, "the TTL again")
		assert.Empty(t, w.take())

		s.fail(always(reply{rcode: dnsmessage.RCodeRefused}))
		until(s)
		assert.Equal(t, []string{"REFUSED"}, w.take())
		between(t, until(s), time.Second, time.Second, "the backoff was reset")
	})
}

// In an hour without an answer a target is asked for less than once in five seconds.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := bubble(WithAttempts(1), WithIPv4Only())
		s.fail(always(reply{rcode: dnsmessage.RCodeServerFailure}))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		watch(ctx, r, "web.test:80")
		time.Sleep(time.Hour)
		synctest.Wait()
		n := len(s.asked())
		assert.Greater(t, n, 60)
		assert.Less(t, n, 720)
	})
}
