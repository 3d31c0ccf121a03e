package dns

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/gotower/gotower/resolve"
)

// tenth changes every tenth response. The response is lost, sent twice, or sent after an older
// response to the same question.
func tenth(how string) func(string, dnsmessage.Question) *reply {
	n := 0
	var last []byte // packed, because the sender keeps a copy
	return func(string, dnsmessage.Question) *reply {
		n++
		switch {
		case n%10 != 0:
			return &reply{before: func(right dnsmessage.Message) []dnsmessage.Message {
				last, _ = right.Pack()
				return nil
			}}
		case how == "lost":
			return &reply{silent: true}
		case how == "doubled":
			return &reply{before: func(right dnsmessage.Message) []dnsmessage.Message { return []dnsmessage.Message{right} }}
		}
		return &reply{before: func(dnsmessage.Message) []dnsmessage.Message {
			var older dnsmessage.Message
			_ = older.Unpack(last)
			return []dnsmessage.Message{older}
		}}
	}
}

// After any fault of every tenth answer the set is right within the TTL.
func TestConverges(t *testing.T) {
	for _, how := range []string{"lost", "doubled", "late"} {
		for _, attempts := range []int{1, 2} {
			t.Run(fmt.Sprint(how, ", attempts ", attempts), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testConverges(t, how, attempts) })
			})
		}
	}
}

func testConverges(t *testing.T, how string, attempts int) {
	r, s := bubble(WithAttempts(attempts), WithTimeout(time.Second))
	s.fail(tenth(how))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var known resolve.Set
	go func() {
		for u, err := range r.Resolve(ctx, "web.test:80") {
			if err == nil {
				known.Apply(u)
			}
		}
	}()
	rnd := rand.New(rand.NewPCG(1, 0))
	for range 200 {
		lines, want := []string{"web.test. 10 TXT x"}, []string{}
		for n := range 10 {
			if rnd.IntN(2) == 0 {
				lines = append(lines, fmt.Sprintf("web.test. 10 A 10.0.0.%d", n))
				want = append(want, fmt.Sprintf("10.0.0.%d:80", n))
			}
		}
		s.put("web", lines...)
		// The TTL, a tenth more, and a lookup that failed: its time, and the back-off.
		time.Sleep(11*time.Second + 2*time.Second + 200*time.Millisecond)
		synctest.Wait()
		got := []string{}
		for _, e := range known.Endpoints() {
			got = append(got, e.Addr.String())
		}
		require.Equal(t, want, got)
	}
}

// A hundred clients that begin at once do not ask at once later, also after an outage.
func TestRefreshSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients, ttl = 100, time.Minute
		_, s := bubble()
		n := network{"10.0.0.53:53": s}
		s.put("web", "web.test. 60 A 10.0.0.1")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range clients {
			r, _ := bubble(dialer(n.dial), WithIPv4Only(), WithAttempts(1))
			watch(ctx, r, "web.test:80")
		}
		assert.Len(t, s.asked(), clients)
		// busiest returns how many ask in the busiest tenth of a second of d.
		busiest := func(d time.Duration) int {
			var each []int
			for range int(d / (100 * time.Millisecond)) {
				time.Sleep(100 * time.Millisecond)
				synctest.Wait()
				each = append(each, len(s.asked()))
			}
			return slices.Max(each)
		}
		// Chance alone has had fifteen of them in one of hundreds of tenths.
		assert.Less(t, busiest(10*ttl), clients/4, "while it is well")
		s.fail(always(reply{rcode: dnsmessage.RCodeServerFailure}))
		assert.Less(t, busiest(10*ttl), clients/4, "while it is away")
		s.fail(nil)
		assert.Less(t, busiest(10*ttl), clients/4, "when it is back")
	})
}
