package dns

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/gotower/gotower/resolve"
)

func question(name string, kind dnsmessage.Type) dnsmessage.Question {
	return dnsmessage.Question{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}
}

func packed(t testing.TB, m dnsmessage.Message) []byte {
	t.Helper()
	msg, err := m.Pack()
	require.NoError(t, err)
	return msg
}

func TestInterpret(t *testing.T) {
	asked := question("web.", dnsmessage.TypeA)
	recursive := dnsmessage.Header{Response: true, RecursionAvailable: true}
	for name, tt := range map[string]struct {
		m    dnsmessage.Message
		want hosts
	}{
		"records of other names": { // the owners do not matter, as in Go's resolver
			dnsmessage.Message{Header: recursive, Answers: records("web. 60 CNAME w.", "books. 9 A 10.0.0.1")},
			hosts{exists: true, addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, ttl: 9 * time.Second},
		},
		"CNAMEs in a circle": {
			dnsmessage.Message{Header: recursive, Answers: records("web. 9 CNAME b.", "b. 9 CNAME web.", "c. 9 A 10.0.0.1")},
			hosts{exists: true, addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, ttl: 9 * time.Second},
		},
		"an alias out of order": {
			dnsmessage.Message{Header: recursive, Answers: records("b. 60 A 10.0.0.1", "WEB. 30 CNAME B.")},
			hosts{exists: true, addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, ttl: 30 * time.Second},
		},
		"a TTL with the highest bit": {
			dnsmessage.Message{Header: recursive, Answers: records("web. 2147483648 A 10.0.0.1")},
			hosts{exists: true, addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}},
		},
		"nothing, with authority": {
			dnsmessage.Message{Header: dnsmessage.Header{Response: true, Authoritative: true}, Authorities: records("web. 7 SOA 9")},
			hosts{exists: true, ttl: 7 * time.Second},
		},
		"nowhere, and somewhere": {
			dnsmessage.Message{Header: recursive, Answers: records("web. 60 A 0.0.0.0", "web. 60 A 10.0.0.1")},
			hosts{exists: true, addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, ttl: time.Minute},
		},
		"nowhere": {
			dnsmessage.Message{Header: recursive, Answers: records("web. 60 CNAME b.", "b. 9 A 0.0.0.0")},
			hosts{exists: true, ttl: 9 * time.Second},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tt.m.Questions = []dnsmessage.Question{asked}
			a, err := interpret(packed(t, tt.m), asked)
			require.NoError(t, err)
			assert.Equal(t, tt.want, a.hosts)
		})
	}
}

func TestInterpretErrors(t *testing.T) {
	asked := question("web.", dnsmessage.TypeA)
	var badvers dnsmessage.ResourceHeader
	require.NoError(t, badvers.SetEDNS0(payload, 16, false))
	for want, m := range map[string]dnsmessage.Message{
		"the server does not know web. and is not recursive": {Authorities: records("web. 1 TXT x")},
		"RCODE 16": {Additionals: []dnsmessage.Resource{{Header: badvers, Body: &dnsmessage.OPTResource{}}}},
	} {
		_, err := interpret(packed(t, m), asked)
		require.ErrorContains(t, err, want)
	}
	_, err := interpret(packed(t, dnsmessage.Message{
		Header: dnsmessage.Header{Authoritative: true}, Answers: records("web. 1 CNAME b."),
	}), asked)
	require.ErrorContains(t, err, "the server does not know web. and is not recursive")

	// The records before a malformed one are used.
	one := len(packed(t, dnsmessage.Message{Answers: records("web. 60 A 10.0.0.1")}))
	whole := packed(t, dnsmessage.Message{Answers: records("web. 60 A 10.0.0.1", "web. 60 A 10.0.0.2")})
	for n := range whole {
		a, err := interpret(whole[:n], asked)
		if n >= one {
			require.NoError(t, err, "%d bytes", n)
			require.Len(t, a.addrs, 1)
			continue
		}
		require.ErrorContains(t, err, "malformed answer", "%d bytes", n)
	}
}

// Any message is an error or an answer with valid endpoints, sorted and distinct, in any
// order of records.
func FuzzInterpret(f *testing.F) {
	head := dnsmessage.Header{Response: true, RecursionAvailable: true}
	for _, m := range []dnsmessage.Message{
		{Header: head, Answers: records("web. 60 CNAME b.", "b. 60 A 10.0.0.1", "b. 60 A 10.0.0.2")},
		{Header: head, Answers: records("web. 60 SRV 0 1 80 a.", "web. 60 SRV 0 2 80 b."), Additionals: records("a. 5 A 10.0.0.1", "b. 5 AAAA ::1")},
		{Header: head, Authorities: records("web. 60 SOA 60")},
		{Header: head, Answers: records("web. 1 CNAME b.", "b. 1 CNAME web.")},
		{Header: dnsmessage.Header{Response: true, Authoritative: true}, Answers: records("web. 1 CNAME B.")},
	} {
		for _, kind := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeSRV} {
			m.Questions = []dnsmessage.Question{question("web.", kind)}
			f.Add(packed(f, m), kind == dnsmessage.TypeSRV)
		}
	}
	f.Fuzz(func(t *testing.T, msg []byte, srv bool) {
		asked := question("web.", dnsmessage.TypeA)
		if srv {
			asked.Type = dnsmessage.TypeSRV
		}
		query{question: asked}.answeredBy(msg)
		a, err := interpret(msg, asked)
		if err != nil {
			require.Empty(t, a)
			return
		}
		require.GreaterOrEqual(t, a.ttl, time.Duration(0))
		require.Less(t, a.ttl, maxTTL)
		valid(t, a.withPort(80).endpoints)
		if !srv {
			require.Empty(t, a.srv)
			return
		}
		require.Empty(t, a.addrs)
		endpoints := weighted(a.srv, a.additional)
		valid(t, endpoints)
		slices.Reverse(a.srv)
		require.Len(t, weighted(a.srv, a.additional), len(endpoints))
	})
}

func valid(t *testing.T, endpoints []resolve.Endpoint) {
	t.Helper()
	for i, e := range endpoints {
		require.True(t, e.Addr.IsValid())
		require.NotZero(t, e.Addr.Port())
		require.False(t, e.Addr.Addr().IsUnspecified())
		if i > 0 {
			require.Negative(t, endpoints[i-1].Addr.Compare(e.Addr))
			require.Equal(t, endpoints[0].Weight == 0, e.Weight == 0)
		}
	}
}
