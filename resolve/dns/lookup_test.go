package dns

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
)

const soa = "test. 60 SOA 60"

// Each case is a zone, a target, its endpoints and the questions.
func TestLookups(t *testing.T) {
	two := []string{
		"_http._tcp.web.test. 60 SRV 1 10 8080 a.test.", "_http._tcp.web.test. 60 SRV 1 30 8081 b.test.",
		"a.test. 60 A 10.0.0.1", "b.test. 60 A 10.0.0.2", "b.test. 60 AAAA fd00::2",
	}
	for name, tt := range map[string]struct {
		zone       []string
		target     string
		additional bool
		opts       []Option
		want       string
		asked      []string
	}{
		"both families": {
			zone: []string{"web.test. 60 AAAA fd00::1", "web.test. 60 A 10.0.0.1"}, target: "web.test:80",
			want: "replace 10.0.0.1:80 [fd00::1]:80", asked: []string{"A web.test.", "AAAA web.test."},
		},
		"one family by option": {
			zone: []string{"web.test. 60 AAAA fd00::1", "web.test. 60 A 10.0.0.1"}, target: "web.test:80", opts: []Option{WithIPv6Only()},
			want: "replace [fd00::1]:80", asked: []string{"AAAA web.test."},
		},
		"an address twice": {
			zone: []string{"web.test. 60 A 10.0.0.1", "web.test. 60 A 10.0.0.1", "web.test. 60 AAAA ::ffff:10.0.0.1"}, target: "web.test:80",
			want: "replace 10.0.0.1:80", asked: []string{"A web.test.", "AAAA web.test."},
		},
		"blocked": {
			zone: []string{"web.test. 60 A 0.0.0.0", "web.test. 60 AAAA ::"}, target: "web.test:80",
			want: "empty", asked: []string{"A web.test.", "AAAA web.test."},
		},
		"blocked in one family": {
			zone: []string{"web.test. 60 A 10.0.0.1", "web.test. 60 AAAA ::ffff:0.0.0.0"}, target: "web.test:80",
			want: "replace 10.0.0.1:80", asked: []string{"A web.test.", "AAAA web.test."},
		},
		"services, one along that is nowhere": {
			zone:   []string{"_h._t.w. 60 SRV 0 1 80 a.", "_h._t.w. 60 SRV 0 1 81 b.", "a. 60 A 0.0.0.0", "b. 60 A 10.0.0.2"},
			target: "_h._t.w", additional: true, opts: []Option{WithIPv4Only()},
			want: "replace 10.0.0.2:81*10000", asked: []string{"SRV _h._t.w.", "A a."},
		},
		"aliases": {
			zone:   []string{"web.test. 60 CNAME b.test.", "b.test. 60 CNAME C.test.", "c.test. 60 A 10.0.0.1", "d.test. 60 A 10.0.0.9"},
			target: "web.test:80", want: "replace 10.0.0.1:80", asked: []string{"A web.test.", "AAAA web.test."},
		},
		"alias of nothing": {
			zone:   []string{"web.test. 60 CNAME b.test.", soa},
			target: "web.test:80", want: "does not exist", asked: []string{"A web.test.", "AAAA web.test."},
		},
		"services, addresses along": {
			zone: two, target: "_http._tcp.web.test", additional: true,
			// a: 10; b: 15 for each address. The mean is 40/3.
			want: "replace 10.0.0.1:8080*7500 10.0.0.2:8081*11250 [fd00::2]:8081*11250", asked: []string{"SRV _http._tcp.web.test."},
		},
		"services, addresses asked for": {
			zone: two, target: "_http._tcp.web.test",
			want:  "replace 10.0.0.1:8080*7500 10.0.0.2:8081*11250 [fd00::2]:8081*11250",
			asked: []string{"SRV _http._tcp.web.test.", "A a.test.", "AAAA a.test.", "A b.test.", "AAAA b.test."},
		},
		"services, one family along": {
			zone: two, target: "_http._tcp.web.test", additional: true, opts: []Option{WithIPv6Only()},
			want: "replace [fd00::2]:8081*10000", asked: []string{"SRV _http._tcp.web.test.", "AAAA a.test."},
		},
		"no port": {
			zone: []string{"web.test. 60 SRV 0 0 80 a.test.", "a.test. 60 A 10.0.0.1"}, target: "web.test", additional: true,
			want: "replace 10.0.0.1:80", asked: []string{"SRV web.test."},
		},
		"services before addresses": {
			zone: append([]string{"web.test. 60 A 10.0.0.9"}, two...), target: "_http._tcp.web.test:80", additional: true, opts: []Option{WithIPv4Only()},
			want: "replace 10.0.0.1:8080*5000 10.0.0.2:8081*15000", asked: []string{"SRV _http._tcp.web.test."},
		},
		"else addresses": {
			zone: []string{"web.test. 60 A 10.0.0.9", soa}, target: "_http._tcp.web.test:80", opts: []Option{WithIPv4Only()},
			want: "replace 10.0.0.9:80", asked: []string{"SRV _http._tcp.web.test.", "A web.test."},
		},
		"neither": {
			zone: []string{"web.test. 60 TXT x", soa}, target: "_http._tcp.web.test:80", opts: []Option{WithIPv4Only()},
			want: "empty", asked: []string{"SRV _http._tcp.web.test.", "A web.test."},
		},
		"no service": {
			zone: []string{soa}, target: "_http._tcp.web.test",
			want: "does not exist", asked: []string{"SRV _http._tcp.web.test."},
		},
		"record without a service": {
			zone: []string{"_http._tcp.web.test. 60 SRV 0 0 0 .", "web.test. 60 A 10.0.0.9"}, target: "_http._tcp.web.test:80",
			want: "empty", asked: []string{"SRV _http._tcp.web.test."},
		},
		"an address of two priorities": {
			zone: []string{
				"_h._t.w. 60 SRV 1 1 80 a.", "_h._t.w. 60 SRV 2 1 80 a.", "_h._t.w. 60 SRV 3 1 80 b.", "a. 60 A 10.0.0.1", "b. 60 A 10.0.0.2",
			},
			target: "_h._t.w", additional: true,
			want: "replace 10.0.0.1:80*10000 10.0.0.2:80*10000/1", asked: []string{"SRV _h._t.w."},
		},
		"two priorities": {
			zone: []string{
				"_h._t.w. 60 SRV 20 1 80 b.", "_h._t.w. 60 SRV 10 1 80 a.", "_h._t.w. 60 SRV 10 1 81 a.",
				"a. 60 A 10.0.0.1", "b. 60 A 10.0.0.2",
			},
			target: "_h._t.w", opts: []Option{WithIPv4Only()},
			want:  "replace 10.0.0.1:80*10000 10.0.0.1:81*10000 10.0.0.2:80*10000/1",
			asked: []string{"SRV _h._t.w.", "A a.", "A b."},
		},
		"the lowest priority with addresses": {
			zone: []string{
				"_h._t.w. 60 SRV 30 1 80 c.", "_h._t.w. 60 SRV 20 1 80 b.", "_h._t.w. 60 SRV 10 1 80 a.", "_h._t.w. 60 SRV 5 1 0 d.",
				"b. 60 A 10.0.0.2", "c. 60 A 10.0.0.3", "d. 60 A 10.0.0.4", soa,
			},
			target: "_h._t.w", opts: []Option{WithIPv4Only()},
			want: "replace 10.0.0.2:80*10000 10.0.0.3:80*10000/1", asked: []string{"SRV _h._t.w.", "A a.", "A b.", "A c."},
		},
		"no priority with addresses": {
			zone:   []string{"_h._t.w. 60 SRV 20 1 80 b.", "_h._t.w. 60 SRV 10 1 80 a.", soa},
			target: "_h._t.w", opts: []Option{WithIPv4Only()},
			want: "empty", asked: []string{"SRV _h._t.w.", "A a.", "A b."},
		},
		"a small weight is one": {
			zone:   []string{"_h._t.w. 60 SRV 0 0 80 a.", "_h._t.w. 60 SRV 0 9 81 a.", "a. 60 A 10.0.0.1"},
			target: "_h._t.w", additional: true,
			want: "replace 10.0.0.1:80*1 10.0.0.1:81*20000", asked: []string{"SRV _h._t.w."},
		},
		"one address of two records": {
			zone:   []string{"_h._t.w. 60 SRV 0 1 80 a.", "_h._t.w. 60 SRV 0 2 80 b.", "_h._t.w. 60 SRV 0 3 81 b.", "a. 60 A 10.0.0.1", "b. 60 A 10.0.0.1"},
			target: "_h._t.w", additional: true,
			want: "replace 10.0.0.1:80*10000 10.0.0.1:81*10000", asked: []string{"SRV _h._t.w."},
		},
		"alias of services": {
			zone:   []string{"_h._t.w. 60 CNAME s.", "s. 60 SRV 0 0 80 a.", "a. 60 A 10.0.0.1"},
			target: "_h._t.w", additional: true, want: "replace 10.0.0.1:80", asked: []string{"SRV _h._t.w."},
		},
		"search, found at once": {
			zone:   []string{"web.a.test. 60 A 10.0.0.1", "web. 60 A 10.0.0.9"},
			target: "web:80", opts: []Option{WithIPv4Only(), WithSearch(1, "a.test", "b.test.")},
			want: "replace 10.0.0.1:80", asked: []string{"A web.a.test."},
		},
		"search, found last": {
			zone:   []string{"web. 60 A 10.0.0.9", "web.b.test. 60 TXT x", soa},
			target: "web:80", opts: []Option{WithIPv4Only(), WithSearch(1, "a.test", "b.test.")},
			want: "replace 10.0.0.9:80", asked: []string{"A web.a.test.", "A web.b.test.", "A web."},
		},
		"search, not found": {
			zone:   []string{"web.b.test. 60 TXT x", soa},
			target: "web:80", opts: []Option{WithIPv4Only(), WithSearch(1, "a.test", "b.test.")},
			want: "empty", asked: []string{"A web.a.test.", "A web.b.test.", "A web."},
		},
		"search, enough dots": {
			zone: []string{soa}, target: "web.ns:80", opts: []Option{WithIPv4Only(), WithSearch(1, "a.test")},
			want: "does not exist", asked: []string{"A web.ns.", "A web.ns.a.test."},
		},
		"search, not enough dots": {
			zone: []string{soa}, target: "web.ns:80", opts: []Option{WithIPv4Only(), WithSearch(5, "a.test")},
			want: "does not exist", asked: []string{"A web.ns.a.test.", "A web.ns."},
		},
		"search, complete": {
			zone: []string{soa}, target: "web.:80", opts: []Option{WithIPv4Only(), WithSearch(5, "a.test")},
			want: "does not exist", asked: []string{"A web."},
		},
		"search, services": {
			zone: []string{"_http._tcp.web.a.test. 60 SRV 0 0 80 c.", "c. 60 A 10.0.0.1"}, target: "_http._tcp.web", additional: true,
			opts: []Option{WithSearch(5, "b.test", "a.test")},
			want: "replace 10.0.0.1:80", asked: []string{"SRV _http._tcp.web.b.test.", "SRV _http._tcp.web.a.test."},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, s := bubble(tt.opts...)
				s.additional = tt.additional
				s.put("zone", tt.zone...)
				u, err := first(t.Context(), r, tt.target)
				require.NoError(t, err)
				assert.Equal(t, tt.want, text(u))
				var want []string
				for _, q := range tt.asked {
					want = append(want, "udp "+q)
				}
				assert.ElementsMatch(t, want, s.asked())
			})
		})
	}
}

// Questions are asked concurrently, up to a limit.
func TestLookupConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, most atomic.Int32
		l := lookup{
			search: search{ndots: 1}, families: []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA},
			onPartial: func(found) {}, answers: make(map[recordSet]answer),
		}
		l.ask = func(_ context.Context, name string, kind dnsmessage.Type) (answer, error) {
			if kind == dnsmessage.TypeSRV {
				var a answer
				for n := range 3 * maxConcurrent {
					r := records(fmt.Sprintf("s. 60 SRV 0 0 80 n%d.", n))
					a.srv = append(a.srv, *r[0].Body.(*dnsmessage.SRVResource))
				}
				return a, nil
			}
			most.Store(max(most.Load(), running.Add(1)))
			time.Sleep(time.Second)
			running.Add(-1)
			return answer{hosts: hosts{exists: true, addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}}, nil
		}
		start := time.Now()
		l.target(t.Context(), target{host: "web", port: 80})
		assert.Equal(t, time.Second, time.Since(start))

		start = time.Now()
		l.target(t.Context(), target{srv: "s"})
		assert.Equal(t, 3*time.Second, time.Since(start))
		assert.LessOrEqual(t, most.Load(), int32(2*maxConcurrent))
	})
}
