package dns

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"golang.org/x/net/dns/dnsmessage"
)

// along has the additional section of an answer to SRV have one kind of address
// alone, as of a server that has no room, or has kept no others.
func along(kind dnsmessage.Type) func(string, dnsmessage.Question) *reply {
	return func(_ string, q dnsmessage.Question) *reply {
		if q.Type != dnsmessage.TypeSRV {
			return nil
		}
		return &reply{before: func(m dnsmessage.Message) []dnsmessage.Message {
			var some []dnsmessage.Resource
			for _, r := range m.Additionals {
				if r.Header.Type == kind {
					some = append(some, r)
				}
			}
			m.Additionals = some
			return []dnsmessage.Message{m}
		}}
	}
}

// An address that does not come along with the SRV records any more has not gone
// for that.
func TestWhatNoLongerComesAlongIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := bubble()
		s.additional = true
		both := []string{"_h._t.web.test. 1 SRV 0 0 80 a.test.", "a.test. 1 A 10.0.0.1", "a.test. 1 AAAA fd00::1"}
		s.put("web", both...)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w := watch(ctx, r, "_h._t.web.test")
		next := func(asked ...string) []string {
			t.Helper()
			var got []string
			for end := time.Now().Add(10 * time.Second); len(got) == 0 && time.Now().Before(end); got = s.asked() {
				time.Sleep(100 * time.Millisecond)
				synctest.Wait()
			}
			assert.Equal(t, asked, got)
			return w.take()
		}
		const srv = "udp SRV _h._t.web.test."
		assert.Equal(t, []string{"replace 10.0.0.1:80 [fd00::1]:80"}, w.take())
		assert.Equal(t, []string{srv}, s.asked())
		for range 2 {
			s.fail(along(dnsmessage.TypeA))
			assert.Empty(t, next(srv, "udp AAAA a.test."))
			s.fail(along(dnsmessage.TypeAAAA))
			assert.Empty(t, next(srv, "udp A a.test."))
			s.fail(nil)
			assert.Empty(t, next(srv))
		}

		s.fail(along(dnsmessage.TypeA))
		s.put("web", both[:2]...)
		assert.Equal(t, []string{"replace 10.0.0.1:80"}, next(srv, "udp AAAA a.test."), "it has gone")
		assert.Empty(t, next(srv), "and is not asked for any more")

		s.put("web", both...)
		s.fail(nil)
		assert.Equal(t, []string{"replace 10.0.0.1:80 [fd00::1]:80"}, next(srv))
		s.fail(func(network string, q dnsmessage.Question) *reply {
			if q.Type == dnsmessage.TypeAAAA {
				return &reply{rcode: dnsmessage.RCodeServerFailure}
			}
			return along(dnsmessage.TypeA)(network, q)
		})
		time.Sleep(6 * time.Second)
		got := w.take()
		assert.NotEmpty(t, got)
		for _, said := range got {
			assert.Equal(t, "SERVFAIL", said, "half of an answer is none")
		}
		s.fail(along(dnsmessage.TypeA))
		time.Sleep(time.Minute)
		assert.Equal(t, []string{"replace 10.0.0.1:80 [fd00::1]:80"}, w.take(), "a lookup that failed forgot nothing")
	})
}
