package dns

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/gotower/gotower/resolve"
)

func TestServerRotation(t *testing.T) {
	for name, fault := range map[string]reply{
		"silent":   {silent: true},
		"SERVFAIL": {rcode: dnsmessage.RCodeServerFailure},
		"REFUSED":  {rcode: dnsmessage.RCodeRefused},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bad, good := &server{}, &server{}
				bad.fail(always(fault))
				good.put("web", "web.test. 60 A 10.0.0.1")
				good.put("books", "books.test. 60 A 10.0.0.2")
				n := network{"10.0.0.53:53": bad, "[fd00::53]:5353": good}
				r := New(WithServers(netip.MustParseAddrPort("10.0.0.53:0"), netip.MustParseAddrPort("[fd00::53]:5353")),
					dialer(n.dial), WithIPv4Only())
				start := time.Now()
				u, err := first(t.Context(), r, "web.test:80")
				require.NoError(t, err)
				assert.Equal(t, "replace 10.0.0.1:80", text(u))
				if fault.silent {
					assert.Equal(t, patience, time.Since(start))
				} else {
					assert.Zero(t, time.Since(start))
				}

				// The first server is asked first again, because the other one may know other names.
				bad.asked()
				_, err = first(t.Context(), r, "books.test:80")
				require.NoError(t, err)
				assert.Equal(t, []string{"udp A books.test."}, bad.asked())

				// The other one fails, and is not needed.
				bad.fail(nil)
				bad.put("web", "web.test. 60 A 10.0.0.3")
				good.fail(always(fault))
				u, err = first(t.Context(), r, "web.test:80")
				require.NoError(t, err)
				assert.Equal(t, "replace 10.0.0.3:80", text(u))
			})
		})
	}
}

// All servers, attempts times, each for the timeout; the error names the last one.
func TestServersSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := bubble(WithTimeout(time.Second), WithAttempts(3), WithIPv4Only())
		s.fail(always(reply{silent: true}))
		start := time.Now()
		_, err := first(t.Context(), r, "web.test:80")
		require.EqualError(t, err, `dns: resolve "web.test:80": A of web.test. from 10.0.0.53:53: no answer in 1s over udp`)
		assert.Equal(t, 3*time.Second, time.Since(start))
		assert.Len(t, s.asked(), 3)
		require.NotErrorIs(t, err, resolve.ErrUnresolvable)
	})
}

func TestServerRefusesConnection(t *testing.T) {
	// No other process can have the port, the client included, because this socket has
	// it. It listens to an address that has no other listener.
	udp, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")), &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9})
	require.NoError(t, err)
	defer udp.Close()
	at := netip.MustParseAddrPort(udp.LocalAddr().String())
	_, err = first(t.Context(), New(WithServers(at), patient(), WithAttempts(1)), "web.test:80")
	require.ErrorContains(t, err, "connection refused")
}

func TestServerErrors(t *testing.T) {
	for rcode, want := range map[dnsmessage.RCode]string{
		dnsmessage.RCodeFormatError: "FORMERR", dnsmessage.RCodeServerFailure: "SERVFAIL",
		dnsmessage.RCodeNotImplemented: "NOTIMP", dnsmessage.RCodeRefused: "REFUSED", 9: "RCODE 9",
	} {
		s := &server{}
		s.fail(always(reply{rcode: rcode}))
		_, err := first(t.Context(), New(WithServers(s.loopback(t)), patient(), WithAttempts(2), WithIPv6Only()), "web.test:80")
		require.ErrorContains(t, err, "AAAA of web.test. from 127.0.0.1:")
		require.ErrorContains(t, err, ": "+want)
		want := 2
		if rcode == dnsmessage.RCodeFormatError || rcode == dnsmessage.RCodeNotImplemented {
			want = 4 // each time again without EDNS0
		}
		assert.Len(t, s.asked(), want)
	}
}

// The option rotate distributes the questions.
func TestRotate(t *testing.T) {
	one, two := &server{}, &server{}
	n := network{"10.0.0.1:53": one, "10.0.0.2:53": two}
	c := client{dial: n.dial}
	conf := config{
		servers: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:53"), netip.MustParseAddrPort("10.0.0.2:53")},
		timeout: time.Minute, attempts: 1, rotate: true,
	}
	for range 4 {
		_, err := c.ask(t.Context(), conf, "web.", dnsmessage.TypeA)
		require.NoError(t, err)
	}
	assert.Len(t, one.asked(), 2)
	assert.Len(t, two.asked(), 2)
}

// A later server's answer without records waits for the first server, which is slow.
func TestNegativeAnswerOfLaterServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow, public := &server{}, &server{}
		slow.put("web", "web.test. 60 A 10.0.0.1")
		n := network{"10.0.0.1:53": slow, "10.0.0.2:53": public}
		r := New(
			WithServers(netip.MustParseAddrPort("10.0.0.1:53"), netip.MustParseAddrPort("10.0.0.2:53")), WithIPv4Only(),
			dialer(func(ctx context.Context, network, address string) (net.Conn, error) {
				if address == "10.0.0.1:53" {
					time.Sleep(3 * time.Second)
				}
				return n.dial(ctx, network, address)
			}))
		u, err := first(t.Context(), r, "web.test:80")
		require.NoError(t, err)
		assert.Equal(t, "replace 10.0.0.1:80", text(u))
		assert.Equal(t, []string{"udp A web.test."}, public.asked())
	})
}

// Random ids protect from forged answers.
func TestQueryIDs(t *testing.T) {
	ids := make(map[uint16]bool)
	for range 20 {
		q, err := newQuery("web.test.", dnsmessage.TypeA, payload)
		require.NoError(t, err)
		ids[q.id] = true
	}
	assert.Greater(t, len(ids), 10)
}
