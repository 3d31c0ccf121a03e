package dns

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/gotower/gotower/resolve"
)

// failing fails the questions in the list, such as "AAAA web.", by the reply r.
func failing(r reply, questions ...string) func(string, dnsmessage.Question) *reply {
	return func(_ string, q dnsmessage.Question) *reply {
		for _, question := range questions {
			if question == kindName(q.Type)+" "+fold(q.Name) {
				return &r
			}
		}
		return nil
	}
}

// A question that fails from the beginning does not keep the lookup from using the other answers, for
// any way to fail.
func TestPartialAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		zone   []string
		target string
		fails  []string
		want   string
	}{
		"AAAA":              {[]string{"web. 60 A 10.0.0.1"}, "web.:80", []string{"AAAA web."}, "replace 10.0.0.1:80"},
		"A":                 {[]string{"web. 60 AAAA fd00::1"}, "web.:80", []string{"A web."}, "replace [fd00::1]:80"},
		"a domain":          {[]string{"web. 60 A 10.0.0.1"}, "web:80", []string{"A web.a.test.", "AAAA web.a.test."}, "replace 10.0.0.1:80"},
		"a family, domains": {[]string{"web.b.test. 60 A 10.0.0.1"}, "web:80", []string{"AAAA web.a.test.", "AAAA web.b.test."}, "replace 10.0.0.1:80"},
		"services":          {[]string{"web. 60 A 10.0.0.1"}, "_h._t.web.:80", []string{"SRV _h._t.web."}, "replace 10.0.0.1:80"},
		"a host": {
			[]string{"_h._t.w. 60 SRV 0 0 80 a.", "_h._t.w. 60 SRV 0 0 80 b.", "b. 60 A 10.0.0.1"}, "_h._t.w.",
			[]string{"A a.", "AAAA a."}, "replace 10.0.0.1:80",
		},
		"a host's family": {
			[]string{"_h._t.w. 60 SRV 0 0 80 a.", "a. 60 A 10.0.0.1"}, "_h._t.w.", []string{"AAAA a."}, "replace 10.0.0.1:80",
		},
		"a priority": {
			[]string{"_h._t.w. 60 SRV 0 0 80 a.", "_h._t.w. 60 SRV 1 0 80 b.", "b. 60 A 10.0.0.1"}, "_h._t.w.",
			[]string{"A a.", "AAAA a."}, "replace 10.0.0.1:80",
		},
	} {
		for how, r := range map[string]reply{
			"SERVFAIL": {rcode: dnsmessage.RCodeServerFailure}, "NOTIMP": {rcode: dnsmessage.RCodeNotImplemented},
			"REFUSED": {rcode: dnsmessage.RCodeRefused}, "silent": {silent: true},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					resolver, s := bubble(WithSearch(1, "a.test", "b.test"))
					s.put("zone", tt.zone...)
					s.put("soa", soa)
					s.fail(failing(r, tt.fails...))
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					w := watch(ctx, resolver, tt.target)
					time.Sleep(20 * time.Second)
					assert.Equal(t, []string{tt.want}, w.take())
				})
			})
		}
	}
}

// The addresses of one family are published before the question for the other has timed out.
func TestPartialAnswerEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := bubble()
		s.put("web", "web.test. 60 A 10.0.0.1")
		s.fail(failing(reply{silent: true}, "AAAA web.test."))
		start := time.Now()
		u, err := first(t.Context(), r, "web.test:80")
		assert.NoError(t, err)
		assert.Equal(t, "replace 10.0.0.1:80", text(u))
		assert.Equal(t, resolutionDelay, time.Since(start))
	})
}

// A question that fails after a success keeps its last answer, and is an error of the stream. The
// others are up to date.
func TestLastAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := bubble(WithBackoff(resolve.Backoff{Min: 5 * time.Second, Max: 5 * time.Second}))
		s.put("4", "web.test. 5 A 10.0.0.1")
		s.put("6", "web.test. 5 AAAA fd00::1")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w := watch(ctx, r, "web.test:80")
		assert.Equal(t, []string{"replace 10.0.0.1:80 [fd00::1]:80"}, w.take())

		s.fail(failing(reply{rcode: dnsmessage.RCodeServerFailure}, "AAAA web.test."))
		s.put("4", "web.test. 5 A 10.0.0.2")
		time.Sleep(6 * time.Second)
		assert.Equal(t, []string{"replace 10.0.0.2:80 [fd00::1]:80", "SERVFAIL"}, w.take())
		s.asked()
		time.Sleep(5 * time.Second)
		assert.Equal(t, []string{"SERVFAIL"}, w.take())

		s.put("6", "web.test. 5 AAAA fd00::2")
		s.fail(nil)
		time.Sleep(6 * time.Second)
		assert.Equal(t, []string{"replace 10.0.0.2:80 [fd00::2]:80"}, w.take())

		// Without any answer too.
		s.fail(always(reply{rcode: dnsmessage.RCodeServerFailure}))
		time.Sleep(6 * time.Second)
		assert.Equal(t, []string{"SERVFAIL"}, w.take())
		s.fail(nil)
		time.Sleep(6 * time.Second)
		assert.Equal(t, []string{"replace 10.0.0.2:80 [fd00::2]:80"}, w.take())
	})
}

// A host of SRV records that fails keeps its addresses.
func TestLastAnswersOfServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := bubble(WithIPv4Only())
		s.put("w", "_h._t.w. 5 SRV 0 0 80 a.", "_h._t.w. 5 SRV 0 0 80 b.", "a. 5 A 10.0.0.1")
		s.put("b", "b. 5 A 10.0.0.2")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w := watch(ctx, r, "_h._t.w.")
		assert.Equal(t, []string{"replace 10.0.0.1:80 10.0.0.2:80"}, w.take())
		s.fail(failing(reply{rcode: dnsmessage.RCodeServerFailure}, "A a."))
		s.put("b", "b. 5 A 10.0.0.3")
		time.Sleep(6 * time.Second)
		items := w.take()
		assert.Equal(t, "replace 10.0.0.1:80 10.0.0.3:80", items[0])
		assert.Equal(t, "SERVFAIL", items[1])
	})
}

// One answer without endpoints, between two answers with them, changes nothing.
func TestBlip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := bubble(WithIPv4Only())
		s.put("web", "web.test. 5 A 10.0.0.1")
		s.put("soa", "test. 3600 SOA 3600")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w := watch(ctx, r, "web.test:80")
		assert.Equal(t, []string{"replace 10.0.0.1:80"}, w.take())
		for range 3 {
			s.put("web")
			until(s)
			s.put("web", "web.test. 5 A 10.0.0.1")
			between(t, until(s), 5*time.Second, 5500*time.Millisecond, "not the negative TTL")
			assert.Empty(t, w.take())
		}
		s.put("web")
		until(s)
		assert.Empty(t, w.take())
		until(s)
		assert.Equal(t, []string{"does not exist"}, w.take())
	})
}
